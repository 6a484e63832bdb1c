#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli_fixture.h"
#include "convert/cli/completion.h"
#include "convert/cli/stream_terminal.h"

namespace assay::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class StreamTerminalTest : public testing::Test {
 protected:
  StreamTerminalTest() {
    surroundings_.columns = [] { return 80; };
    surroundings_.write_out = [this](std::string_view text) { out_ += text; };
    surroundings_.write_error = [this](std::string_view text) { error_ += text; };
    surroundings_.now = [this] { return time_s_.load(); };
  }

  std::string out_, error_;
  std::atomic<double> time_s_ = 100;
  Surroundings surroundings_;
};

TEST_F(StreamTerminalTest, SeparatesDataFromWords) {
  StreamTerminal terminal({}, surroundings_);

  terminal.print("data\n");
  terminal.log(LogLevel::kInfo, "info");
  terminal.log(LogLevel::kWarning, "careful");
  terminal.log(LogLevel::kDebug, "detail");

  EXPECT_EQ(out_, "data\n");
  EXPECT_EQ(error_, "info\nwarning: careful\n");
}

TEST_F(StreamTerminalTest, QuietKeepsWarningsAndVerboseAddsDetail) {
  StreamTerminal quiet({.quiet = true}, surroundings_);
  quiet.log(LogLevel::kInfo, "info");
  quiet.log(LogLevel::kWarning, "careful");
  EXPECT_EQ(error_, "warning: careful\n");

  error_.clear();
  StreamTerminal verbose({.verbose = true, .color = true}, surroundings_);
  verbose.log(LogLevel::kDebug, "detail");
  verbose.log(LogLevel::kError, "bad");
  EXPECT_EQ(error_, "debug: detail\n\x1b[1;31merror:\x1b[0m bad\n");
}

TEST_F(StreamTerminalTest, Case_B85_PlainLinesAreAtMostOnePerTenSeconds) {
  StreamTerminal terminal({.progress = ProgressStyle::kPlain}, surroundings_);
  {
    const auto progress = terminal.progress("Quantizing", 100);
    for (int step = 0; step <= 100; ++step) {
      progress->update(step, "layer " + std::to_string(step / 25));
      time_s_ = time_s_ + 0.3;
    }
  }

  EXPECT_EQ(error_,
            "Quantizing: layer 0, 0 %, 0:00 elapsed\n"
            "Quantizing: layer 1, 34 %, 0:10 elapsed, about 0:20 left\n"
            "Quantizing: layer 2, 68 %, 0:20 elapsed, about 0:10 left\n"
            "Quantizing: done in 0:30\n");
}

TEST_F(StreamTerminalTest, Case_B85_TheEstimateIsRightAfterATenthOfTheWork) {
  constexpr double kSecondsPerUnit = 10;
  StreamTerminal terminal({.progress = ProgressStyle::kPlain}, surroundings_);
  const auto progress = terminal.progress("Quantizing", 100);
  for (int done = 0; done <= 10; ++done) {
    progress->update(done, "layer " + std::to_string(done));
    time_s_ = time_s_ + kSecondsPerUnit;
  }

  EXPECT_THAT(error_, HasSubstr("layer 10, 10 %, 1:40 elapsed, about 15:00 left\n"));
}

TEST_F(StreamTerminalTest, Case_B85_QuietShowsNoProgress) {
  StreamTerminal terminal({.quiet = true, .progress = ProgressStyle::kNone}, surroundings_);
  {
    const auto progress = terminal.progress("Quantizing", 2);
    progress->update(1, "layer 1");
    time_s_ = time_s_ + 100;
    terminal.beat();
  }

  EXPECT_EQ(error_, "");
}

TEST_F(StreamTerminalTest, Case_B85_ALongStepStillGivesALineAMinute) {
  StreamTerminal terminal({.progress = ProgressStyle::kPlain}, surroundings_);
  const auto progress = terminal.progress("Quantizing", 4);
  progress->update(1, "layer 1");
  error_.clear();

  int n_lines = 0;
  for (int second = 0; second < 180; ++second) {
    time_s_ = time_s_ + 1;
    terminal.beat();
    n_lines += error_.empty() ? 0 : 1;
    error_.clear();
  }

  EXPECT_EQ(n_lines, 3);
}

