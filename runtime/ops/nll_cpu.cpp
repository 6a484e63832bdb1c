#include <algorithm>
#include <vector>

#include "runtime/math.h"
#include "runtime/ops/nll.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {

int32_t argmax(std::span<const float> logits) {
  const float largest =
      vector_kernels().largest(logits.data(), static_cast<int64_t>(logits.size()));
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
}

LogSumExp log_sum_exp_reference(std::span<const float> logits) {
  const float max = *std::max_element(logits.begin(), logits.end());
  std::vector<float> terms(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) terms[i] = exp_canonical(logits[i] - max);
  const float z = lane_sum_reference(terms.data(), static_cast<int64_t>(terms.size()));
  return {max, log_canonical(z)};
}

LogSumExp log_sum_exp(std::span<const float> logits) {
  const auto n = static_cast<int64_t>(logits.size());
  const VectorKernels& kernels = vector_kernels();
  const float max = kernels.largest(logits.data(), n);
  return {max, log_canonical(kernels.lane_sum_exp(logits.data(), n, max))};
}

float nll(std::span<const float> logits, int32_t target) {
  const auto [max, log_sum] = log_sum_exp(logits);
  return log_sum + (max - logits[static_cast<size_t>(target)]);
}

}  // namespace assay
