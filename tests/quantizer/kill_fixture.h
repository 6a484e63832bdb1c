#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/quantizer/run_fixture.h"

namespace assay::test {

/// Runs `assay quantize` as a process that meets a fault of its file system (ASSAY_FAULT), and
/// compares what a resumed run leaves with an undisturbed one.
class Kill : public testing::Test {
 protected:
  Kill();

  /// Exit code, or 128 + signal. `fault`: "kill:7", "enospc:7", "eio:7" or empty.
  int run(const std::string& fault, bool resume) const;
  /// Removes result, state and report.
  void clear() const;
  bool has_result() const;
  void expect_result() const;

  QuantizeRun fixture_;
  std::map<std::string, std::string> expected_;
};

}  // namespace assay::test
