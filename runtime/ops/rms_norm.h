#pragma once

#include <cstdint>

namespace assay {

/// Lane sum of n products a_i·b_i (arithmetic.md §2): element i in lane i mod 32, fma from +0 in
/// ascending i, folds 16, 8, 4, 2, 1; more than 256 terms: sums of blocks of 256 added in order,
/// the total starting as the first.
float lane_dot(const float* a, const float* b, int64_t n);
/// Lane sum of n terms.
float lane_sum(const float* a, int64_t n);

/// y = (x·r)·w with r = 1 / sqrt(Σx²·fp32(1/n) + eps), two roundings per element. x, y (rows, n);
/// w (n), or null for y = x·r, one rounding. `y` may be `x`.
void rms_norm(const float* x, const float* weight, float eps, int64_t rows, int64_t n, float* y);

// The same, one value at a time: the oracles of the tests.
float lane_dot_reference(const float* a, const float* b, int64_t n);
float lane_sum_reference(const float* a, int64_t n);
void rms_norm_reference(const float* x, const float* weight, float eps, int64_t rows, int64_t n,
                        float* y);

}  // namespace assay
