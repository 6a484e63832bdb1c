#pragma once

#include <cstdint>

namespace assay {

/// out[i] = silu(gate[i])·up[i], silu(x) = x / (1 + exp(−x)); every operation its own rounding
/// (arithmetic.md §4). `out` may be `gate` or `up`.
void swiglu(const float* gate, const float* up, int64_t n, float* out);

/// x[i] = x[i] + y[i]: residual stream.
void add(float* x, const float* y, int64_t n);

/// Index of the first NaN or infinity among n values, or −1. Decided on the exponent bits.
int64_t find_not_finite(const float* x, int64_t n);

// The same, one value at a time: the oracle of the tests.
void swiglu_reference(const float* gate, const float* up, int64_t n, float* out);

}  // namespace assay
