#pragma once

#include <cstdint>

namespace assay {

/// IQ2_XXS: super-block of 256 values, 2.0625 bits per weight. Block j of 32 columns has two words
/// a = words[2j], b = words[2j + 1]: byte l of a is the position of 8 magnitudes in kIq2XxsValues,
/// bits 7l … 7l + 6 of b their signs (the eighth makes the number of set bits even), the top four
/// bits of b a scale s.
///   w_i = d · (0.5 + s) · 0.25 · ±magnitude  =  (d/8) · (2s + 1) · ±magnitude
/// As integers: codes ±magnitude + 43 (0 … 86), sub-scales 2s + 1. |Σ sub·(c − 43)·h| over a half
/// (128 columns, h int8) ≤ 31·43·128·128 > 2^24: the canonical sum is fma(256, float(H), float(L)).
/// Source: ggml-common.h.
struct BlockIQ2_XXS {
  uint16_t d;          // f16
  uint16_t words[32];  // 16 words of 32 bits, low half first
};
static_assert(sizeof(BlockIQ2_XXS) == 66);

}  // namespace assay
