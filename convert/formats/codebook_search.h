#pragma once

#include <cstdint>

#include "convert/formats/codebook.h"

namespace assay {

// Searches of ggml's IQ2 and IQ3 quantizers, restated from ggml-quants.c. Arithmetic as in
// code_search.h: binary32, no contraction, sums from index 0.

/// Integer nearest to `value`, ties to even, as a float within 0 … top. NaN gives 0.
inline float nearest_level(float value, float top) {
  const float rounded = (value + 12582912.0f) - 12582912.0f;  // 1.5 · 2^23: no fraction left
  const float positive = rounded > 0.0f ? rounded : 0.0f;
  return positive < top ? positive : top;
}

/// Absolute values of 8 columns; bit k of the result is set where column k is negative.
uint8_t take_signs(const float* x, float* magnitudes);
/// As take_signs, but an even number of bits: if it is odd, the column with the smallest w·x·x
/// (the first one) changes its sign and has a negative magnitude.
uint8_t take_even_signs(const float* x, const float* weights, float* magnitudes);

enum class Refine : uint8_t {
  kAlways,        // all groups are coded again for the scale found
  kAllIfMissing,  // all groups, if one of those kept was not in the book
  kMissing,       // only groups that were not in the book
};

struct CodebookSearch {
  const Codebook* book;
  int n_columns;  // of a block: 16 or 32
  int n_steps;    // trials: (2·n_levels − 1 + step·t) / largest, t = −n_steps … n_steps
  float step;
  Refine refine;
};

/// Best scale for |x| of a block as words of the book; `scale` is the one to begin with and
/// `codes` holds levels that are used as they are if no trial is better. roots: √weights.
/// May return a negative scale; the signs are then to be turned around.
float search_codebook(const CodebookSearch& search, const float* x, const float* weights,
                      const float* roots, float largest, float scale, uint8_t* codes);

/// Position in the book of the n_elements() levels at `codes`, which are in it.
int codebook_position(const Codebook& book, const uint8_t* codes);

}  // namespace assay
