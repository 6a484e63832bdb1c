#include <vector>

#include "runtime/math.h"
#include "runtime/ops/nll.h"
#include "runtime/ops/rms_norm.h"

namespace assay {

int32_t argmax(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

LogSumExp log_sum_exp_reference(std::span<const float> logits) {
  const float max = logits[static_cast<size_t>(argmax(logits))];
  std::vector<float> terms(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) terms[i] = exp_canonical(logits[i] - max);
  const float z = lane_sum_reference(terms.data(), static_cast<int64_t>(terms.size()));
  return {max, log_canonical(z)};
}

LogSumExp log_sum_exp(std::span<const float> logits) { return log_sum_exp_reference(logits); }

float nll(std::span<const float> logits, int32_t target) {
  const auto [max, log_sum] = log_sum_exp(logits);
  return log_sum + (max - logits[static_cast<size_t>(target)]);
}

}  // namespace assay
