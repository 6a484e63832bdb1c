#pragma once

#include <cstdint>
#include <vector>

#include "convert/model_spec.h"
#include "runtime/ops/rope.h"

namespace assay {

// Derivatives of the ops of runtime/ops: from the derivative of a loss with respect to what an op
// wrote (dy) to those with respect to what it read (dx, which is added to where it says so). Rows
// are the tokens of one sequence from position 0 on. fp32; sums are chains or lane sums in a fixed
// order, so threads and instruction sets give the same bits. Rounding to cache types and to block
// int16 passes derivatives on unchanged.

/// C += A·B on all threads, GradientKernels::multiply.
void multiply(const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,
              int64_t rows, int64_t inner, int64_t columns, float* c, int64_t c_row);

/// ops/rms_norm.h: dx = r·(w·dy) − x·r³·mean(x·(w·dy)). x, dy, dx (rows, n); w (n) or null. `dx`
/// may be `dy`.
void rms_norm_gradient(const float* x, const float* weight, float eps, int64_t rows, int64_t n,
                       const float* dy, float* dx);

/// y = silu(gate)·up and y = gelu_tanh(gate)·up, n values each.
void swiglu_gradient(const float* gate, const float* up, const float* dy, int64_t n, float* d_gate,
                     float* d_up);
void geglu_gradient(const float* gate, const float* up, const float* dy, int64_t n, float* d_gate,
                    float* d_up);
/// y = x·sigmoid(gate).
void sigmoid_gate_gradient(const float* x, const float* gate, const float* dy, int64_t n, float* dx,
                           float* d_gate);
/// y = cap·tanh(x / cap): dx = dy·(1 − (y/cap)²), in place of dy.
void softcap_gradient(const float* y, float cap, int64_t n, float* dy);

/// ops/rope.h, in place of dy: the rotation the other way round. dy (n_heads, head_dim).
void rope_gradient(const RopeTable& table, int64_t position, float* dy, int n_heads, int head_dim);

/// ops/causal_conv.h. weight (n, kernel); x, dy, dx (rows, n).
void causal_conv_gradient(const float* weight, int kernel, int64_t n, int64_t rows, const float* x,
                          const float* dy, float* dx);

struct AttentionShape {
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  float scale = 0.0f;
  int64_t window = 0;  // positions that a query sees, its own included; 0: all
};
/// ops/attention.h, keys and values as they were before rounding. q, dy, dq (rows, n_heads,
/// head_dim); k, v, dk, dv (rows, n_kv_heads, head_dim); dk and dv are added to.
void attention_gradient(const AttentionShape& shape, int64_t rows, const float* q, const float* k,
                        const float* v, const float* dy, float* dq, float* dk, float* dv);
/// Bytes per thread.
uint64_t attention_gradient_bytes(const AttentionShape& shape, int64_t rows);

/// What the op of ops/delta_net.h reads, and the derivatives that go there.
struct DeltaNetTensors {
  const float* qkv = nullptr;        // (rows, conv_columns)
  const float* a = nullptr;          // (rows, n_value_heads)
  const float* b = nullptr;          // likewise
  const float* decay = nullptr;      // (n_value_heads)
  const float* step_bias = nullptr;  // (n_value_heads)
};
void delta_net_gradient(const DeltaNetSpec& spec, const DeltaNetTensors& in, int64_t rows,
                        const float* dy, float* d_qkv, float* d_a, float* d_b);
/// Bytes per thread.
uint64_t delta_net_gradient_bytes(const DeltaNetSpec& spec, int64_t rows);

}  // namespace assay
