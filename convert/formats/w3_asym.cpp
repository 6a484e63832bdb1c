#include "convert/formats/format_list.h"
#include "convert/formats/packed_integer.h"

namespace assay {

/// W3_ASYM: 3-bit codes, a zero point per group (packed_integer.h).
const WeightFormat& w3_asym_format() {
  static const PackedIntegerFormat<3, false> format("W3_ASYM");
  return format;
}

}  // namespace assay
