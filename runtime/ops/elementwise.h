#pragma once

#include <cstdint>

namespace assay {

/// out[i] = silu(gate[i])·up[i], silu(x) = x / (1 + exp(−x)); every operation its own rounding
/// (arithmetic.md §4). `out` may be `gate` or `up`.
void swiglu(const float* gate, const float* up, int64_t n, float* out);

/// out[i] = gelu_tanh(gate[i])·up[i], gelu_tanh of math.h. `out` may be `gate` or `up`.
void geglu(const float* gate, const float* up, int64_t n, float* out);

/// x[i] = c·tanh(x[i] / c).
void softcap(float* x, float c, int64_t n);

/// x[i] = x[i]·sigmoid(gate[i]).
void sigmoid_gate(float* x, const float* gate, int64_t n);

/// y[i] = x[i]·factor. `y` may be `x`.
void scale(const float* x, float factor, int64_t n, float* y);

/// x[i] = x[i] + y[i]: residual stream.
void add(float* x, const float* y, int64_t n);

/// Index of the first NaN or infinity among n values, or −1. Decided on the exponent bits.
int64_t find_not_finite(const float* x, int64_t n);

// The same, one value at a time: the oracle of the tests.
void swiglu_reference(const float* gate, const float* up, int64_t n, float* out);
void geglu_reference(const float* gate, const float* up, int64_t n, float* out);
void softcap_reference(float* x, float c, int64_t n);
void silu_reference(float* x, int64_t n);
void sigmoid_gate_reference(float* x, const float* gate, int64_t n);

}  // namespace assay
