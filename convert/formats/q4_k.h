#pragma once

#include <cstdint>

#include "convert/core/host_device.h"

namespace assay {

/// Q4_K: super-block of 256 values, 8 sub-blocks of 32, 4.5 bits per weight.
///   w_i = d · scale_j · c_i − dmin · min_j,  j = i/32
/// c_i: byte qs[32·(i/64) + i%32], low nibble if i/32 is even, else high.
/// |Σ scale_j·c_i·h_i| over a half (128 columns, h int8) ≤ 63·15·128·128 < 2^24: float(H) is exact.
/// Source: ggml-common.h.
struct BlockQ4_K {
  uint16_t d;          // f16, of the scales
  uint16_t dmin;       // f16, of the minima
  uint8_t scales[12];  // 8 six-bit pairs (scale, min), see q4_k_scale_min
  uint8_t qs[128];     // two codes each
};
static_assert(sizeof(BlockQ4_K) == 144);

struct SubScale {
  uint8_t scale;  // 0 … 63
  uint8_t min;    // 0 … 63
};

/// The six-bit pair of sub-block j (0 … 7): the first four lie in the low six bits of bytes j and
/// j + 4; of the others, the low nibbles lie in byte j + 4 and the high two bits on top of those.
ASSAY_HD SubScale q4_k_scale_min(const uint8_t* scales, int j) {
  if (j < 4) {
    return {static_cast<uint8_t>(scales[j] & 63), static_cast<uint8_t>(scales[j + 4] & 63)};
  }
  return {static_cast<uint8_t>((scales[j + 4] & 15) | ((scales[j - 4] >> 6) << 4)),
          static_cast<uint8_t>((scales[j + 4] >> 4) | ((scales[j] >> 6) << 4))};
}

/// Inverse of q4_k_scale_min; `scales` starts as zeros and j runs upwards.
inline void q4_k_set_scale_min(uint8_t* scales, int j, SubScale value) {
  if (j < 4) {
    scales[j] = value.scale;
    scales[j + 4] = value.min;
    return;
  }
  scales[j + 4] = static_cast<uint8_t>((value.scale & 15) | ((value.min & 15) << 4));
  scales[j - 4] = static_cast<uint8_t>(scales[j - 4] | ((value.scale >> 4) << 6));
  scales[j] = static_cast<uint8_t>(scales[j] | ((value.min >> 4) << 6));
}

}  // namespace assay
