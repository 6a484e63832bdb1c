#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "convert/cli/text_table.h"

namespace assay::cli {

/// What a conversion does with tensors, for people: one line per kind of tensor (the same name but
/// for the layer, the same words) with the number of its tensors, or one line per tensor. A kind
/// with one tensor has that tensor's name.
class ConversionTable {
 public:
  /// `header` and `alignment` of the columns behind name and number.
  ConversionTable(std::vector<std::string> header, std::vector<TextTable::Align> alignment,
                  bool every_tensor);
  void add(const std::string& tensor, std::vector<std::string> words);
  std::string text() const;

 private:
  struct Kind {
    std::string name;
    std::vector<std::string> words;
    int64_t n = 0;
  };
  std::vector<std::string> header_;
  std::vector<TextTable::Align> alignment_;
  bool every_tensor_;
  std::vector<Kind> kinds_;  // in order of first use
  std::map<std::pair<std::string, std::vector<std::string>>, size_t> index_;
};

}  // namespace assay::cli
