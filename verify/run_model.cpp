#include "verify/run_model.h"

#include <algorithm>

#include "convert/core/error.h"

namespace assay {
namespace {

constexpr int64_t kMostLogitBytes = int64_t{64} << 20;

int64_t chunk_of(const Executor& executor, int64_t wanted, bool all_rows) {
  int64_t chunk = executor.options().max_batch_tokens;
  if (wanted > 0) return std::min(wanted, chunk);
  if (all_rows) {
    const int64_t row_bytes = executor.program().spec.vocab_size * int64_t{sizeof(float)};
    chunk =
        std::min(chunk, std::max<int64_t>(1, kMostLogitBytes / std::max<int64_t>(1, row_bytes)));
  }
  return chunk;
}

void require_tokens(std::span<const int32_t> token_ids) {
  if (token_ids.empty()) {
    throw UsageError("a prompt without tokens has no logits: give it at least one token id");
  }
}

}  // namespace

void run_all_positions(Executor& executor, std::span<const int32_t> token_ids, int64_t chunk,
                       const LogitRowSink& sink, int sequence) {
  require_tokens(token_ids);
  executor.reset(sequence);
  const auto step = static_cast<size_t>(chunk_of(executor, chunk, true));
  std::vector<float> logits;
  for (size_t begin = 0; begin < token_ids.size(); begin += step) {
    const size_t n = std::min(step, token_ids.size() - begin);
    const BatchItem item{sequence, token_ids.subspan(begin, n), LogitRows::kAll};
    executor.forward({&item, 1}, logits);
    sink(static_cast<int64_t>(begin), logits);
  }
}

std::vector<float> logits_of_all_positions(Executor& executor, std::span<const int32_t> token_ids,
                                           int64_t chunk) {
  std::vector<float> all;
  all.reserve(token_ids.size() * static_cast<size_t>(executor.program().spec.vocab_size));
  run_all_positions(executor, token_ids, chunk, [&](int64_t, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  });
  return all;
}

std::vector<float> logits_of_last_position(Executor& executor, std::span<const int32_t> token_ids,
                                           int64_t chunk, int sequence,
                                           const OpObserver& observer) {
  require_tokens(token_ids);
  executor.reset(sequence);
  const auto step = static_cast<size_t>(chunk_of(executor, chunk, false));
  std::vector<float> logits;
  for (size_t begin = 0; begin < token_ids.size(); begin += step) {
    const size_t n = std::min(step, token_ids.size() - begin);
    const bool last = begin + n == token_ids.size();
    const BatchItem item{sequence, token_ids.subspan(begin, n),
                         last ? LogitRows::kLast : LogitRows::kNone};
    executor.forward({&item, 1}, logits, observer);
  }
  return logits;
}

}  // namespace assay
