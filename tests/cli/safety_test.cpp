// What the program may never do to the files of its user.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "convert/core/file.h"
#include "convert/core/sha256.h"
#include "tests/cli/program_fixture.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::ShellResult;
using testing::HasSubstr;

class Safety : public test::Program {
 protected:
  Safety() { test::make_tiny_model().write(path("model")); }

  std::string path(const std::string& name) const { return directory_.file(name); }
  std::string model_hash() const { return sha256_of_file(path("model/model.safetensors")); }
};

TEST_F(Safety, NoCommandWritesOverItsInput) {
  const std::string before = model_hash(), config = read_text_file(path("model/config.json"));
  shell("cp model/tokenizer.json text");
  for (const char* command : {
           "assay quantize model --algorithm rtn --group-size 32 --out model --force",
           "assay quantize model --algorithm rtn --group-size 32 --out model --resume",
           "assay quantize model --algorithm rtn --group-size 32 --out . --force",
           "assay quantize model --algorithm rtn --group-size 32 --out q --report "
           "model/config.json",
           "assay convert model --out model/model.safetensors --force",
           "assay convert model --out m.gguf --log-file model/config.json",
           "assay calibrate model --data text --window-length 8 --out model/model.safetensors",
           "ln -s text text.npy; assay calibrate model --data text --window-length 8 "
           "--out text.npy",
           "assay verify-equivalence model model --json-out model/config.json",
           "assay verify-equivalence model model --junit model/model.safetensors",
       }) {
    const ShellResult result = shell(command);

    EXPECT_EQ(result.exit_code, 2) << command << "\n" << result.error;
    EXPECT_EQ(model_hash(), before) << command;
    EXPECT_EQ(read_text_file(path("model/config.json")), config) << command;
  }
}

TEST_F(Safety, AFolderForSpilledActivationsMayHoldTheOutput) {
  shell("cp model/tokenizer.json text; mkdir runs");

  const ShellResult result = shell(
      "assay quantize model --calibration text --windows 2 --window-length 8 --group-size 32 "
      "--out runs/q --spill-dir runs --activation-memory 1");

  EXPECT_EQ(result.exit_code, 0) << result.error;
}

TEST_F(Safety, ForceAndResumeReplaceModelsOnly) {
  std::filesystem::create_directories(path("home/documents"));
  std::filesystem::create_directories(path("empty"));
  for (const std::string option : {"--force", "--resume"}) {
    const ShellResult result =
        shell("assay quantize model --algorithm rtn --group-size 32 --out home " + option);

    EXPECT_EQ(result.exit_code, 2) << option;
    EXPECT_THAT(result.error, HasSubstr("home: is no model folder, and would be lost"));
    EXPECT_TRUE(std::filesystem::exists(path("home/documents")));
  }
  EXPECT_EQ(
      shell("assay quantize model --algorithm rtn --group-size 32 --out empty --force").exit_code,
      0);
}

TEST_F(Safety, ResumeDoesNotReplaceAModelThatIsNoResult) {
  test::make_tiny_model().write(path("other"));

  const ShellResult result =
      shell("assay quantize model --algorithm rtn --group-size 32 --out other --resume");

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("other: is no result that --resume could go on with"));
}

TEST_F(Safety, ALinkThatLeadsNowhereIsSeenBeforeTheWork) {
  std::filesystem::create_symlink("nowhere", path("out"));

  const ShellResult result =
      shell("assay quantize model --algorithm rtn --group-size 32 --out out");

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("out: exists already"));
  EXPECT_FALSE(file_exists(path("out.state")));
}

TEST_F(Safety, ReportsReplaceReportsOnly) {
  ASSERT_EQ(shell("assay quantize model --algorithm rtn --group-size 32 --out q").exit_code, 0);
  const std::string config = read_text_file(path("q/config.json"));

  const ShellResult result = shell("assay report q --out q/config.html");

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("q/config.json would be lost"));
  EXPECT_EQ(read_text_file(path("q/config.json")), config);
  EXPECT_EQ(shell("assay report q && assay report q").exit_code, 0);
}

// The number of a closed descriptor goes to the next file that is opened; messages must not follow.
TEST_F(Safety, ClosedStandardDescriptorsChangeNoByteOfAFile) {
  ASSERT_EQ(shell("assay convert model --out open.gguf").exit_code, 0);
  const std::string expected = sha256_of_file(path("open.gguf"));
  for (const std::string closed : {"<&-", ">&-", "2>&-", "<&- >&- 2>&-"}) {
    const ShellResult result =
        shell("assay convert model --out closed.gguf --force --progress plain " + closed);

    // Results that cannot be told are no success.
    const bool tells = closed == "<&-" || closed == "2>&-";
    EXPECT_EQ(result.exit_code, tells ? 0 : 3) << closed;
    EXPECT_EQ(sha256_of_file(path("closed.gguf")), expected) << closed;
  }
}

