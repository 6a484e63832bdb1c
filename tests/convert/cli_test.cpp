#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <new>

#include "cli_fixture.h"
#include "convert/cli/option_table.h"
#include "convert/cli/suggest.h"
#include "convert/core/parallel.h"

namespace assay::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// A command that prints what it got: "bits=4 (default)".
ExitCode print_arguments(const Arguments& arguments, Terminal& terminal) {
  for (const char* name :
       {"MODEL", "FILE", "bits", "damp", "act-order", "out", "exclude", "memory", "resume"}) {
    std::string values;
    for (const std::string& value : arguments.list(name)) values += value + "|";
    terminal.print(std::string(name) + "=" + values + " (" + arguments.place(name) + ")\n");
  }
  return ExitCode::kDone;
}

Command pack_command() {
  return {
      .name = "pack",
      .brief = "Pack a model",
      .description =
          "Packs a model for the tests of the command line, with a text that is long "
          "enough to be broken into more than one line.",
      .positionals = {{.name = "MODEL", .help = "model folder"},
                      {.name = "FILE", .help = "more", .optional = true, .repeatable = true}},
      .options =
          {
              {.name = "bits",
               .short_name = 'b',
               .kind = ValueKind::kInteger,
               .value_name = "N",
               .default_value = "4",
               .help = "Bits per weight",
               .group = "Packing",
               .choices = {"4", "8"}},
              {.name = "damp",
               .kind = ValueKind::kNumber,
               .value_name = "X",
               .default_value = "0.01",
               .help = "Damping, part of the diagonal",
               .group = "Packing",
               .minimum = 0,
               .maximum = 1},
              {.name = "act-order",
               .value_name = "ORDER",
               .default_value = "static",
               .group = "Packing",
               .expert = true,
               .choices = {"none", "static"}},
              {.name = "out",
               .short_name = 'o',
               .kind = ValueKind::kPath,
               .value_name = "DIR",
               .help = "Output folder",
               .group = "Output"},
              {.name = "exclude", .value_name = "NAME", .group = "Packing", .repeatable = true},
              {.name = "memory",
               .kind = ValueKind::kBytes,
               .value_name = "SIZE",
               .default_value = "1GiB",
               .group = "Resources"},
              {.name = "resume", .kind = ValueKind::kFlag, .group = "Output"},
          },
      .examples = {{"assay pack model --out packed", "Packs it."}},
      .run = print_arguments,
  };
}

class Cli : public testing::Test {
 protected:
  RunResult run(const std::vector<std::string>& words) {
    const std::vector<const Command*> commands = {&pack_, &other_};
    return process.run(words, commands);
  }

  Command pack_ = pack_command();
  Command other_ = {.name = "verify-equivalence", .brief = "Compare", .run = print_arguments};
  FakeProcess process;
};

TEST_F(Cli, ReadsOptionsPositionalsAndDefaults) {
  const RunResult result =
      run({"pack", "m", "f1", "-b8", "--damp=0.5", "f2", "--exclude", "a", "--exclude", "b"});

  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.out, HasSubstr("MODEL=m| (command line)\n"));
  EXPECT_THAT(result.out, HasSubstr("FILE=f1|f2| (command line)\n"));
  EXPECT_THAT(result.out, HasSubstr("bits=8| (command line)\n"));
  EXPECT_THAT(result.out, HasSubstr("damp=0.5| (command line)\n"));
  EXPECT_THAT(result.out, HasSubstr("act-order=static| (default)\n"));
  EXPECT_THAT(result.out, HasSubstr("exclude=a|b| (command line)\n"));
  EXPECT_THAT(result.out, HasSubstr("resume=false| (default)\n"));
}

