#pragma once

#include <cstdint>

namespace assay {

/// IQ3_S: super-block of 256 values, 3.4375 bits per weight. Group n of 4 columns: position in
/// kIq3SValues = qs[n] plus a high bit, bit n%8 of qh[n/8]. signs[i] has the signs of 8 columns.
/// Block j of 32 columns has the scale nibble s of scales[j/2], low first.
///   w_i = d · (2s + 1) · ±magnitude
/// As integers: codes ±magnitude + 15 (0 … 30), sub-scales 2s + 1. |Σ sub·(c − 15)·h| over a half
/// (128 columns, h int8) ≤ 31·15·128·128 < 2^24: float(H) is exact.
/// Source: ggml-common.h.
struct BlockIQ3_S {
  uint16_t d;  // f16
  uint8_t qs[64];
  uint8_t qh[8];
  uint8_t signs[32];
  uint8_t scales[4];
};
static_assert(sizeof(BlockIQ3_S) == 110);

}  // namespace assay
