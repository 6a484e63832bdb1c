#include "convert/formats/format_list.h"
#include "convert/formats/packed_integer.h"

namespace assay {

/// W4: 4-bit codes, zero point 8 (packed_integer.h).
const WeightFormat& w4_format() {
  static const PackedIntegerFormat<4, true> format("W4");
  return format;
}

}  // namespace assay
