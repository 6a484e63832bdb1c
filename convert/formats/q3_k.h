#pragma once

#include <cstdint>

namespace assay {

/// Q3_K: super-block of 256 values, 16 sub-blocks of 16, 3.4375 bits per weight.
///   w_i = d · (scale_j − 32) · (c_i − 4),  j = i/16
/// c_i: low two bits as in two_bits.h, the third is bit i/32 of hmask[i%32]. |Σ scale·(c − 4)·h|
/// over a half (128 columns, h int8) ≤ 32·4·128·128 < 2^24: float(H) is exact.
/// Source: ggml-common.h.
struct BlockQ3_K {
  uint8_t hmask[32];   // third bits
  uint8_t qs[64];      // low two bits
  uint8_t scales[12];  // 16 six-bit scales, see q3_k_scale
  uint16_t d;          // f16
};
static_assert(sizeof(BlockQ3_K) == 110);

/// Six-bit scale of sub-block j (0 … 15), 0 … 63: four bits in byte j%8, two in byte 8 + j%4.
inline int q3_k_scale(const uint8_t* scales, int j) {
  const int low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4;
  return low | (((scales[8 + j % 4] >> (2 * (j / 4))) & 3) << 4);
}

/// Inverse of q3_k_scale; `scales` starts as zeros.
inline void q3_k_set_scale(uint8_t* scales, int j, int value) {
  scales[j % 8] = static_cast<uint8_t>(scales[j % 8] | ((value & 15) << (j < 8 ? 0 : 4)));
  scales[8 + j % 4] = static_cast<uint8_t>(scales[8 + j % 4] | ((value >> 4) << (2 * (j / 4))));
}

}  // namespace assay
