#pragma once

#include <cstdint>

namespace assay {

/// Q5_K: super-block of 256 values, 8 sub-blocks of 32, 5.5 bits per weight.
///   w_i = d · scale_j · c_i − dmin · min_j,  j = i/32; six-bit pairs as in Q4_K.
/// c_i: low four bits as in Q4_K, the fifth is bit i/32 of qh[i%32]. |Σ scale·c·h| over a half
/// (128 columns, h int8) can reach 63·31·128·128 = 2^25, beyond 2^24: the canonical sum is
/// literally fma(256, float(H), float(L)).
/// Source: ggml-common.h.
struct BlockQ5_K {
  uint16_t d;          // f16, of the scales
  uint16_t dmin;       // f16, of the minima
  uint8_t scales[12];  // 8 six-bit pairs (scale, min), see q4_k_scale_min
  uint8_t qh[32];      // fifth bits
  uint8_t qs[128];     // low four bits of two codes each
};
static_assert(sizeof(BlockQ5_K) == 176);

}  // namespace assay
