#include "convert/formats/format_list.h"
#include "convert/formats/packed_integer.h"

namespace assay {

/// W8_ASYM: 8-bit codes, a zero point per group (packed_integer.h).
const WeightFormat& w8_asym_format() {
  static const PackedIntegerFormat<8, false> format("W8_ASYM");
  return format;
}

}  // namespace assay
