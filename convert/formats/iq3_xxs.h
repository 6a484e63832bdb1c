#pragma once

#include <cstdint>

namespace assay {

/// IQ3_XXS: super-block of 256 values, 3.0625 bits per weight. Group n of 4 columns: qs[n] is the
/// position of its magnitudes in kIq3XxsValues. Block j of 32 columns has a word (words[2j] low,
/// words[2j + 1] high): bits 7l … 7l + 6 are the signs of its 8 columns number l (the eighth makes
/// the number of set bits even), the top four bits a scale s.
///   w_i = d · (0.5 + s) · 0.5 · ±magnitude  =  (d/4) · (2s + 1) · ±magnitude
/// As integers: codes ±magnitude + 62 (0 … 124), sub-scales 2s + 1. |Σ sub·(c − 62)·h| over a half
/// ≤ 31·62·128·128 > 2^24: the canonical sum is fma(256, float(H), float(L)).
/// Source: ggml-common.h.
struct BlockIQ3_XXS {
  uint16_t d;  // f16
  uint8_t qs[64];
  uint16_t words[16];
};
static_assert(sizeof(BlockIQ3_XXS) == 98);

}  // namespace assay
