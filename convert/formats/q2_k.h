#pragma once

#include <cstdint>

namespace assay {

/// Q2_K: super-block of 256 values, 16 sub-blocks of 16, 2.625 bits per weight.
///   w_i = d · lo(scales[j]) · c_i − dmin · hi(scales[j]),  j = i/16; codes as in two_bits.h.
/// |Σ scale·c·h| over a half (128 columns, h int8) ≤ 15·3·128·128 < 2^24: float(H) is exact.
/// Source: ggml-common.h.
struct BlockQ2_K {
  uint8_t scales[16];  // low nibble: scale, high nibble: minimum
  uint8_t qs[64];      // four codes each
  uint16_t d;          // f16, of the scales
  uint16_t dmin;       // f16, of the minima
};
static_assert(sizeof(BlockQ2_K) == 84);

}  // namespace assay