TEST_F(Cli, EnvironmentStandsBetweenDefaultAndCommandLine) {
  process.surroundings.environment = {{"ASSAY_BITS", "8"},
                                      {"ASSAY_DAMP", "0.25"},
                                      {"ASSAY_RESUME", "On"},
                                      {"ASSAY_EXCLUDE", "x;y"},
                                      {"ASSAY_OUT", ""}};

  const RunResult result = run({"pack", "m", "--damp", "0.5"});

  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.out, HasSubstr("bits=8| (ASSAY_BITS)\n"));
  EXPECT_THAT(result.out, HasSubstr("damp=0.5| (command line)\n"));
  EXPECT_THAT(result.out, HasSubstr("resume=true| (ASSAY_RESUME)\n"));
  EXPECT_THAT(result.out, HasSubstr("exclude=x|y| (ASSAY_EXCLUDE)\n"));
  EXPECT_THAT(result.out, HasSubstr("out= (default)\n"));
}

TEST_F(Cli, Case_B74_SwitchesInTheEnvironmentAreReadByValueNotByPresence) {
  const auto resume = [&](std::string_view value) {
    process.surroundings.environment = {{"ASSAY_RESUME", std::string(value)}};
    return run({"pack", "m"});
  };

  for (const char* off : {"0", "false", "FALSE", "off", "no", ""}) {
    EXPECT_THAT(resume(off).out, HasSubstr("resume=false|")) << off;
  }
  for (const char* on : {"1", "true", "ON", "yes"}) {
    EXPECT_THAT(resume(on).out, HasSubstr("resume=true|")) << on;
  }
  EXPECT_EQ(resume("perhaps").exit_code, 2);
}

TEST_F(Cli, CommandLineSwitchesAFlagOfTheEnvironmentOff) {
  process.surroundings.environment = {{"ASSAY_RESUME", "1"}};

  const RunResult result = run({"pack", "m", "--no-resume"});

  EXPECT_THAT(result.out, HasSubstr("resume=false| (command line)\n"));
}

TEST_F(Cli, WordsAfterTwoDashesAreNoOptions) {
  const RunResult result = run({"pack", "--", "--bits", "-x"});

  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.out, HasSubstr("MODEL=--bits| (command line)\nFILE=-x|"));
}

struct BadLine {
  const char* name;
  std::vector<std::string> words;
  const char* message;
};

class BadCommandLine : public Cli, public testing::WithParamInterface<BadLine> {};

/// Every usage error ends with 2, says what was expected, says which help to read, and prints
/// nothing on standard output.
TEST_P(BadCommandLine, IsAUsageErrorThatNamesTheExpectation) {
  const RunResult result = run(GetParam().words);

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr(GetParam().message));
  EXPECT_THAT(result.error, HasSubstr("--help"));
  EXPECT_EQ(result.out, "");
}

