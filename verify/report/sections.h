#pragma once

#include <optional>
#include <string>
#include <vector>

#include "verify/report/run_data.h"

namespace assay::report {

/// A cell shows `text`; columns of numbers sort by `value`.
struct Cell {
  std::string text;
  std::optional<double> value;
};

struct Table {
  std::vector<std::string> headings;
  std::vector<std::vector<Cell>> rows;
};

/// A heading with what stands under it; empty parts are left out.
struct Section {
  std::string title;
  std::vector<std::string> paragraphs;
  std::string chart;  // SVG element
  std::string chart_caption;
  Table table;
};

/// The page as data, so that HTML and Markdown say the same.
std::vector<Section> make_sections(const RunData& run);

}  // namespace assay::report