TEST_F(StreamTerminalTest, Case_B80_NoSuccessLineAfterAFailure) {
  StreamTerminal terminal({.progress = ProgressStyle::kPlain}, surroundings_);
  try {
    const auto progress = terminal.progress("Quantizing", 2);
    progress->update(2, "layer 2");
    throw NumericError("layer 2: not positive definite");
  } catch (const NumericError&) {
  }
  {
    const auto progress = terminal.progress("Packing", 2);
    progress->update(1, "one");
  }

  EXPECT_THAT(error_, Not(HasSubstr("done")));
}

TEST_F(StreamTerminalTest, BarIsErasedAroundLinesAndFitsTheWidth) {
  surroundings_.stderr_is_tty = true;
  StreamTerminal terminal({.progress = ProgressStyle::kBar}, surroundings_);
  const auto progress = terminal.progress("Quantizing", 10);
  time_s_ = time_s_ + 10;

  progress->update(5, std::string(100, 'x'));
  const std::string drawn = error_;
  terminal.log(LogLevel::kInfo, "a line");

  ASSERT_TRUE(drawn.starts_with("\r\x1b[KQuantizing [============            ] xxx"));
  EXPECT_LE(drawn.size(), std::string("\r\x1b[K").size() + 79);
  EXPECT_EQ(error_, drawn + "\r\x1b[K" + "a line\n" + drawn);
}

TEST_F(StreamTerminalTest, InnerProgressIsShownWhileItLives) {
  StreamTerminal terminal({.progress = ProgressStyle::kPlain}, surroundings_);
  const auto outer = terminal.progress("outer", 2);
  outer->update(1, "a");
  {
    const auto inner = terminal.progress("inner", 2);
    inner->update(1, "b");
    time_s_ = time_s_ + 20;
    outer->update(1, "hidden");
  }
  outer->update(1, "c");

  EXPECT_THAT(error_, Not(HasSubstr("hidden")));
  EXPECT_THAT(error_, HasSubstr("inner: b"));
  EXPECT_THAT(error_, HasSubstr("outer: c"));
}

TEST_F(StreamTerminalTest, LogFileHoldsOneJsonObjectPerLine) {
  const std::string path = testing::TempDir() + "assay_log_test.jsonl";
  std::filesystem::remove(path);
  {
    StreamTerminal terminal({.quiet = true, .log_file = path}, surroundings_);
    terminal.log(LogLevel::kInfo, "said \"this\"");
    time_s_ = time_s_ + 1.5;
    terminal.progress("Quantizing", 2)->update(1, "layer 1");
  }

  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, R"({"elapsed_s":0.0,"level":"info","message":"said \"this\""})");
  std::getline(file, line);
  EXPECT_THAT(parse_json(line, "log").at("message").as_string(), HasSubstr("layer 1, 50 %"));
  std::filesystem::remove(path);
}

struct Look {
  std::string color, progress;
  EnvironmentMap environment;
  bool tty;
  bool expected_color;
  ProgressStyle expected_progress;
};

TEST(TerminalOptionsTest, FollowOptionsVariablesAndTerminal) {
  using enum ProgressStyle;
  const std::vector<Look> looks = {
      {"auto", "auto", {}, true, true, kBar},
      {"auto", "auto", {}, false, false, kPlain},
      {"auto", "auto", {{"NO_COLOR", "1"}}, true, false, kBar},
      {"auto", "auto", {{"NO_COLOR", ""}}, true, true, kBar},
      {"auto", "auto", {{"CLICOLOR_FORCE", "1"}}, false, true, kPlain},
      {"auto", "auto", {{"CLICOLOR_FORCE", "0"}}, false, false, kPlain},
      {"auto", "auto", {{"CLICOLOR_FORCE", "1"}, {"NO_COLOR", "1"}}, false, false, kPlain},
      {"auto", "auto", {{"TERM", "dumb"}}, true, false, kPlain},
      {"auto", "auto", {{"HF_HUB_DISABLE_PROGRESS_BARS", "YES"}}, true, true, kNone},
      {"auto", "auto", {{"HF_HUB_DISABLE_PROGRESS_BARS", "0"}}, true, true, kBar},
      {"always", "none", {{"NO_COLOR", "1"}}, false, true, kNone},
      {"never", "bar", {}, true, false, kBar},
      {"auto", "plain", {}, true, true, kPlain},
  };
  for (size_t i = 0; i < looks.size(); ++i) {
    const Look& look = looks[i];
    Surroundings surroundings;
    surroundings.environment = look.environment;
    surroundings.stderr_is_tty = look.tty;
    Arguments arguments;
    arguments.set("color", {look.color}, Arguments::Origin::kCommandLine);
    arguments.set("progress", {look.progress}, Arguments::Origin::kCommandLine);

    const TerminalOptions options = TerminalOptions::from(arguments, surroundings);

    EXPECT_EQ(options.color, look.expected_color) << i;
    EXPECT_EQ(options.progress, look.expected_progress) << i;
  }
}