INSTANTIATE_TEST_SUITE_P(
    Cli, BadCommandLine,
    testing::Values(
        BadLine{
            "Choice", {"pack", "m", "--bits", "5"}, "--bits: expected one of 4, 8, found \"5\""},
        BadLine{"ChoiceWord",
                {"pack", "m", "--act-order", "statik"},
                "found \"statik\"; did you mean \"static\"?"},
        BadLine{"Range",
                {"pack", "m", "--damp", "1.5"},
                "--damp: expected a number from 0 to 1, found \"1.5\""},
        BadLine{"NotANumber", {"pack", "m", "--damp", "nan"}, "expected a number"},
        BadLine{"NegativeValue", {"pack", "m", "--damp", "-0.5"}, "found \"-0.5\""},
        BadLine{"Bytes", {"pack", "m", "--memory", "5Q"}, "expected a size such as 512M or 2GiB"},
        BadLine{"UnknownOption",
                {"pack", "m", "--bist", "4"},
                "there is no option \"--bist\"; did you mean \"--bits\"?"},
        BadLine{"NoGuessing", {"pack", "m", "--bit", "4"}, "did you mean \"--bits\"?"},
        BadLine{"UnknownLetter", {"pack", "m", "-z"}, "there is no option \"-z\""},
        BadLine{"NoName", {"pack", "m", "--=x"}, "there is no option \"--=x\""},
        BadLine{"Twice", {"pack", "m", "--bits", "4", "-b", "8"}, "--bits is given twice"},
        BadLine{"MissingValue", {"pack", "m", "--out"}, "--out: expected a path, found nothing"},
        BadLine{"EmptyValue", {"pack", "m", "--out="}, "--out: expected a path, found nothing"},
        BadLine{
            "OptionAsValue", {"pack", "m", "--out", "--resume"}, "found the option \"--resume\""},
        BadLine{"ShortWithEqual", {"pack", "m", "-o=x"}, "-o x"},
        BadLine{"FlagWithValue", {"pack", "m", "--resume=1"}, "--resume takes no value"},
        BadLine{"FlagAndItsOpposite", {"pack", "m", "--resume", "--no-resume"}, "given twice"},
        BadLine{"MissingPositional", {"pack"}, "MODEL is missing: model folder"},
        BadLine{"EmptyPositional", {"pack", ""}, "MODEL: expected a value"},
        BadLine{"ExtraPositional", {"verify-equivalence", "x"}, "unexpected argument \"x\""},
        BadLine{"UnknownCommand",
                {"verify-equivalense"},
                "there is no command \"verify-equivalense\"; did you mean \"verify-equivalence\"?"},
        BadLine{"PrefixOfCommand", {"verify"}, "did you mean \"verify-equivalence\"?"},
        BadLine{"OptionBeforeCommand", {"--threads", "2", "pack"}, "expected a command"},
        BadLine{"TooLarge",
                {"pack", "m", "-t", "99999999999999999999"},
                "integers go to 9223372036854775807"},
        BadLine{"Threads", {"pack", "m", "-t", "-1"}, "--threads: expected an integer from 0"},
        BadLine{"QuietAndVerbose", {"pack", "m", "-q", "-v"}, "contradict"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(Cli, WrongEnvironmentValueNamesTheVariable) {
  process.surroundings.environment = {{"ASSAY_BITS", "three"}};

  const RunResult result = run({"pack", "m"});

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("ASSAY_BITS: expected one of 4, 8, found \"three\""));
}

TEST_F(Cli, PrintsTheIndexOnErrorWithoutACommandAndOnOutputWithHelp) {
  const RunResult nothing = run({});
  const RunResult help = run({"--help"});

  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_EQ(nothing.out, "");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.out, nothing.error);
  EXPECT_THAT(help.out, HasSubstr("pack                Pack a model"));
}

TEST_F(Cli, HelpFitsTheWidthAndShowsDefaultsAndExamples) {
  for (const int columns : {60, 80, 100}) {
    process.columns = columns;

    const RunResult result = run({"pack", "--help-all"});

    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr("Usage: assay pack MODEL [FILE...] [options]\n"));
    EXPECT_THAT(result.out, HasSubstr("[default: 4]"));
    EXPECT_THAT(result.out, HasSubstr("assay pack model --out packed"));
    size_t begin = 0;
    while (begin < result.out.size()) {
      const size_t end = result.out.find('\n', begin);
      EXPECT_LE(end - begin, static_cast<size_t>(columns)) << result.out.substr(begin, end - begin);
      begin = end + 1;
    }
  }
}

TEST_F(Cli, ExpertOptionsAreInHelpAllOnly) {
  const RunResult brief = run({"pack", "--help"}), all = run({"pack", "--help-all"});
  const RunResult same = run({"help", "pack"});

  EXPECT_THAT(brief.out, Not(HasSubstr("--act-order")));
  EXPECT_THAT(brief.out, HasSubstr("More options: assay pack --help-all"));
  EXPECT_THAT(all.out, HasSubstr("--act-order"));
  EXPECT_EQ(same.out, brief.out);
}

TEST_F(Cli, HelpOfHelpIsTheListOfCommands) {
  const std::string index = run({"--help"}).out;

  EXPECT_EQ(run({"help", "help"}).out, index);
  EXPECT_EQ(run({"help", "--help"}).out, index);
}