// /dev/null as the name of a file that nobody wants, written as root, would be a file from then on.
TEST_F(Safety, DevicesAndPipesAreNotReplacedByFiles) {
  ASSERT_EQ(shell("mkfifo pipe.npy && ln -s /proc/self/fd/1 stdout").exit_code, 0);
  const std::string verify = "assay verify-equivalence model model --json-out stdout";

  EXPECT_THAT(shell(verify + " | cat").out, HasSubstr("\"kind\": \"assay-verification\""));
  EXPECT_EQ(shell(verify + " > file").exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(path("stdout")));

  shell("cp model/tokenizer.json text");
  EXPECT_EQ(shell("assay calibrate model --data text --window-length 8 --out pipe.npy").exit_code,
            3);
  EXPECT_NE(shell("assay convert model --out pipe.npy --force").exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe.npy")));
}

TEST_F(Safety, NoFileGetsTheNameOfStandardOutput) {
  for (const char* command : {"convert model --out -", "quantize model --out -",
                              "report model -o -", "verify-equivalence model model --json-out -"}) {
    const ShellResult result = shell(std::string("assay ") + command);

    EXPECT_EQ(result.exit_code, 2) << command;
    EXPECT_THAT(result.error, HasSubstr(" -: nothing is written to standard output")) << command;
    EXPECT_FALSE(file_exists(path("-"))) << command;
  }
}

TEST_F(Safety, AnOutputThatHasNoPlaceIsSeenBeforeTheWork) {
  shell("cp model/tokenizer.json text; mkdir folder.npy");
  for (const char* command : {
           "assay verify-equivalence model model --json-out no/verdict.json",
           "assay verify-equivalence model model --junit no/verdict.xml",
           "assay calibrate model --data text --window-length 8 --out no/ids.npy",
           "assay calibrate model --data text --window-length 8 --out folder.npy",
           "assay calibrate model --data text --window-length 8 --imatrix-out no/imatrix.gguf",
           "assay report model --out no/report.html",
       }) {
    const ShellResult result = shell(command);

    EXPECT_EQ(result.exit_code, 3) << command;
    EXPECT_THAT(result.error,
                testing::StartsWith("error: "))  // and no line of progress before it
        << command;
    EXPECT_THAT(result.error, testing::AnyOf(HasSubstr("there is no folder no to write into"),
                                             HasSubstr("is a folder, expected the name")))
        << command;
  }
}

// Results are written under their name with ".partial" behind it first.
TEST_F(Safety, ANameThatIsTooLongIsSeenBeforeTheWork) {
  shell("cp model/tokenizer.json text");
  const std::string name(249, 'a');
  for (const std::string& command : {
           "assay quantize model --algorithm rtn --group-size 32 --out " + name,
           "assay quantize model --algorithm rtn --group-size 32 --out q --report " + name,
           "assay convert model --out " + name,
           "assay convert model --to hf --out " + name,
           "assay calibrate model --data text --window-length 8 --out " + name.substr(4) + ".npy",
           "assay verify-equivalence model model --json-out " + name,
       }) {
    const ShellResult result = shell(command);

    EXPECT_EQ(result.exit_code, 3) << command;
    EXPECT_THAT(result.error, testing::StartsWith("error: ")) << command;
    EXPECT_THAT(result.error, HasSubstr("File name too long")) << command;
    EXPECT_FALSE(file_exists(path("q"))) << command;
  }
}

TEST_F(Safety, TheReportOfAQuantizationHasItsPlaceBeforeTheWork) {
  const std::string quantize = "assay quantize model --algorithm rtn --group-size 32 --out q ";
  shell("mkdir folder; touch file");

  for (const char* report : {"folder", "file/r.json"}) {
    EXPECT_EQ(shell(quantize + "--report " + report).exit_code, 3) << report;
    EXPECT_FALSE(file_exists(path("q"))) << report;
    EXPECT_FALSE(file_exists(path("q.state"))) << report;
  }
  for (const char* report : {"q/r.json", "new/folder/r.json"}) {
    EXPECT_EQ(shell(quantize + "--force --report " + report).exit_code, 0) << report;
    EXPECT_TRUE(file_exists(path(report))) << report;
  }
}

TEST_F(Safety, ADryRunRefusesWhatTheRunWouldRefuse) {
  const std::string quantize = "assay quantize model --algorithm rtn --group-size 32 --out q";
  ASSERT_EQ(shell(quantize).exit_code, 0);

  EXPECT_EQ(shell(quantize + " --dry-run").exit_code, 2);
  EXPECT_EQ(shell(quantize + " --dry-run --force").exit_code, 0);
}

TEST_F(Safety, TokenFilesAreReplacedOnlyByForce) {
  const std::string calibrate = "assay calibrate model --data text --window-length 8 --out ";
  shell("cp model/tokenizer.json text");
  ASSERT_EQ(shell(calibrate + "ids.npy").exit_code, 0);

  EXPECT_EQ(shell(calibrate + "ids.npy").exit_code, 2);
  EXPECT_EQ(shell(calibrate + "ids.npy --force").exit_code, 0);
  EXPECT_THAT(shell(calibrate + "ids.txt").error, HasSubstr("ends in .safetensors or .npy"));
}

TEST_F(Safety, CalibrateSaysThatItTakesNoGgufFile) {
  ASSERT_EQ(shell("cp model/tokenizer.json text; assay convert model --out m.gguf").exit_code, 0);

  const ShellResult result = shell("assay calibrate m.gguf --data text --out ids.npy");

  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.error, HasSubstr("m.gguf: is a GGUF file, expected a model folder"));
}

