#include "runtime/ops/vector_kernels.h"

#include <algorithm>
#include <vector>

#include "convert/core/isa.h"
#include "runtime/math.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/block_int16.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/kv_write.h"
#include "runtime/ops/nll.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/ops/rope.h"

namespace assay {
namespace {

// The references of the ops behind the common signatures.

float largest_scalar(const float* x, int64_t n) { return *std::max_element(x, x + n); }

void exp_scalar(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = exp_canonical(x[i]);
}

float lane_sum_exp_scalar(const float* x, int64_t n, float max) {
  std::vector<float> terms(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) terms[static_cast<size_t>(i)] = exp_canonical(x[i] - max);
  return lane_sum_reference(terms.data(), n);
}

void scale_scalar(const float* x, float factor, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
}

void multiply_add_scalar(float* x, const float* a, float b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = fused(a[i], b, x[i]);
}

void add_scalar(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] + y[i];
}

void scale_by_weight_scalar(const float* x, float r, const float* weight, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] * r) * weight[i];
}

void rotate_scalar(float* x1, float* x2, const float* cos, const float* sin, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float a = x1[i];
    const float b = x2[i];
    x1[i] = a * cos[i] - b * sin[i];
    x2[i] = b * cos[i] + a * sin[i];
  }
}

bool all_finite_scalar(const float* x, int64_t n) {
  return std::none_of(x, x + n, [](float value) { return is_not_finite(value); });
}

bool round_to_cache_scalar(const float* x, int64_t n, KvType type, void* out) {
  return round_to_cache_reference(x, n, type, out) < 0;
}

bool quantize_row_scalar(const float* x, int64_t columns, const BlockInt16Row& out) {
  BlockInt16 block;
  if (quantize_block_int16_reference(x, 1, columns, columns, block) >= 0) return false;
  std::copy(block.high.begin(), block.high.end(), out.high);
  std::copy(block.low.begin(), block.low.end(), out.low);
  std::copy(block.scales.begin(), block.scales.end(), out.scales);
  std::copy(block.high_sums.begin(), block.high_sums.end(), out.high_sums);
  std::copy(block.low_sums.begin(), block.low_sums.end(), out.low_sums);
  return true;
}

int64_t attend_scalar(const AttendCall& call) {
  for (int64_t i = 0; i < call.n_queries; ++i) {
    if (!attend_reference(call.q[i], call.keys, call.values, call.type, call.first[i], call.last[i],
                          call.head_dim, call.scale, call.out[i])) {
      return i;
    }
  }
  return -1;
}

constexpr VectorKernels kScalarKernels = {
    .lane_dot = lane_dot_reference,
    .lane_sum = lane_sum_reference,
    .lane_sum_exp = lane_sum_exp_scalar,
    .largest = largest_scalar,
    .exp = exp_scalar,
    .swiglu = swiglu_reference,
    .geglu = geglu_reference,
    .softcap = softcap_reference,
    .silu = silu_reference,
    .sigmoid_gate = sigmoid_gate_reference,
    .scale = scale_scalar,
    .multiply_add = multiply_add_scalar,
    .add = add_scalar,
    .scale_by_weight = scale_by_weight_scalar,
    .rotate = rotate_scalar,
    .all_finite = all_finite_scalar,
    .round_to_cache = round_to_cache_scalar,
    .quantize_row = quantize_row_scalar,
    .attend = attend_scalar,
};

}  // namespace

int64_t attend_workspace_floats(int head_dim, int64_t n_queries) {
  // Two widened segments, scores and partial sums of 4 queries, the state of every query
  // (AttendSpace of vector_lanes.h).
  const int64_t padded = (head_dim + 15) / 16 * 16;
  return 2 * padded * kAttentionSegment + 4 * kAttentionSegment + 4 * padded +
         n_queries * (padded + 16);
}

const VectorKernels& vector_kernels_scalar() { return kScalarKernels; }

const VectorKernels& vector_kernels() {
  return by_isa<vector_kernels_scalar, vector_kernels_avx2, vector_kernels_avx512>();
}

}  // namespace assay
