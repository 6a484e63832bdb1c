#pragma once

#include <cstdint>

namespace assay {

/// TQ1_0: super-block of 256 values −d, 0 or d, 1.6875 bits per weight. A byte has five digits of
/// base three, digit n of byte b = ((b·3^n mod 256)·3) >> 8, and w = d · (digit − 1). Columns:
/// digit n of qs[m] is column 32n + m for m < 32 and 160 + 16n + m − 32 above; digit n < 4 of qh[m]
/// is column 240 + 4n + m. Source: ggml-common.h.
struct BlockTQ1_0 {
  uint8_t qs[48];
  uint8_t qh[4];
  uint16_t d;  // f16
};
static_assert(sizeof(BlockTQ1_0) == 54);

}  // namespace assay
