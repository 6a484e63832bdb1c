#pragma once

#include <cstdint>

namespace assay {

/// IQ2_S: super-block of 256 values, 2.5625 bits per weight. Group n of 8 columns: position in
/// kIq2SValues = qs[n] plus two high bits (qh[n/4] >> 2·(n%4)) & 3, signs in signs[n]. Block m of
/// 16 columns has the scale nibble s of scales[m/2], low first.
///   w_i = (d/8) · (2s + 1) · ±magnitude; integers and bounds as in IQ2_XXS.
/// Source: ggml-common.h.
struct BlockIQ2_S {
  uint16_t d;  // f16
  uint8_t qs[32];
  uint8_t signs[32];
  uint8_t qh[8];
  uint8_t scales[8];
};
static_assert(sizeof(BlockIQ2_S) == 82);

}  // namespace assay
