#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/math.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {
namespace {

constexpr int kLanes = 32;
constexpr int64_t kLaneBlock = 256;  // terms of one lane sum

/// Adds the lanes in five folds, all lanes at once; the result is lane 0.
float fold_lanes(std::array<float, kLanes>& lanes) {
  for (int m = kLanes / 2; m >= 1; m /= 2) {
    const std::array<float, kLanes> old = lanes;
    for (int l = 0; l < kLanes; ++l) lanes[l] = old[l] + old[l ^ m];
  }
  return lanes[0];
}

/// Sums n terms in blocks of 256; `accumulate(lane, i)` adds term i to its lane.
template <typename Accumulate>
float sum_in_lanes(int64_t n, const Accumulate& accumulate) {
  float total = 0.0f;
  for (int64_t first = 0; first < n; first += kLaneBlock) {
    std::array<float, kLanes> lanes = {};
    const int64_t end = std::min(n, first + kLaneBlock);
    for (int64_t i = first; i < end; ++i) accumulate(lanes[i % kLanes], i);
    const float block = fold_lanes(lanes);
    total = first == 0 ? block : total + block;
  }
  return total;
}

}  // namespace

float lane_dot_reference(const float* a, const float* b, int64_t n) {
  return sum_in_lanes(n, [&](float& lane, int64_t i) { lane = fused(a[i], b[i], lane); });
}

float lane_sum_reference(const float* a, int64_t n) {
  return sum_in_lanes(n, [&](float& lane, int64_t i) { lane = lane + a[i]; });
}

void rms_norm_reference(const float* x, const float* weight, float eps, int64_t rows, int64_t n,
                        float* y) {
  const float one_over_n = 1.0f / static_cast<float>(n);
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = x + row * n;
    float* out = y + row * n;
    const float mean = lane_dot_reference(in, in, n) * one_over_n;
    const float r = 1.0f / std::sqrt(mean + eps);
    for (int64_t i = 0; i < n; ++i) {
      const float scaled = in[i] * r;
      out[i] = weight == nullptr ? scaled : scaled * weight[i];
    }
  }
}

float lane_dot(const float* a, const float* b, int64_t n) {
  return vector_kernels().lane_dot(a, b, n);
}

float lane_sum(const float* a, int64_t n) { return vector_kernels().lane_sum(a, n); }

void rms_norm(const float* x, const float* weight, float eps, int64_t rows, int64_t n, float* y) {
  const VectorKernels& kernels = vector_kernels();
  const float one_over_n = 1.0f / static_cast<float>(n);
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = x + row * n;
    const float mean = kernels.lane_dot(in, in, n) * one_over_n;
    const float r = 1.0f / std::sqrt(mean + eps);
    if (weight == nullptr) {
      kernels.scale(in, r, n, y + row * n);
    } else {
      kernels.scale_by_weight(in, r, weight, n, y + row * n);
    }
  }
}

}  // namespace assay
