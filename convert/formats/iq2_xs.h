#pragma once

#include <cstdint>

namespace assay {

/// IQ2_XS: super-block of 256 values, 2.3125 bits per weight. Group n of 8 columns: the low nine
/// bits of qs[n] are the position of its magnitudes in kIq2XsValues, the upper seven their signs
/// (the eighth makes the number of set bits even). Block m of 16 columns has the scale nibble s of
/// scales[m/2], low first.
///   w_i = (d/8) · (2s + 1) · ±magnitude; integers and bounds as in IQ2_XXS.
/// Source: ggml-common.h.
struct BlockIQ2_XS {
  uint16_t d;  // f16
  uint16_t qs[32];
  uint8_t scales[8];
};
static_assert(sizeof(BlockIQ2_XS) == 74);

}  // namespace assay