TEST_F(Cli, HelpNeedsNoValidArguments) {
  process.surroundings.environment = {{"ASSAY_BITS", "three"}};

  EXPECT_EQ(run({"pack", "-h"}).exit_code, 0);
}

TEST_F(Cli, SetsThreadsFromOptionOrOpenMpVariable) {
  run({"pack", "m", "--threads", "3"});
  EXPECT_EQ(n_threads(), 3);

  process.surroundings.environment = {{"OMP_NUM_THREADS", "2"}};
  run({"pack", "m"});
  EXPECT_EQ(n_threads(), 2);

  run({"pack", "m", "--threads", "1"});
  EXPECT_EQ(n_threads(), 1);
}

TEST_F(Cli, PassesIsaToTheHookAndReportsItsError) {
  std::vector<std::string> seen;
  process.hooks.set_isa = [&](const std::string& isa) {
    seen.push_back(isa);
    if (isa == "avx512") throw UnsupportedError("--isa avx512: this machine has no AVX-512");
  };

  EXPECT_EQ(run({"pack", "m"}).exit_code, 0);
  EXPECT_EQ(run({"pack", "m", "--isa", "avx512"}).exit_code, 7);
  EXPECT_THAT(seen, ElementsAre("auto", "avx512"));
}

// --- errors of commands ---

template <class E>
ExitCode throw_error(const Arguments&, Terminal&) {
  throw E("where: found, expected");
}
ExitCode throw_bad_alloc(const Arguments&, Terminal&) { throw std::bad_alloc(); }
ExitCode find_difference(const Arguments&, Terminal&) { return ExitCode::kDifference; }
ExitCode stop_reading(const Arguments&, Terminal& terminal) {
  terminal.print("data\n");
  return ExitCode::kDone;
}

TEST_F(Cli, Case_B80_EveryErrorEndsWithItsExitCode) {
  const std::vector<std::pair<ExitCode (*)(const Arguments&, Terminal&), int>> rows = {
      {find_difference, 1},
      {throw_error<UsageError>, 2},
      {throw_error<FormatError>, 3},
      {throw_error<FileError>, 3},
      {throw_error<ShapeError>, 3},
      {throw_error<NumericError>, 4},
      {throw_error<DeviceError>, 5},
      {throw_error<ResourceError>, 6},
      {throw_bad_alloc, 6},
      {throw_error<UnsupportedError>, 7},
      {throw_error<std::runtime_error>, 70},
      {throw_error<StoppedError>, 75},
  };
  for (const auto& [function, exit_code] : rows) {
    other_.run = function;

    const RunResult result = run({"verify-equivalence"});

    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_EQ(result.out, "");
    if (exit_code > 1) {  // stopping where the user asked is no error
      const std::string level = exit_code == 75 ? "warning" : "error";
      EXPECT_THAT(result.error, HasSubstr(level + ": assay verify-equivalence: "));
    }
    if (exit_code == 70) {
      EXPECT_THAT(result.error, HasSubstr("please report it"));
    }
  }
}

TEST_F(Cli, Case_B80_ClosedStandardOutputEndsQuietlyWith141) {
  other_.run = stop_reading;
  process.surroundings.write_out = [](std::string_view) { throw BrokenPipe(); };

  const RunResult result = run({"verify-equivalence"});

  EXPECT_EQ(result.exit_code, 141);
  EXPECT_EQ(result.error, "");
}

TEST_F(Cli, Case_B82_FullLogFileIsNoSuccess) {
  other_.run = [](const Arguments&, Terminal& terminal) {
    terminal.log(LogLevel::kInfo, "a line");
    return ExitCode::kDone;
  };

  const RunResult full = run({"verify-equivalence", "--log-file", "/dev/full"});
  const RunResult missing = run({"verify-equivalence", "--log-file", "/no/such/folder/log"});

  EXPECT_EQ(full.exit_code, 6);
  EXPECT_THAT(full.error, HasSubstr("/dev/full: cannot write to the log file, later lines are "
                                    "lost: No space left"));
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_THAT(missing.error, HasSubstr("/no/such/folder/log: cannot open the log file"));
}

