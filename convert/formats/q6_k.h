#pragma once

#include <cstdint>

namespace assay {

/// Q6_K: super-block of 256 values, 16 sub-blocks of 16, 6.5625 bits per weight.
///   w_i = d · scales[i/16] · (c_i − 32)
/// With half H = i/128, r = i%128, l = r%32, t = r/32: low four bits of c_i are a nibble of
/// ql[64·H + l + 32·(t&1)] (low for t < 2, else high), high two are (qh[32·H + l] >> 2t) & 3.
/// |Σ scale·(c − 32)·h| over a half (128 columns, h int8) can reach 128·32·128·128 = 2^26, beyond
/// 2^24: the canonical sum is literally fma(256, float(H), float(L)).
/// Source: ggml-common.h.
struct BlockQ6_K {
  uint8_t ql[128];    // low four bits of the codes
  uint8_t qh[64];     // high two bits
  int8_t scales[16];  // signed
  uint16_t d;         // f16
};
static_assert(sizeof(BlockQ6_K) == 210);

}  // namespace assay
