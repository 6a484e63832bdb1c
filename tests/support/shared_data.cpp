#include "tests/support/shared_data.h"

#include <cstdlib>
#include <filesystem>

namespace assay::test {

std::optional<std::string> shared_path(std::string_view relative) {
  const char* folder = std::getenv("ASSAY_SHARED");
  if (folder == nullptr || *folder == '\0') return std::nullopt;
  const std::filesystem::path path = std::filesystem::path(folder) / relative;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path.string();
}

std::string source_path(std::string_view relative) {
  return (std::filesystem::path(ASSAY_SOURCE_DIR) / relative).string();
}

}  // namespace assay::test
