#pragma once

#include <cstdint>

namespace assay {

// Searches that ggml's reference quantizers share, restated from ggml-quants.c. All arithmetic is
// binary32 without contraction, products associate left to right, sums run from index 0: callers
// and this file are compiled with contraction off, so that the bytes equal those of an x86-64
// release build of ggml.

/// Integer nearest to `value`, ties to even, for |value| ≤ 4194303. Beyond that, where ggml's
/// result is arbitrary: the nearest bound, and 0 for NaN.
int nearest_code(float value);

/// Grids smaller than this are stored as zero.
inline constexpr float kTinyGroup = 1e-15f;

/// Best scale for signed codes −n_levels … n_levels−1 (make_qx_quants), n ≤ 32. Codes are stored
/// plus n_levels. `weights` nullptr: x². Returns the scale, 0 for a group of zeros.
float search_signed_scale(int n, int n_levels, const float* x, const float* weights,
                          uint8_t* codes);

/// Best scale for signed codes as search_signed_scale gives them, found by improving one code after
/// another (make_q3_quants). Weights are x². A group of zeros has the codes 0.
float search_signed_scale_by_sweeps(int n, int n_levels, const float* x, uint8_t* codes);

struct AffineSearch {
  float r_min;
  float r_delta;
  int n_steps;
  bool absolute = false;  // errors are |e| instead of e²
};

struct AffineGrid {
  float scale;
  float minimum;  // ≥ 0; a value is scale · code − minimum
};

/// Best scale and minimum for codes 0 … n_levels (make_qkx2_quants, make_qkx3_quants). n ≤ 32.
AffineGrid search_affine_grid(int n, int n_levels, const float* x, const float* weights,
                              const AffineSearch& search, uint8_t* codes);

/// search_affine_grid for `n_groups` groups of `n` columns, one after another; any number.
void search_affine_grids(int n_groups, int n, int n_levels, const float* x, const float* weights,
                         const AffineSearch& search, AffineGrid* grids, uint8_t* codes);

/// Best scale for codes 0 … n_levels of values that are not negative (make_qp_quants).
float search_unsigned_scale(int n, int n_levels, const float* x, const float* weights,
                            uint8_t* codes);

/// Scale for which the values of IQ4_NL are nearest to 32 columns (the search of
/// quantize_row_iq4_nl_impl with 7 tries to each side); 0 for a group of zeros.
float search_iq4_scale(const float* x, const float* weights);

/// Nearest IQ4 codes of inverse·x. n is a multiple of 8, as in all functions below.
void nearest_iq4_codes(int n, const float* x, float inverse, uint8_t* codes);

/// Codes 0 … n_levels again, now for the scale and minimum as they are stored:
/// (x + minimum) / scale. A scale that became zero keeps the codes of the search.
void recompute_codes(int n, const float* x, float scale, float minimum, int n_levels,
                     uint8_t* codes);
/// The same for signed codes −n_levels … n_levels − 1, stored plus n_levels: x / scale.
void recompute_signed_codes(int n, const float* x, float scale, int n_levels, uint8_t* codes);

/// Σ x² from index 0.
float sum_of_squares(int n, const float* x);
/// weights_i = importance_i · √(sigma2 + x_i²); the sum from index 0 is returned.
float weigh_by_importance(int n, float sigma2, const float* x, const float* importance,
                          float* weights);

}  // namespace assay
