#include "verify/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <variant>

#include "verify/describe.h"
#include "verify/weights.h"

namespace assay {
namespace {

uint64_t hash_of(std::span<const float> values) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over 32-bit words
  for (const float value : values) {
    hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3u;
    hash ^= hash >> 29;  // spreads high bits, which FNV over words leaves weak
  }
  return hash;
}

/// One value that an op wrote, in the order of execution.
struct Trace {
  std::string op;
  int64_t n_values = 0;
  int64_t columns = 0;
  uint64_t hash = 0;
};

/// Sees every op of a run, with the position of the call's first token and the call's tokens.
using CallObserver = std::function<void(int64_t first_position, int64_t n_tokens, const Op&,
                                        const RegisterSpec&, std::span<const float>)>;

void run_observed(Executor& executor, std::span<const int32_t> token_ids,
                  const CallObserver& observer) {
  executor.reset(0);
  const auto chunk = static_cast<size_t>(executor.options().max_batch_tokens);
  std::vector<float> logits;
  for (size_t begin = 0; begin < token_ids.size(); begin += chunk) {
    const auto ids = token_ids.subspan(begin, std::min(chunk, token_ids.size() - begin));
    const bool last = begin + ids.size() == token_ids.size();
    const BatchItem item{0, ids, last ? LogitRows::kLast : LogitRows::kNone};
    executor.forward({&item, 1}, logits,
                     [&](const Op& op, const RegisterSpec& spec, std::span<const float> values) {
                       observer(static_cast<int64_t>(begin), static_cast<int64_t>(ids.size()), op,
                                spec, values);
                     });
  }
}

std::vector<Trace> trace_of(Executor& executor, std::span<const int32_t> token_ids) {
  std::vector<Trace> traces;
  run_observed(
      executor, token_ids,
      [&](int64_t, int64_t, const Op& op, const RegisterSpec& spec, std::span<const float> values) {
        traces.push_back(
            {op.name, static_cast<int64_t>(values.size()), spec.columns, hash_of(values)});
      });
  return traces;
}

/// Values number `wanted` of a run, with the op that wrote them and the call that it belongs to.
struct Captured {
  Op op;
  RegisterSpec spec;
  std::vector<float> values;
  int64_t first_position = 0;
  int64_t n_tokens = 0;

  /// Ops after the selection of rows work on the last token of the call only.
  int64_t position_of(int64_t row) const {
    const int64_t n_rows = static_cast<int64_t>(values.size()) / spec.columns;
    return first_position + (n_rows < n_tokens ? n_tokens - 1 : row);
  }
};

Captured capture(Executor& executor, std::span<const int32_t> token_ids, size_t wanted) {
  Captured captured;
  size_t number = 0;
  run_observed(executor, token_ids,
               [&](int64_t first_position, int64_t n_tokens, const Op& op, const RegisterSpec& spec,
                   std::span<const float> values) {
                 if (number++ != wanted) return;
                 captured = {op, spec, {values.begin(), values.end()}, first_position, n_tokens};
               });
  return captured;
}

void add_linear(const LinearOp& linear, const Program& program, const Checkpoint* a,
                const Checkpoint* b, OpDifference& difference) {
  const MatrixSlot& slot = program.matrices[static_cast<size_t>(linear.matrix)];
  difference.module = slot.module;
  difference.matrix_row = difference.index;
  if (a == nullptr || b == nullptr) return;
  const auto weight =
      compare_weight_row(a->matrix(slot.role, slot.layer, slot.expert),
                         b->matrix(slot.role, slot.layer, slot.expert), difference.matrix_row);
  difference.weight =
      weight ? fmt::format("weight row {}, column {}: {} against {}", weight->row, weight->column,
                           describe_float(weight->a), describe_float(weight->b))
             : fmt::format("all weights of row {} are equal: the order of the sums differs",
                           difference.matrix_row);
}

std::string describe_traces(const Trace& a, const Trace& b) {
  return fmt::format("{} ({} values) against {} ({} values)", a.op, a.n_values, b.op, b.n_values);
}

}  // namespace

std::vector<std::string> OpDifference::describe() const {
  std::vector<std::string> lines;
  const std::string where =
      layer < 0 ? std::string("outside the layers") : fmt::format("layer {}", layer);
  lines.push_back(fmt::format("first differing op: {} ({}, {}{}), value \"{}\"", op, kind, where,
                              module.empty() ? "" : ", module " + module, value));
  lines.push_back(fmt::format("position {}, index {}: {} against {}; {} values of this op differ",
                              position, index, describe_float(a), describe_float(b), n_different));
  if (!weight.empty()) lines.push_back(weight);
  return lines;
}

Json OpDifference::to_json() const {
  Json json = Json::object();
  json.set("op", op);
  json.set("kind", kind);
  json.set("layer", layer < 0 ? Json(nullptr) : Json(layer));
  json.set("module", module.empty() ? Json(nullptr) : Json(module));
  json.set("value", value);
  json.set("position", position);
  json.set("index", index);
  json.set("a", describe_float(a));
  json.set("b", describe_float(b));
  json.set("n_different", n_different);
  json.set("weight", weight.empty() ? Json(nullptr) : Json(weight));
  return json;
}

Location locate_first_difference(Executor& a, Executor& b, std::span<const int32_t> token_ids,
                                 const Checkpoint* checkpoint_a, const Checkpoint* checkpoint_b) {
  const std::vector<Trace> traces_a = trace_of(a, token_ids), traces_b = trace_of(b, token_ids);
  const size_t n = std::min(traces_a.size(), traces_b.size());
  size_t at = 0;
  while (at < n && traces_a[at].op == traces_b[at].op &&
         traces_a[at].n_values == traces_b[at].n_values && traces_a[at].hash == traces_b[at].hash) {
    ++at;
  }
  if (at == n) {
    if (traces_a.size() == traces_b.size()) return {std::nullopt, "no op differs"};
    return {std::nullopt, fmt::format("the programs differ: {} against {} values written",
                                      traces_a.size(), traces_b.size())};
  }
  if (traces_a[at].op != traces_b[at].op || traces_a[at].n_values != traces_b[at].n_values) {
    return {std::nullopt,
            fmt::format("the programs differ: {}", describe_traces(traces_a[at], traces_b[at]))};
  }

  const Captured captured_a = capture(a, token_ids, at), captured_b = capture(b, token_ids, at);
  const int64_t columns = captured_a.spec.columns;
  const LogitsComparison comparison = compare_logits(captured_a.values, captured_b.values, columns);
  OpDifference difference;
  difference.op = captured_a.op.name;
  difference.layer = captured_a.op.layer;
  difference.kind = kind_name(captured_a.op);
  difference.value = captured_a.spec.name;
  difference.position = captured_a.position_of(comparison.first->row);
  difference.index = comparison.first->column;
  difference.a = comparison.first->a;
  difference.b = comparison.first->b;
  difference.n_different = comparison.n_different;
  if (const auto* linear = std::get_if<LinearOp>(&captured_a.op.kind)) {
    add_linear(*linear, a.program(), checkpoint_a, checkpoint_b, difference);
  }
  return {difference, {}};
}

}  // namespace assay
