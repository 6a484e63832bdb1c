#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/executor.h"
#include "runtime/sampling.h"

namespace assay {

enum class StopReason : uint8_t { kLength, kStopToken, kInterrupted };
std::string_view stop_reason_name(StopReason reason);  // "length", "stop_token", "interrupted"

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling = {};
  std::vector<int32_t> stop_ids = {};  // any of these ends the run; it is the last of the new ids
};

/// What one run gave, and how long it took (monotonic clock, seconds).
struct Generation {
  std::vector<int32_t> token_ids = {};  // new ones only, a stop token included
  StopReason stop_reason = StopReason::kLength;
  double first_token_s = 0.0;  // from the start to the first new token, prefill included (TTFT)
  double elapsed_s = 0.0;      // from the start to the last new token

  /// Mean time per token after the first (TPOT); 0 for fewer than two tokens.
  double seconds_per_token() const;
};

/// Throws UsageError with the numbers (case B67) unless a prompt of n_prompt tokens and n_new more
/// fit into `context` positions. Called before anything is allocated or computed.
void check_context(int64_t n_prompt, int64_t n_new, int64_t context);

/// Prefills `prompt` on top of what `sequence` holds, then draws tokens one by one.
/// on_token  sees each new id as soon as it is known; false ends the run (kInterrupted)
/// Throws UsageError for an empty prompt, or if prompt and new tokens do not fit the context.
Generation generate(Executor& executor, int sequence, std::span<const int32_t> prompt,
                    const GenerateOptions& options,
                    const std::function<bool(int32_t id)>& on_token = nullptr);

}  // namespace assay
