#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/core/json.h"
#include "runtime/executor.h"

namespace assay {

/// What a greedy run generated: prefill, then one token a step, never stopped.
struct GreedyRun {
  std::vector<int32_t> token_ids;  // new ones only
  std::vector<float> margins;      // per step: largest minus second largest logit; may be empty
  std::vector<int32_t> runner_up;  // per step: id of the second largest; may be empty

  /// SHA-256 of the ids as little-endian 64-bit integers.
  std::string sha256() const;
};

/// Generates `n_new_tokens` after `prompt` on sequence 0.
GreedyRun run_greedy(Executor& executor, std::span<const int32_t> prompt, int64_t n_new_tokens);

/// The first step where two runs chose different tokens. A step that one run lacks shows as id −1.
struct TokenDivergence {
  int64_t step = 0;
  int32_t a = -1;
  int32_t b = -1;
  std::optional<float> margin_a;  // lead of the chosen token over the next, where it is known
  std::optional<float> margin_b;

  Json to_json() const;
  /// "step 5: 17 (margin 0.25) against 9 (margin 0.0001)"
  std::string describe() const;
};
std::optional<TokenDivergence> first_divergence(const GreedyRun& a, const GreedyRun& b);

/// The first index where two lists of ids differ; a missing id shows as −1.
std::optional<TokenDivergence> first_divergence(std::span<const int32_t> a,
                                                std::span<const int32_t> b);

}  // namespace assay
