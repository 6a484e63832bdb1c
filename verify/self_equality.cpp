#include "verify/self_equality.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/core/error.h"
#include "verify/logits.h"
#include "verify/run_model.h"

namespace assay {
namespace {

ServingMode compare_mode(std::string name, std::span<const float> expected,
                         std::span<const float> found, int64_t vocab_size) {
  const LogitsComparison comparison = compare_logits(expected, found, vocab_size);
  return {std::move(name), comparison.sha256_b, comparison.sha256_a, comparison.first_difference()};
}

/// Prompt of sequence `sequence` when several run together: tails of the longest, all of different
/// lengths, so that no two sequences stand at the same position.
std::span<const int32_t> prompt_of(std::span<const int32_t> token_ids, int sequence) {
  const size_t n = token_ids.size();
  const size_t length =
      std::max<size_t>(1, n - std::min(n - 1, static_cast<size_t>(sequence) * n / 5));
  return token_ids.subspan(n - length);
}

/// Prefill of `n_sequences` prompts starting at `first`, then decode steps with fixed tokens, all
/// in common calls. Returns each sequence's logits, one row a call.
std::vector<std::vector<float>> serve(Executor& executor, std::span<const int32_t> token_ids,
                                      int first, int n_sequences) {
  const auto columns = static_cast<size_t>(executor.program().spec.vocab_size);
  const auto n = static_cast<size_t>(n_sequences);
  std::vector<std::vector<float>> rows(n);
  std::vector<float> logits;
  const auto call = [&](const std::vector<BatchItem>& items) {
    executor.forward(items, logits);
    for (size_t i = 0; i < n; ++i) {
      rows[i].insert(rows[i].end(), &logits[i * columns], &logits[i * columns] + columns);
    }
  };
  std::vector<BatchItem> prefill, decode(n);
  for (int i = 0; i < n_sequences; ++i) {
    executor.reset(i);
    prefill.push_back({i, prompt_of(token_ids, first + i), LogitRows::kLast});
  }
  call(prefill);
  for (int64_t step = 0; step < kSelfEqualityDecodeSteps; ++step) {
    for (int i = 0; i < n_sequences; ++i) {
      const auto prompt = prompt_of(token_ids, first + i);
      decode[static_cast<size_t>(i)] = {
          i, prompt.subspan(static_cast<size_t>(step) % prompt.size(), 1), LogitRows::kLast};
    }
    call(decode);
  }
  return rows;
}

/// As many sequences as fit into one call together.
int most_sequences(const Executor& executor, std::span<const int32_t> token_ids) {
  int n = 0;
  int64_t tokens = 0;
  while (n < std::min(kSelfEqualitySequences, executor.options().n_sequences)) {
    tokens += static_cast<int64_t>(prompt_of(token_ids, n).size());
    if (tokens > executor.options().max_batch_tokens) break;
    ++n;
  }
  return n;
}

void check_chunks(Executor& executor, std::span<const int32_t> token_ids, SelfEquality& result) {
  const int64_t vocab_size = executor.program().spec.vocab_size;
  const std::vector<float> whole = logits_of_all_positions(executor, token_ids);
  for (const int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{64}}) {
    const std::vector<float> found = logits_of_all_positions(executor, token_ids, chunk);
    result.modes.push_back(
        compare_mode(fmt::format("chunks of {}", chunk), whole, found, vocab_size));
  }
  const auto last = std::span(whole).last(static_cast<size_t>(vocab_size));
  result.modes.push_back(compare_mode("only the last position's logits", last,
                                      logits_of_last_position(executor, token_ids), vocab_size));
  logits_of_last_position(executor, prompt_of(token_ids, 3));
  result.modes.push_back(compare_mode("after another prompt and a reset", whole,
                                      logits_of_all_positions(executor, token_ids), vocab_size));
}

void check_batches(Executor& executor, std::span<const int32_t> token_ids, SelfEquality& result) {
  const int64_t vocab_size = executor.program().spec.vocab_size;
  const int most = most_sequences(executor, token_ids);
  std::vector<std::vector<float>> alone;
  for (int i = 0; i < most; ++i) alone.push_back(serve(executor, token_ids, i, 1).front());
  for (int n = 2; n <= most; ++n) {
    std::vector<float> expected, found;
    const auto together = serve(executor, token_ids, 0, n);
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      expected.insert(expected.end(), alone[i].begin(), alone[i].end());
      found.insert(found.end(), together[i].begin(), together[i].end());
    }
    result.modes.push_back(
        compare_mode(fmt::format("{} sequences together", n), expected, found, vocab_size));
  }
}

}  // namespace

bool SelfEquality::equal() const {
  return std::all_of(modes.begin(), modes.end(), [](const auto& mode) { return mode.equal(); });
}

Json SelfEquality::to_json() const {
  Json json = Json::object();
  json.set("n_tokens", n_tokens);
  Json list = Json::array();
  for (const ServingMode& mode : modes) {
    Json item = Json::object();
    item.set("mode", mode.name);
    item.set("equal", mode.equal());
    item.set("sha256", mode.sha256);
    if (!mode.equal()) {
      item.set("expected_sha256", mode.expected_sha256);
      item.set("first_difference", mode.first_difference);
    }
    list.push(std::move(item));
  }
  json.set("modes", std::move(list));
  return json;
}

SelfEquality check_self_equality(Executor& executor, std::span<const int32_t> token_ids) {
  SelfEquality result;
  result.n_tokens = static_cast<int64_t>(token_ids.size());
  check_chunks(executor, token_ids, result);
  check_batches(executor, token_ids, result);
  return result;
}

}  // namespace assay