TEST_F(Safety, QuantizeTellsWhatToTry) {
  const std::string quantize = "assay quantize model --algorithm rtn --group-size 32 --out q ";

  EXPECT_THAT(shell(quantize + "--skip q_proj").error,
              HasSubstr("named like model.layers.0.self_attn.q_proj, and * stands for any"));
  EXPECT_THAT(shell(quantize + "--format gptq --scheme W8A16_ASYM").error,
              HasSubstr("use --scheme W8A16 or"));
}

TEST_F(Safety, APromptMayComeThroughAPipe) {
  const ShellResult piped = shell("assay generate model -n 4 -f <(printf abc)"),
                    given = shell("assay generate model -n 4 -p abc");

  EXPECT_EQ(piped.exit_code, 0) << piped.error;
  EXPECT_EQ(piped.out, given.out);
}

// ---- damage to a result ----

class Damage : public Safety {
 protected:
  Damage() {
    EXPECT_EQ(shell("assay quantize model --algorithm rtn --group-size 32 --out q").exit_code, 0);
  }

  ShellResult check() const { return shell("assay inspect q --check"); }
};

TEST_F(Damage, AResultAgreesWithItsManifest) {
  const ShellResult result = check();

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("No problems found."));
  EXPECT_THAT(result.out, HasSubstr("tensors, and the hashes of assay_manifest.json."));
}

TEST_F(Damage, OneFlippedBitIsFoundInItsTensor) {
  std::string bytes = read_text_file(path("q/model.safetensors"));
  char& byte = bytes[bytes.size() / 2];  // the header is short
  byte = static_cast<char>(byte ^ 1);
  write_text_file(path("q/model.safetensors"), bytes);

  const ShellResult result = check();

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, testing::ContainsRegex("tensor \"[a-z_.0-9]+\": SHA-256 [0-9a-f]{64}, "
                                                 "assay_manifest.json says [0-9a-f]{64}"));
}

TEST_F(Damage, FilesAreComparedTooAndMayBeMissing) {
  write_text_file(path("q/tokenizer.json"), read_text_file(path("q/tokenizer.json")) + "\n");
  std::filesystem::remove(path("q/tokenizer_config.json"));

  const ShellResult result = check();

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, HasSubstr("file \"tokenizer.json\": SHA-256 "));
  EXPECT_THAT(result.out, HasSubstr("file \"tokenizer_config.json\" is missing"));
}

TEST_F(Damage, AManifestThatCannotBeReadIsAProblemItself) {
  const std::string manifest = read_text_file(path("q/assay_manifest.json"));
  for (const std::string& damaged :
       {manifest.substr(0, manifest.size() / 2), std::string("{}"), std::string("[]"),
        std::string(R"({"tensors":{"a":1},"files":{}})"),
        std::string(R"({"tensors":[],"files":{}})"),
        std::string(R"({"tensors":{},"files":{"../model/config.json":{"sha256":"0"}}})")}) {
    write_text_file(path("q/assay_manifest.json"), damaged);

    const ShellResult result = check();

    EXPECT_EQ(result.exit_code, 3) << damaged.substr(0, 60);
    EXPECT_THAT(result.out, HasSubstr("assay_manifest.json")) << damaged.substr(0, 60);
  }
}

// ---- stopping ----

TEST_F(Safety, ASignalEndsGenerationWithTheTextSoFar) {
  test::make_tiny_model({.config = {{"max_position_embeddings", 200000}}}).write(path("long"));

  const ShellResult result = shell(
      "mkfifo pipe; \"$program\" generate long --token-ids 0,9 --raw-ids --ignore-eos -n 150000 "
      "> pipe & exec 3< pipe; read -u 3 first; kill -TERM $!; cat <&3 > rest; wait $!; "
      "echo \"$first $?\"");

  EXPECT_THAT(result.out, testing::MatchesRegex("[0-9]+ 75\n"));
  EXPECT_THAT(result.error, HasSubstr("stopped after "));
}

}  // namespace
}  // namespace assay
