#pragma once

#include <cstdint>

namespace assay {

// Searches that ggml's reference quantizers share, restated from formats.md §6.3. All arithmetic is
// binary32 without contraction, products associate left to right, sums run from index 0: callers
// and this file are compiled with contraction off, so that the bytes equal those of an x86-64
// release build of ggml.

/// Integer nearest to `value`, ties to even, for |value| ≤ 4194303. Beyond that, where ggml's
/// result is arbitrary: the nearest bound, and 0 for NaN.
int nearest_code(float value);

/// Grids smaller than this are stored as zero.
inline constexpr float kTinyGroup = 1e-15f;

/// Best scale for signed codes −n_levels … n_levels−1 (make_qx_quants). Codes are stored plus
/// n_levels. `weights` nullptr: x². Returns the scale, 0 for a group of zeros.
float search_signed_scale(int n, int n_levels, const float* x, const float* weights,
                          uint8_t* codes);

struct AffineSearch {
  float r_min;
  float r_delta;
  int n_steps;
};

struct AffineGrid {
  float scale;
  float minimum;  // ≥ 0; a value is scale · code − minimum
};

/// Best scale and minimum for codes 0 … n_levels (make_qkx2_quants, make_qkx3_quants). n ≤ 32.
AffineGrid search_affine_grid(int n, int n_levels, const float* x, const float* weights,
                              const AffineSearch& search, uint8_t* codes);

/// Best scale for codes 0 … n_levels of values that are not negative (make_qp_quants).
float search_unsigned_scale(int n, int n_levels, const float* x, const float* weights,
                            uint8_t* codes);

}  // namespace assay
