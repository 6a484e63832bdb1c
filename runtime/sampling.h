#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace assay {

/// Philox4x32-10: four random words that depend on key and counter alone.
/// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

struct SamplingOptions {
  float temperature = 0.0f;  // 0: greedy; nothing below is used then
  int64_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // 1: off
  float min_p = 0.0f;        // 0: off
  uint64_t seed = 0;
};

/// Throws UsageError naming the option unless temperature ≥ 0 and finite, top_k ≥ 0, 0 < top_p ≤ 1
/// and 0 ≤ min_p ≤ 1.
void check_sampling_options(const SamplingOptions& options);

/// Chooses the next token. The choice depends on logits, options and `position` alone: never on
/// what was drawn before.
/// temperature 0: argmax, lowest id wins a tie. Else, with IEEE operations in this order:
/// 1. t_i = l_i / temperature (fp32); w_i = exp(t_i − max t), fp32, exp of arithmetic.md §7.
/// 2. Candidates in descending order of w, ties by ascending id. top_k keeps the first k.
/// 3. top_p keeps the shortest head whose fp64 chain of w reaches top_p · (chain over all
///    candidates that step 2 left, ascending id).
/// 4. min_p keeps those with w ≥ min_p (the largest w is 1).
/// 5. u in [0, 1) with 53 bits from Philox (key: seed; counter: position); the first candidate in
///    ascending id whose fp64 chain exceeds u · (chain over all that are left).
/// `logits` is not empty and finite.
int32_t sample(std::span<const float> logits, const SamplingOptions& options, int64_t position);

}  // namespace assay
