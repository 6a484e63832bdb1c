#include "convert/formats/format_list.h"
#include "convert/formats/packed_integer.h"

namespace assay {

/// W4_ASYM: 4-bit codes, a zero point per group (packed_integer.h).
const WeightFormat& w4_asym_format() {
  static const PackedIntegerFormat<4, false> format("W4_ASYM");
  return format;
}

}  // namespace assay
