#pragma once

#include <cstdint>

namespace assay {

/// IQ1_S: super-block of 256 values, 1.5625 bits per weight. Block j of 32 columns has qh[j]: bits
/// 12 … 14 are a scale s, bit 15 a shift down. Group n of 8 columns, j = n/4: position in
/// kIq1Values = qs[n] plus three high bits (qh[j] >> 3·(n%4)) & 7.
///   w_i = d · (2s + 1) · (level ± 1/8)  =  (d/8) · (2s + 1) · (8·level ± 1)
/// As integers: codes 8·level ± 1 + 9 (0 … 18), sub-scales 2s + 1. |Σ sub·(c − 9)·h| over a half
/// (128 columns, h int8) ≤ 15·9·128·128 < 2^24: float(H) is exact.
/// Source: ggml-common.h.
struct BlockIQ1_S {
  uint16_t d;  // f16
  uint8_t qs[32];
  uint16_t qh[8];
};
static_assert(sizeof(BlockIQ1_S) == 50);

/// Zero of the integer codes of IQ1_S and IQ1_M.
inline constexpr int kIq1Zero = 9;

}  // namespace assay
