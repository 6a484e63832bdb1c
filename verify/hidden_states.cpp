#include "verify/hidden_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

namespace assay {
namespace {

/// The last op in [begin, end) that writes the residual stream leaves the state there; nullptr if
/// none does.
const Op* last_writer(const Program& program, int begin, int end) {
  for (int i = end - 1; i >= begin; --i) {
    const Op& op = program.ops[static_cast<size_t>(i)];
    const std::vector<Register> written = writes(op);
    if (std::find(written.begin(), written.end(), program.residual) != written.end()) return &op;
  }
  return nullptr;
}

/// Which ops write the hidden states that have names, by the op's own name.
std::map<std::string, std::string> names_by_op(const Program& program) {
  std::map<std::string, std::string> names;
  const Op* last_norm = nullptr;
  for (const Op& op : program.ops) {
    if (op.layer < 0 && std::holds_alternative<RmsNormOp>(op.kind)) last_norm = &op;
  }
  if (last_norm != nullptr) names[last_norm->name] = "final_norm";
  if (const Op* op = last_writer(program, 0, program.layers.front().begin)) {
    names[op->name] = "embeddings";
  }
  for (size_t layer = 0; layer < program.layers.size(); ++layer) {
    const OpRange& range = program.layers[layer];
    if (const Op* op = last_writer(program, range.begin, range.end)) {
      names[op->name] = fmt::format("layer.{}.output", layer);
    }
  }
  return names;
}

}  // namespace

std::map<std::string, std::vector<float>> run_hidden_states(Executor& executor,
                                                            std::span<const int32_t> token_ids) {
  const std::map<std::string, std::string> names = names_by_op(executor.program());
  std::map<std::string, std::vector<float>> states;
  const auto observe = [&](const Op& op, const RegisterSpec&, std::span<const float> values) {
    const auto found = names.find(op.name);
    if (found == names.end()) return;
    auto& state = states[found->second];
    state.insert(state.end(), values.begin(), values.end());
  };
  executor.reset(0);
  const auto chunk = static_cast<size_t>(executor.options().max_batch_tokens);
  std::vector<float> logits;
  for (size_t begin = 0; begin < token_ids.size(); begin += chunk) {
    const auto ids = token_ids.subspan(begin, std::min(chunk, token_ids.size() - begin));
    const BatchItem item{0, ids, LogitRows::kAll};  // so that the last norm sees every row
    executor.forward({&item, 1}, logits, observe);
  }
  return states;
}

}  // namespace assay
