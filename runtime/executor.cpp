#include "runtime/executor.h"

#include "runtime/ops/nll.h"

namespace assay {

std::vector<int32_t> Executor::decode_greedy(int sequence, int32_t first_token, int64_t n_tokens) {
  std::vector<int32_t> generated;
  std::vector<float> logits;
  int32_t token = first_token;
  for (int64_t i = 0; i < n_tokens; ++i) {
    const BatchItem item{sequence, {&token, 1}, LogitRows::kLast};
    forward({&item, 1}, logits);
    token = static_cast<int32_t>(argmax(logits));
    generated.push_back(token);
  }
  return generated;
}

}  // namespace assay
