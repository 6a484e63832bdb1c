#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace assay::test {

/// The folder of large reference data named by the environment variable ASSAY_SHARED, joined with
/// `relative`; empty if the variable is not set or there is no such file.
std::optional<std::string> shared_path(std::string_view relative);

/// A file of the repository.
std::string source_path(std::string_view relative);

}  // namespace assay::test

/// Inside a test: `ASSAY_SHARED_OR_SKIP(path, "models/llama-tiny");` declares `path` or skips.
#define ASSAY_SHARED_OR_SKIP(variable, relative)                                            \
  const std::optional<std::string> variable##_found = ::assay::test::shared_path(relative); \
  if (!variable##_found) {                                                                  \
    GTEST_SKIP() << "needs " << relative << " in the folder that ASSAY_SHARED names";       \
  }                                                                                         \
  const std::string& variable = *variable##_found
