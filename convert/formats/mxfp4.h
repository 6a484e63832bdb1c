#pragma once

#include <cstdint>

namespace assay {

/// MXFP4: 32 values with a power of two as scale, 4.25 bits per weight. w_i = 2^(e − 128) ·
/// kFp4Values[c_i]; c_i is the low nibble of qs[i] for i < 16 and the high nibble of qs[i − 16]
/// after that. As integers: codes kFp4Values[c] + 12 with zero point 12. e = 255 is NaN.
/// Source: ggml-common.h.
struct BlockMXFP4 {
  uint8_t e;
  uint8_t qs[16];
};
static_assert(sizeof(BlockMXFP4) == 17);

}  // namespace assay