// --- small parts ---

TEST(ClosestWord, FindsSlipsAndRefusesStrangers) {
  const std::vector<std::string> words = {"group-size", "bits", "quantize", "threads"};

  EXPECT_EQ(closest_word("group_size", words), "group-size");
  EXPECT_EQ(closest_word("grop-size", words), "group-size");
  EXPECT_EQ(closest_word("bist", words), "bits");
  EXPECT_EQ(closest_word("quan", words), "quantize");
  EXPECT_EQ(closest_word("xyz", words), "");
  EXPECT_EQ(closest_word("max-tokens", {"max-kld", "max-new-tokens", "tokens"}), "max-new-tokens");
  EXPECT_EQ(closest_word("tokens-max", {"max-new-tokens"}), "");
  EXPECT_EQ(closest_word("", words), "");
  EXPECT_EQ(closest_word(std::string(1000, 'a'), words), "");
}

TEST(ValueKinds, ReadSizesExactly) {
  const std::vector<std::pair<std::string, uint64_t>> rows = {
      {"0", 0},           {"512", 512},           {"1K", 1024}, {"1KB", 1000}, {"1.5GiB", 3u << 29},
      {"2g", 2ull << 30}, {"3TB", 3000000000000}, {"7b", 7},
  };
  for (const auto& [text, expected] : rows) {
    uint64_t value = 0;

    EXPECT_TRUE(parse_bytes(text, value)) << text;
    EXPECT_EQ(value, expected) << text;
  }
  for (const char* text :
       {"", "x", "-1", "1Q", "1iB", "1KiBs", "1 G", "inf", "nan", "9e99", "K", "99999999T"}) {
    uint64_t value = 0;

    EXPECT_FALSE(parse_bytes(text, value)) << text;
  }
}

TEST(ValueKinds, RefuseHalfNumbers) {
  int64_t integer = 0;
  double number = 0;

  for (const char* text : {"", " 1", "1 ", "+1", "0x10", "1.0", "99999999999999999999"}) {
    EXPECT_FALSE(parse_integer(text, integer)) << text;
  }
  for (const char* text : {"", "1,5", "inf", "nan", "1e999", "0x1p3"}) {
    EXPECT_FALSE(parse_number(text, number)) << text;
  }
  EXPECT_TRUE(parse_integer("-12", integer));
  EXPECT_TRUE(parse_number("1e-06", number));
}

TEST(Arguments, AskingForAnUndeclaredNumberIsOurOwnMistake) {
  const Arguments arguments;

  EXPECT_THROW(arguments.integer("bits"), std::logic_error);
  EXPECT_EQ(arguments.text("bits"), "");
  EXPECT_FALSE(arguments.flag("bits"));
}

TEST(Arguments, WriteTypedJson) {
  Arguments arguments;
  const auto origin = Arguments::Origin::kCommandLine;
  arguments.set("bits", {"4"}, origin, {.kind = ValueKind::kInteger});
  arguments.set("damp", {"0.01"}, origin, {.kind = ValueKind::kNumber});
  arguments.set("memory", {"2K"}, origin, {.kind = ValueKind::kBytes});
  arguments.set("resume", {"true"}, origin, {.kind = ValueKind::kFlag});
  arguments.set("exclude", {"a"}, origin, {.kind = ValueKind::kText, .is_list = true});
  arguments.set("out", {}, origin);

  EXPECT_EQ(arguments.to_json().dump(0),
            R"({"bits":4,"damp":0.01,"exclude":["a"],"memory":2048,"out":null,"resume":true})");
}

}  // namespace
}  // namespace assay::cli
