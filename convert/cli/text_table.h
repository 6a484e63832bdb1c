#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace assay::cli {

/// Rows of words in aligned columns, two spaces apart, for people to read.
class TextTable {
 public:
  enum class Align : uint8_t { kLeft, kRight };

  explicit TextTable(std::vector<std::string> header, std::vector<Align> alignment = {});
  void add(std::vector<std::string> row);
  bool empty() const { return rows_.size() <= 1; }
  /// Lines with `indent` spaces in front; no spaces at their ends.
  std::string text(int indent = 2) const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the header first
  std::vector<Align> alignment_;                // missing ones: left
};

}  // namespace assay::cli
