#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/executor.h"

namespace assay {

/// Rows of logits, as they come: `first_row` is the position of the first of them.
using LogitRowSink = std::function<void(int64_t first_row, std::span<const float> logits)>;

/// Feeds one sequence from its start, in calls of at most `chunk` tokens (0: as many as the
/// executor takes, fewer where logits of all rows would pass 64 MiB), and hands the logits of every
/// position to `sink`. Sequence `sequence` is reset first and left holding the tokens.
void run_all_positions(Executor& executor, std::span<const int32_t> token_ids, int64_t chunk,
                       const LogitRowSink& sink, int sequence = 0);

/// The same; the logits of all positions in one array, (n_tokens, vocab_size).
std::vector<float> logits_of_all_positions(Executor& executor, std::span<const int32_t> token_ids,
                                           int64_t chunk = 0);

/// Logits at the last position, (vocab_size). `observer` sees every op of every call.
std::vector<float> logits_of_last_position(Executor& executor, std::span<const int32_t> token_ids,
                                           int64_t chunk = 0, int sequence = 0,
                                           const OpObserver& observer = nullptr);

}  // namespace assay
