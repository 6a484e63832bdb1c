#include "runtime/decoder.h"

#include <algorithm>
#include <string>

#include "convert/core/error.h"
#include "convert/core/stopwatch.h"

namespace assay {
namespace {

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kLength:
      return "length";
    case StopReason::kStopToken:
      return "stop_token";
    case StopReason::kInterrupted:
      return "interrupted";
  }
  return "";
}

double Generation::seconds_per_token() const {
  if (token_ids.size() < 2) return 0.0;
  return (elapsed_s - first_token_s) / static_cast<double>(token_ids.size() - 1);
}

void check_context(int64_t n_prompt, int64_t n_new, int64_t context) {
  if (n_prompt <= context && n_new <= context - n_prompt) return;
  std::string message = "context of " + std::to_string(context) + " tokens: the prompt has " +
                        std::to_string(n_prompt) + " and " + std::to_string(n_new) +
                        " new ones were asked for; ";
  message += n_prompt > context ? "shorten the prompt or use a larger --context"
                                : "there is room for " + std::to_string(context - n_prompt) +
                                      " new ones, use a smaller -n or a larger --context";
  throw UsageError(message);
}

Generation generate(Executor& executor, int sequence, std::span<const int32_t> prompt,
                    const GenerateOptions& options,
                    const std::function<bool(int32_t id)>& on_token) {
  check_sampling_options(options.sampling);
  if (prompt.empty()) throw UsageError("the prompt has no tokens; give at least one (BOS will do)");
  const int64_t capacity = executor.options().context > 0 ? executor.options().context
                                                          : executor.program().spec.context_length;
  const auto n_prompt = static_cast<int64_t>(prompt.size());
  check_context(executor.length(sequence) + n_prompt, options.max_new_tokens, capacity);

  Generation result;
  const Stopwatch watch;
  std::vector<float> logits;
  BatchItem item{sequence, prompt, LogitRows::kLast};
  while (static_cast<int64_t>(result.token_ids.size()) < options.max_new_tokens) {
    executor.forward(std::span(&item, 1), logits);
    const int32_t id = sample(logits, options.sampling, executor.length(sequence));
    result.token_ids.push_back(id);
    result.elapsed_s = watch.seconds();
    if (result.token_ids.size() == 1) result.first_token_s = result.elapsed_s;
    if (on_token && !on_token(id)) {
      result.stop_reason = StopReason::kInterrupted;
      break;
    }
    if (contains(options.stop_ids, id)) {
      result.stop_reason = StopReason::kStopToken;
      break;
    }
    item.token_ids = std::span(&result.token_ids.back(), 1);
  }
  return result;
}

}  // namespace assay
