#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "convert/core/json.h"
#include "tests/cli/program_fixture.h"

namespace assay {
namespace {

using test::Program;
using test::ShellResult;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// The commands of the index.
class EveryCommand : public Program {
 protected:
  EveryCommand() : commands_(completions("''")) {
    std::erase(commands_, "help");
    EXPECT_GE(commands_.size(), 3u);
  }
  std::vector<std::string> commands_;
};

TEST_F(Program, VersionIsOneLineOrOneDocument) {
  const ShellResult text = shell("assay version"), json = shell("assay version --json");

  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, testing::MatchesRegex("assay [0-9]+\\.[0-9]+\\.[0-9]+ \\(git .*\\)\n"));
  EXPECT_EQ(shell("assay --version").out, text.out);
  EXPECT_EQ(parse_json(json.out, "out").at("name"), Json("assay"));
  EXPECT_EQ(text.error + json.error, "");
}

TEST_F(Program, EnvNamesLibrariesWithLicences) {
  const ShellResult result = shell("assay env --json");

  EXPECT_EQ(result.exit_code, 0);
  const Json document = parse_json(result.out, "out");
  for (const Json& library : document.at("libraries").as_array()) {
    EXPECT_NE(library.at("version").as_string(), "") << library.at("name").as_string();
    EXPECT_NE(library.at("licence").as_string(), "") << library.at("name").as_string();
  }
  EXPECT_THAT(document.at("cpu_level").as_string(), StartsWith("x86-64-v"));
}

TEST_F(EveryCommand, HelpFitsEightyColumnsAndEndsWithZero) {
  for (const std::string& command : commands_) {
    const ShellResult result = shell("assay " + command + " --help-all");

    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_THAT(result.out, StartsWith("Usage: assay " + command)) << command;
    EXPECT_THAT(result.out, HasSubstr("\nExamples:\n")) << command;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("  assay ")) continue;  // examples are not broken
      const auto n_columns = std::count_if(line.begin(), line.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;
      });
      EXPECT_LE(n_columns, 80) << line;
    }
  }
}

TEST_F(EveryCommand, ExamplesOfTheHelpParse) {
  for (const std::string& command : commands_) {
    const std::string help = shell("assay " + command + " --help").out;
    std::istringstream lines(help.substr(help.find("\nExamples:\n")));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  assay ")) continue;
      const std::string words = line.substr(0, line.find_first_of("|>"));

      EXPECT_EQ(shell(words + " --show-config").exit_code, 0) << line << shell(words).error;
    }
  }
}

TEST_F(EveryCommand, Case_B80_UnknownOptionEndsWithTwoAndNothingOnStandardOutput) {
  for (const std::string& command : commands_) {
    const ShellResult result = shell("assay " + command + " --no-such-option");

    EXPECT_EQ(result.exit_code, 2) << command;
    EXPECT_EQ(result.out, "") << command;
    EXPECT_THAT(result.error, HasSubstr("Try: assay " + command + " --help")) << command;
  }
}

TEST_F(EveryCommand, Case_B80_MissingInputEndsWithAnErrorAndNoSuccessLine) {
  for (const std::string& command : commands_) {
    const std::string usage = shell("assay " + command + " --help").out;
    if (usage.substr(0, usage.find('\n')).find(" MODEL") == std::string::npos) continue;

    const ShellResult result = shell("assay " + command + " no-such-folder no-such-other");

    EXPECT_THAT(result.exit_code, testing::AnyOf(2, 3)) << command << result.error;
    EXPECT_EQ(result.out, "") << command;
    EXPECT_THAT(result.error, HasSubstr("error: ")) << command;
  }
}

TEST_F(Program, Case_B80_FullAndClosedStandardOutput) {
  EXPECT_EQ(shell("assay env > /dev/full").exit_code, 6);
  EXPECT_THAT(shell("assay env > /dev/full").error, HasSubstr("standard output: cannot write"));
  EXPECT_EQ(shell("assay env >&-").exit_code, 3);
  const ShellResult closed_pipe = shell("assay env | true; echo ${PIPESTATUS[0]}");
  EXPECT_THAT(closed_pipe.out, testing::AnyOf("0\n", "141\n"));  // 0: written before true ended
  EXPECT_EQ(closed_pipe.error, "");
}

TEST_F(Program, Case_B82_FullLogFile) {
  const ShellResult result = shell("assay env --log-file /nowhere/log");

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "");
}

TEST_F(Program, JsonIsOneDocumentInAnyCase) {
  const Json error = parse_json(shell("assay nope --json").out, "stdout");
  const Json script = parse_json(shell("assay completion bash --json").out, "stdout");

  EXPECT_EQ(error.at("error").at("exit_code"), Json(2));
  EXPECT_EQ(script.at("script").as_string(), shell("assay completion bash").out);
}

TEST_F(Program, NoColourOutsideTerminals) {
  EXPECT_THAT(shell("assay nothing").error, Not(HasSubstr("\x1b")));
}

TEST_F(Program, HelpUsesTheWidthOfTheVariable) {
  const std::string narrow = shell("COLUMNS=50 assay env --help").out;

  std::istringstream lines(narrow);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 50u) << line;
}

TEST_F(Program, BashCompletionOffersCommandsAndWords) {
  const std::string prefix = "PATH=\"$(dirname " ASSAY_PROGRAM
                             "):$PATH\"; unset -f assay; source <(assay completion bash);";

  EXPECT_EQ(
      shell(prefix + "COMP_WORDS=(assay vers); COMP_CWORD=1; _assay; echo ${COMPREPLY[0]}").out,
      "version\n");
  EXPECT_EQ(shell(prefix + "COMP_WORDS=(assay env --color = ne); COMP_CWORD=4; _assay; "
                           "echo ${COMPREPLY[@]}")
                .out,
            "never\n");
}

}  // namespace
}  // namespace assay