TEST(FormatDuration, ShowsHoursOnlyWhereThereAreSome) {
  EXPECT_EQ(format_duration(0.4), "0:00");
  EXPECT_EQ(format_duration(65), "1:05");
  EXPECT_EQ(format_duration(7389), "2:03:09");
}

// --- JSON errors, completion ---

ExitCode fail(const Arguments&, Terminal&) { throw FormatError("m.safetensors: too short"); }
ExitCode fail_late(const Arguments&, Terminal& terminal) {
  terminal.print("{}\n");
  throw FormatError("m.safetensors: too short");
}

class Completion : public testing::Test {
 protected:
  std::vector<std::string> words(const std::vector<std::string>& typed) {
    std::vector<std::string> result;
    for (const Candidate& candidate : complete(typed, commands_)) result.push_back(candidate.word);
    return result;
  }

  Command pack_ = {.name = "pack",
                   .brief = "Pack a model",
                   .positionals = {{.name = "HOW", .choices = {"fast", "small"}}},
                   .options = {{.name = "order", .short_name = 'r', .choices = {"none", "static"}},
                               {.name = "out", .kind = ValueKind::kPath},
                               {.name = "outer", .repeatable = true}},
                   .run = fail};
  Command inspect_ = {.name = "inspect", .run = fail_late};
  std::vector<const Command*> commands_ = {&pack_, &inspect_};
  FakeProcess process_;
};

TEST_F(Completion, OffersCommandsOptionsAndWords) {
  EXPECT_THAT(words({""}), ElementsAre("pack", "inspect", "help"));
  EXPECT_THAT(words({}), ElementsAre("pack", "inspect", "help"));
  EXPECT_THAT(words({"pa"}), ElementsAre("pack"));
  EXPECT_THAT(words({"help", "in"}), ElementsAre("inspect"));
  EXPECT_THAT(words({"pack", "--o"}), ElementsAre("--order", "--out", "--outer"));
  EXPECT_THAT(words({"pack", "--out", "x", "--outer", "y", "--o"}),
              ElementsAre("--order", "--outer"));
  EXPECT_THAT(words({"pack", "--order", "s"}), ElementsAre("static"));
  EXPECT_THAT(words({"pack", "-r", ""}), ElementsAre("none", "static"));
  EXPECT_THAT(words({"pack", "--order=n"}), ElementsAre("--order=none"));
  EXPECT_THAT(words({"pack", "--order", "=", "n"}), ElementsAre("none"));
  EXPECT_THAT(words({"pack", "--order", "="}), ElementsAre("none", "static"));
  EXPECT_THAT(words({"pack", ""}), ElementsAre("fast", "small"));
  EXPECT_THAT(words({"pack", "--out", ""}), ElementsAre());
  EXPECT_THAT(words({"nothing", ""}), ElementsAre());
}

TEST_F(Completion, PrintsWordTabDescription) {
  const RunResult result = process_.run({"__complete", "pa"}, commands_);

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "pack\tPack a model\n");
}

TEST_F(Completion, WordsOfPositionalsAreChecked) {
  const RunResult result = process_.run({"pack", "smal"}, commands_);

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("HOW: expected one of fast, small, found \"smal\"; did you"));
}

TEST_F(Completion, JsonModePrintsExactlyOneDocumentWhenARunFails) {
  const RunResult early = process_.run({"pack", "fast", "--json"}, commands_);
  EXPECT_EQ(early.exit_code, 3);
  EXPECT_EQ(parse_json(early.out, "out").at("error").at("message").as_string(),
            "m.safetensors: too short");

  const RunResult late = process_.run({"inspect", "--json"}, commands_);
  EXPECT_EQ(late.exit_code, 3);
  EXPECT_EQ(late.out, "{}\n");

  const RunResult usage = process_.run({"pack", "--json", "--bits"}, commands_);
  EXPECT_EQ(usage.exit_code, 2);
  EXPECT_EQ(parse_json(usage.out, "out").at("error").at("exit_code"), Json(2));
}

}  // namespace
}  // namespace assay::cli
