#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli_fixture.h"
#include "convert/cli/config_file.h"

namespace assay::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

ExitCode no_work(const Arguments&, Terminal&) { return ExitCode::kDone; }

Command pack_command() {
  return {
      .name = "pack",
      .positionals = {{.name = "MODEL", .optional = true}},
      .options = {{.name = "bits",
                   .kind = ValueKind::kInteger,
                   .default_value = "4",
                   .minimum = 2,
                   .maximum = 8},
                  {.name = "damp", .kind = ValueKind::kNumber, .default_value = "0.01"},
                  {.name = "act-order", .default_value = "static", .choices = {"none", "static"}},
                  {.name = "name"},
                  {.name = "exclude", .repeatable = true},
                  {.name = "memory", .kind = ValueKind::kBytes},
                  {.name = "resume", .kind = ValueKind::kFlag}},
      .run = no_work,
  };
}

class ConfigFile : public testing::Test {
 protected:
  Arguments read(std::string_view text) {
    Arguments arguments;
    add_config_text(text, "run.yaml", pack_, OptionTable(pack_), commands_, arguments);
    return arguments;
  }
  std::string error_of(std::string_view text) {
    try {
      read(text);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }

  Command pack_ = pack_command();
  Command sign_ = {.name = "sign", .options = {{.name = "key"}}, .run = no_work};
  std::vector<const Command*> commands_ = {&pack_, &sign_};
};

TEST_F(ConfigFile, SetsValuesOfEveryKindWithTheirPlace) {
  const Arguments arguments = read(
      "# a comment\n"
      "bits: 3\n"
      "damp: 1e-2\n"
      "act_order: none\n"
      "name: \"no\"\n"
      "exclude: [lm_head, \"10\"]\n"
      "memory: 2GiB\n"
      "resume: true\n"
      "threads: 2\n");

  EXPECT_EQ(arguments.integer("bits"), 3);
  EXPECT_EQ(arguments.place("bits"), "run.yaml:2:7");
  EXPECT_EQ(arguments.origin("bits"), Arguments::Origin::kConfig);
  EXPECT_EQ(arguments.number("damp"), 0.01);
  EXPECT_EQ(arguments.text("act-order"), "none");
  EXPECT_EQ(arguments.text("name"), "no");
  EXPECT_EQ(arguments.list("exclude"), (std::vector<std::string>{"lm_head", "10"}));
  EXPECT_EQ(arguments.bytes("memory"), uint64_t{2} << 30);
  EXPECT_TRUE(arguments.flag("resume"));
  EXPECT_EQ(arguments.integer("threads"), 2);
}

TEST_F(ConfigFile, ReadsJsonAndEmptyFiles) {
  EXPECT_EQ(read(R"({"bits": 8, "exclude": "a"})").integer("bits"), 8);
  EXPECT_FALSE(read("").given("bits"));
  EXPECT_FALSE(read("# nothing\n").given("bits"));
}

TEST_F(ConfigFile, SectionOfTheCommandWinsOverTheSameKeyOutside) {
  const Arguments arguments = read("bits: 3\npack:\n  bits: 8\nsign:\n  key: k\n");

  EXPECT_EQ(arguments.integer("bits"), 8);
  EXPECT_FALSE(arguments.given("key"));
}

TEST_F(ConfigFile, DoesNotReplaceWhatIsSetAlready) {
  Arguments arguments;
  arguments.set("bits", {"8"}, Arguments::Origin::kEnvironment);

  add_config_text("bits: 3\n", "run.yaml", pack_, OptionTable(pack_), commands_, arguments);

  EXPECT_EQ(arguments.integer("bits"), 8);
}

struct BadConfig {
  const char* name;
  const char* text;
  const char* message;
};

class BadConfigFile : public ConfigFile, public testing::WithParamInterface<BadConfig> {};

TEST_P(BadConfigFile, IsAUsageErrorWithLineAndColumn) {
  EXPECT_THAT(error_of(GetParam().text), StartsWith(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Rows, BadConfigFile,
    testing::Values(
        BadConfig{"Duplicate", "bits: 3\ndamp: 0\nbits: 4\n",
                  "run.yaml:3:1: the key \"bits\" stands a second time, first at run.yaml:1:1"},
        BadConfig{"DuplicateSpelling", "act-order: none\nact_order: none\n",
                  "run.yaml:2:1: the key"},
        BadConfig{"DuplicateInSection", "pack: {bits: 3, bits: 4}\n", "run.yaml:1:17: the key"},
        BadConfig{"Anchor", "bits: &b 3\n", "run.yaml:1:7: found an anchor"},
        BadConfig{"Alias", "bits: *b\n", "run.yaml:1:7: this is no YAML"},
        BadConfig{"MergeKey", "<<: {bits: 3}\n", "run.yaml:1:1: found a merge key"},
        BadConfig{"Tag", "name: !!str 3\n", "run.yaml:1:7: found the tag"},
        BadConfig{"ComplexKey", "? [a]\n: 1\n",
                  "run.yaml:1:3: expected a name as key, found a list"},
        BadConfig{"SecondDocument", "bits: 3\n---\nbits: 4\n",
                  "run.yaml:2:1: found a second document"},
        BadConfig{"NoYaml", "bits: [3\n", "run.yaml:"},
        BadConfig{"TooDeep", "exclude: [[[[[[[[[[1]]]]]]]]]]\n", "run.yaml:1:"},
        BadConfig{"RootList", "- bits\n", "run.yaml:1:1: expected option names with values"},
        BadConfig{"UnknownKey", "bit: 3\n",
                  "run.yaml:1:1: assay pack has no option \"bit\"; did you mean \"bits\"?"},
        BadConfig{
            "KeyOfOtherCommand", "key: 3\n",
            "run.yaml:1:1: assay pack has no option \"key\"; it belongs to assay sign: put it "
            "under \"sign:\""},
        BadConfig{"UnknownKeyInOtherSection", "sign:\n  kye: 3\n",
                  "run.yaml:2:3: assay sign has no option \"kye\"; did you mean \"key\"?"},
        BadConfig{"SectionIsNoMapping", "sign: 3\n", "run.yaml:1:7: sign: expected option names"},
        BadConfig{"CommandLineOnly", "help: true\n", "run.yaml:1:1: \"help\" can only be given"},
        BadConfig{"YesIsNoBoolean", "resume: yes\n",
                  "run.yaml:1:9: resume: expected true or false, found \"yes\""},
        BadConfig{"QuotedBoolean", "resume: \"true\"\n",
                  "run.yaml:1:9: resume: expected true or false, found the text \"true\""},
        BadConfig{"OctalInteger", "bits: 010\n",
                  "run.yaml:1:7: bits: expected an integer from 2 to 8"},
        BadConfig{"HexInteger", "bits: 0x4\n", "run.yaml:1:7: bits: expected an integer"},
        BadConfig{"PlusInteger", "bits: +4\n", "run.yaml:1:7: bits: expected an integer"},
        BadConfig{"QuotedInteger", "bits: \"4\"\n",
                  "run.yaml:1:7: bits: expected an integer from 2 to 8, found the text \"4\""},
        BadConfig{"RealInteger", "bits: 4.0\n", "run.yaml:1:7: bits: expected an integer"},
        BadConfig{"OutOfRange", "bits: 9\n",
                  "run.yaml:1:7: bits: expected an integer from 2 to 8, found \"9\""},
        BadConfig{"NotFinite", "damp: .inf\n", "run.yaml:1:7: damp: expected a number"},
        BadConfig{"BareFraction", "damp: .5\n", "run.yaml:1:7: damp: expected a number"},
        BadConfig{
            "AmbiguousText", "name: no\n",
            "run.yaml:1:7: name: expected text, found \"no\", which YAML does not read as text; "
            "put it in quotes"},
        BadConfig{"NumberAsText", "name: 010\n",
                  "run.yaml:1:7: name: expected text, found \"010\""},
        BadConfig{"Null", "name:\n", "run.yaml:"},
        BadConfig{
            "WrongChoice", "act-order: statik\n",
            "run.yaml:1:12: act-order: expected one of none, static, found \"statik\"; did you"},
        BadConfig{"ListForOne", "bits: [3]\n",
                  "run.yaml:1:7: bits: expected an integer from 2 to 8, "
                  "found a list; this option takes one value"},
        BadConfig{"MappingAsValue", "bits: {a: 1}\n",
                  "run.yaml:1:7: bits: expected an integer from 2 to 8, found a mapping"},
        BadConfig{"ListInList", "exclude: [[a]]\n",
                  "run.yaml:1:11: exclude: expected text, found a list"},
        BadConfig{"SizeWithWrongUnit", "memory: 5Q\n", "run.yaml:1:9: memory: expected a size"}),
    [](const auto& test) { return std::string(test.param.name); });

class ShowConfig : public ConfigFile {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = testing::TempDir() + test->test_suite_name() + test->name() + ".yaml";
    write("bits: 3\nexclude: [a, b]\n");
  }
  void TearDown() override { std::filesystem::remove(path_); }
  void write(std::string_view text) { std::ofstream(path_) << text; }

  std::string path_;
  FakeProcess process_;
};

TEST_F(ShowConfig, NamesValueAndOriginOfEveryOption) {
  process_.surroundings.environment = {{"ASSAY_DAMP", "0.5"}};

  const RunResult result =
      process_.run({"pack", "m", "--config", path_, "--name", "x", "--show-config"}, commands_);

  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.out, testing::ContainsRegex("\nbits: 3 +# .*yaml:1:7\n"));
  EXPECT_THAT(result.out, testing::ContainsRegex("\ndamp: 0.5 +# ASSAY_DAMP\n"));
  EXPECT_THAT(result.out, testing::ContainsRegex("\nname: \"x\" +# command line\n"));
  EXPECT_THAT(result.out, testing::ContainsRegex("\nact-order: \"static\" +# default\n"));
  EXPECT_THAT(result.out, testing::ContainsRegex("\n# memory: null +# default\n"));
}

TEST_F(ShowConfig, PrintsAFileThatConfigTakesAgain) {
  const RunResult first = process_.run({"pack", "--config", path_, "--show-config"}, commands_);
  write(first.out);

  const RunResult second =
      process_.run({"pack", "--config", path_, "--show-config", "--json"}, commands_);

  EXPECT_EQ(second.exit_code, 0) << second.error;
  const Json options = parse_json(second.out, "out").at("options");
  EXPECT_EQ(options.at("bits").at("value"), Json(3));
  EXPECT_EQ(options.at("exclude").at("value").as_array().size(), 2u);
  EXPECT_EQ(options.at("resume").at("value"), Json(false));
}

TEST_F(ShowConfig, ConfigCanComeFromTheEnvironmentAndMustExist) {
  process_.surroundings.environment = {{"ASSAY_CONFIG", path_}};
  EXPECT_THAT(process_.run({"pack", "--show-config"}, commands_).out, HasSubstr("bits: 3"));

  process_.surroundings.environment.clear();
  const RunResult missing = process_.run({"pack", "--config", path_ + "x"}, commands_);
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_THAT(missing.error, HasSubstr("cannot open the config file: No such file"));

  const RunResult folder = process_.run({"pack", "--config", testing::TempDir()}, commands_);
  EXPECT_EQ(folder.exit_code, 3) << folder.error;

  write(std::string((1 << 20) + 1, '#'));
  const RunResult large = process_.run({"pack", "--config", path_}, commands_);
  EXPECT_THAT(large.error, HasSubstr("at most 1048576 bytes"));
}

TEST_F(ShowConfig, WarnsOfVariablesThatAreSlips) {
  process_.surroundings.environment = {{"ASSAY_BIT", "3"}, {"ASSAY_SHARED", "/x"}};

  const RunResult result = process_.run({"pack"}, commands_);

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.error,
            "warning: the variable ASSAY_BIT belongs to no option; did you mean \"ASSAY_BITS\"?\n");
}

}  // namespace
}  // namespace assay::cli
