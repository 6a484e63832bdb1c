#include "convert/conversion_table.h"

#include "convert/core/words.h"
#include "convert/file_summary.h"

namespace assay::cli {

ConversionTable::ConversionTable(std::vector<std::string> header,
                                 std::vector<TextTable::Align> alignment, bool every_tensor)
    : header_(std::move(header)), alignment_(std::move(alignment)), every_tensor_(every_tensor) {
  header_.insert(header_.begin(), {"tensor", "n"});
  alignment_.insert(alignment_.begin(), {TextTable::Align::kLeft, TextTable::Align::kRight});
}

void ConversionTable::add(const std::string& tensor, std::vector<std::string> words) {
  const std::string kind = every_tensor_ ? tensor : name_without_layer(tensor);
  const auto [found, is_new] = index_.emplace(std::pair(kind, words), kinds_.size());
  if (is_new) kinds_.push_back({tensor, std::move(words)});
  Kind& known = kinds_[found->second];
  if (++known.n > 1) known.name = kind;
}

std::string ConversionTable::text() const {
  TextTable table(header_, alignment_);
  for (const Kind& kind : kinds_) {
    std::vector<std::string> row = {kind.name, std::to_string(kind.n)};
    row.insert(row.end(), kind.words.begin(), kind.words.end());
    table.add(std::move(row));
  }
  return printable(table.text());
}

}  // namespace assay::cli
