#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace assay::test {

/// What a shell command left.
struct ShellResult {
  int exit_code = -1;  // 128 + n if signal n ended it
  std::string out, error;
};

/// Runs the program as a shell does, in an empty folder.
class Program : public testing::Test {
 protected:
  /// A bash command in which `assay` is the program under test, and $program its path.
  ShellResult shell(const std::string& command) const;
  /// The words that completion offers for the last one.
  std::vector<std::string> completions(const std::string& words) const;

  TemporaryDirectory directory_;
};

}  // namespace assay::test
