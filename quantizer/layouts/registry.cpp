#include <array>
#include <string>

#include "convert/core/error.h"
#include "convert/core/words.h"
#include "quantizer/layouts/layout.h"

namespace assay {

std::span<const CheckpointLayout> all_layouts() {
  static const std::array<CheckpointLayout, 2> layouts = {kCompressedTensorsLayout, kGptqLayout};
  return layouts;
}

const CheckpointLayout& find_layout(std::string_view name) {
  return find_by_name(all_layouts(), "format", name);
}

}  // namespace assay
