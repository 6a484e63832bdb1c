#pragma once

#include <cstdint>

namespace assay {

/// IQ1_M: super-block of 256 values, 1.75 bits per weight. Group n of 8 columns has the nibble n%2
/// of qh[n/2]: its low three bits are the high bits of the position in kIq1Values (qs[n] the low
/// ones), the fourth shifts down. Block m of 16 columns: three-bit scale s = (scales[m/4] >>
/// 3·(m%4)) & 7. The top nibbles of scales[0 … 3], lowest first, are an f16 d.
///   w_i = d · (2s + 1) · (level ± 1/8); integers and bounds as in IQ1_S.
/// Source: ggml-common.h.
struct BlockIQ1_M {
  uint8_t qs[32];
  uint8_t qh[16];
  uint16_t scales[4];
};
static_assert(sizeof(BlockIQ1_M) == 56);

}  // namespace assay
