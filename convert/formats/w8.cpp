#include "convert/formats/format_list.h"
#include "convert/formats/packed_integer.h"

namespace assay {

/// W8: 8-bit codes, zero point 128 (packed_integer.h).
const WeightFormat& w8_format() {
  static const PackedIntegerFormat<8, true> format("W8");
  return format;
}

}  // namespace assay
