#pragma once

#include <cstdint>

#include "runtime/kv_cache.h"

namespace assay {

/// Several queries over the rows of one cache head; see attend_many.
struct AttendCall {
  const float* const* q = nullptr;  // n_queries pointers to (head_dim)
  float* const* out = nullptr;      // n_queries pointers to (head_dim)
  const int64_t* first = nullptr;   // visible positions of each query, inclusive
  const int64_t* last = nullptr;
  int64_t n_queries = 0;
  const void* keys = nullptr;  // (positions, head_dim) of `type`
  const void* values = nullptr;
  KvType type = KvType::kF16;
  int head_dim = 0;
  float scale = 0.0f;
  int64_t ring = 0;            // rows after which positions begin anew; 0: none
  float* workspace = nullptr;  // attend_workspace_floats(), at a multiple of 64 bytes
};

/// Where one row of block int16 is written (ops/block_int16.h).
struct BlockInt16Row {
  int8_t* high = nullptr;        // (padded columns)
  int8_t* low = nullptr;         // (padded columns)
  float* scales = nullptr;       // (n_groups)
  int16_t* high_sums = nullptr;  // (padded columns / 16)
  int16_t* low_sums = nullptr;
};

/// Floats of workspace that a call needs on any instruction set.
int64_t attend_workspace_floats(int head_dim, int64_t n_queries);

/// Everything of a forward pass but the linear layers, for one instruction set. Each entry gives
/// the bits of the reference of the same name in its op's header.
struct VectorKernels {
  float (*lane_dot)(const float* a, const float* b, int64_t n);
  float (*lane_sum)(const float* a, int64_t n);
  /// Lane sum of exp(x_i − max).
  float (*lane_sum_exp)(const float* x, int64_t n, float max);
  float (*largest)(const float* x, int64_t n);  // n > 0, no NaN
  void (*exp)(const float* x, int64_t n, float* out);
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* out);
  void (*geglu)(const float* gate, const float* up, int64_t n, float* out);
  void (*softcap)(float* x, float c, int64_t n);
  void (*silu)(float* x, int64_t n);
  void (*sigmoid_gate)(float* x, const float* gate, int64_t n);
  /// y = x·factor.
  void (*scale)(const float* x, float factor, int64_t n, float* y);
  /// x = fma(a, b, x).
  void (*multiply_add)(float* x, const float* a, float b, int64_t n);
  void (*add)(float* x, const float* y, int64_t n);
  /// y = (x·r)·w.
  void (*scale_by_weight)(const float* x, float r, const float* weight, int64_t n, float* y);
  /// x1' = x1·c − x2·s, x2' = x2·c + x1·s.
  void (*rotate)(float* x1, float* x2, const float* cos, const float* sin, int64_t n);
  bool (*all_finite)(const float* x, int64_t n);
  /// Returns whether every value is finite after rounding.
  bool (*round_to_cache)(const float* x, int64_t n, KvType type, void* out);
  /// Returns whether every value is finite and not too large.
  bool (*quantize_row)(const float* x, int64_t columns, const BlockInt16Row& out);
  /// −1, or the first query with a score or result that is not finite.
  int64_t (*attend)(const AttendCall& call);
};

/// The kernels of active_isa().
const VectorKernels& vector_kernels();

const VectorKernels& vector_kernels_scalar();
const VectorKernels& vector_kernels_avx2();
const VectorKernels& vector_kernels_avx512();

}  // namespace assay
