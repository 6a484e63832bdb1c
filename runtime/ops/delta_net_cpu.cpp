#include <cmath>

#include "runtime/math.h"
#include "runtime/ops/delta_net.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {
namespace {

constexpr float kNormEps = 1e-6f;

void l2_normalize(const float* x, int64_t n, float* y) {
  const float norm = std::sqrt(vector_kernels().lane_dot(x, x, n) + kNormEps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] / norm;
}

}  // namespace

void delta_net_step(const DeltaNetSpec& spec, const DeltaNetStep& step, float* state, float* out,
                    float* workspace) {
  const VectorKernels& kernels = vector_kernels();
  const int64_t n = spec.key_dim;
  float* q = workspace;
  float* k = workspace + n;
  l2_normalize(step.q, n, q);
  l2_normalize(step.k, n, k);
  kernels.scale(q, static_cast<float>(1.0 / std::sqrt(static_cast<double>(n))), n, q);
  const float alpha = exp_canonical(step.decay * softplus_canonical(step.a + step.step_bias));
  const float beta = sigmoid_canonical(step.b);
  for (int64_t j = 0; j < spec.value_dim; ++j) {
    float* row = state + j * n;
    kernels.scale(row, alpha, n, row);
    const float predicted = kernels.lane_dot(row, k, n);
    const float update = beta * (step.v[j] - predicted);
    kernels.multiply_add(row, k, update, n);
    out[j] = kernels.lane_dot(row, q, n);
  }
}

}  // namespace assay
