#pragma once

#include <cstdint>

namespace assay {

/// IQ4_XS: super-block of 256 values, 8 sub-blocks of 32, 4.25 bits per weight.
///   w_i = d · (scale_j − 32) · kIq4Values[c_i],  j = i/32
/// c_i: byte qs[16·j + i%16], low nibble for the first 16 columns of the sub-block. scale_j: nibble
/// j%2 of scales_l[j/2], two high bits (scales_h >> 2j) & 3. As integers: codes kIq4Values[c] +
/// 127, zero 127. |Σ scale·(c − 127)·h| over a half (128 columns, h int8) can reach 32·127·128·128
/// = 2^26, beyond 2^24: the canonical sum is literally fma(256, float(H), float(L)). Source:
/// ggml-common.h.
struct BlockIQ4_XS {
  uint16_t d;  // f16; may be negative
  uint16_t scales_h;
  uint8_t scales_l[4];
  uint8_t qs[128];
};
static_assert(sizeof(BlockIQ4_XS) == 136);

}  // namespace assay
