#include "convert/formats/format_list.h"
#include "convert/formats/packed_integer.h"

namespace assay {

/// W3: 3-bit codes, zero point 4 (packed_integer.h).
const WeightFormat& w3_format() {
  static const PackedIntegerFormat<3, true> format("W3");
  return format;
}

}  // namespace assay
