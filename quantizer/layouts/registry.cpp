#include <array>
#include <string>

#include "convert/core/error.h"
#include "quantizer/layouts/layout.h"

namespace assay {

std::span<const CheckpointLayout> all_layouts() {
  static const std::array<CheckpointLayout, 2> layouts = {kCompressedTensorsLayout, kGptqLayout};
  return layouts;
}

const CheckpointLayout& find_layout(std::string_view name) {
  std::string known;
  for (const CheckpointLayout& layout : all_layouts()) {
    if (layout.name == name) return layout;
    known += (known.empty() ? "" : ", ") + std::string(layout.name);
  }
  throw UsageError("format: found \"" + std::string(name) + "\", expected one of " + known);
}

}  // namespace assay
