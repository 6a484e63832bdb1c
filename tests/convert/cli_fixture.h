#pragma once

#include <string>
#include <vector>

#include "convert/cli/program.h"

namespace assay::cli {

/// What a run of the program left behind.
struct RunResult {
  int exit_code = -1;
  std::string out;
  std::string error;
};

/// Runs the program with its streams captured, a clock that tests set, 80 columns and no terminal.
class FakeProcess {
 public:
  FakeProcess() {
    surroundings.columns = [this] { return columns; };
    surroundings.write_out = [this](std::string_view text) { result_.out += text; };
    surroundings.write_error = [this](std::string_view text) { result_.error += text; };
    surroundings.now = [this] { return time_s; };
  }

  RunResult run(const std::vector<std::string>& words,
                const std::vector<const Command*>& commands) {
    result_ = {};
    result_.exit_code = run_words(words, commands, hooks, surroundings);
    return result_;
  }

  Surroundings surroundings;
  ProgramHooks hooks;
  int columns = 80;
  double time_s = 0;

 private:
  RunResult result_;
};

}  // namespace assay::cli
