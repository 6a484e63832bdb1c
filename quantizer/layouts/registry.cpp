#include "convert/core/words.h"
#include "quantizer/layouts/layout.h"

namespace assay {

// <name>.cpp
extern const CheckpointLayout kCompressedTensorsLayout;
extern const CheckpointLayout kGptqLayout;

std::span<const CheckpointLayout> all_layouts() {
  static const CheckpointLayout kLayouts[] = {kCompressedTensorsLayout, kGptqLayout};
  return kLayouts;
}

const CheckpointLayout& find_layout(std::string_view name) {
  return find_by_name(all_layouts(), "format", name);
}

}  // namespace assay
