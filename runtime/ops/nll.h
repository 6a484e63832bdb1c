#pragma once

#include <cstdint>
#include <span>

namespace assay {

/// Index of the largest value; the lowest index wins a tie (arithmetic.md §8). `logits` not empty
/// and without NaN.
int32_t argmax(std::span<const float> logits);

/// Negative log-likelihood of `target` in nats: m = max; z = lane sum of exp(l_i − m);
/// log(z) + (m − l_target), in fp32 (arithmetic.md §8). Sums over tokens are the caller's: one fp64
/// chain per window in token order, then one over the windows.
float nll(std::span<const float> logits, int32_t target);

/// m and log(z) of the same sum, for probabilities of several targets of one row.
struct LogSumExp {
  float max = 0.0f;
  float log_sum = 0.0f;
};
LogSumExp log_sum_exp(std::span<const float> logits);

// The same, one value at a time: the oracle of the tests.
LogSumExp log_sum_exp_reference(std::span<const float> logits);

}  // namespace assay
