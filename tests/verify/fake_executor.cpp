#include "tests/verify/fake_executor.h"

#include <fmt/format.h>

#include <bit>

#include "convert/core/error.h"

namespace assay::test {
namespace {

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Program fake_program() {
  Program program;
  program.spec.family = "fake";
  program.spec.vocab_size = kFakeVocab;
  program.spec.hidden_size = kFakeHidden;
  program.spec.layers.resize(2);
  program.registers = {{"h", kFakeHidden, false},
                       {"up", kFakeHidden, false},
                       {"normed", kFakeHidden, false},
                       {"logits", kFakeVocab, false}};
  program.residual = {0};
  program.logits = {3};
  program.ops.push_back({EmbedOp{0, {0}}, "embed_tokens", -1});
  program.matrices.push_back(
      {Role::kTokenEmbedding, -1, "model.embed_tokens", kFakeVocab, kFakeHidden, false});
  for (int layer = 0; layer < 2; ++layer) {
    const int begin = static_cast<int>(program.ops.size());
    program.matrices.push_back({Role::kUpProj, layer,
                                fmt::format("model.layers.{}.mlp.up_proj", layer), kFakeHidden,
                                kFakeHidden, true});
    program.ops.push_back({LinearOp{{0}, {1}, layer + 1, std::nullopt},
                           fmt::format("layers.{}.mlp.up_proj", layer), layer});
    program.ops.push_back({AddOp{{0}, {1}}, fmt::format("layers.{}.mlp.residual", layer), layer});
    program.layers.push_back({begin, begin + 2});
  }
  program.ops.push_back({RmsNormOp{{0}, {2}, 0, 1e-5f}, "norm", -1});
  program.matrices.push_back({Role::kHead, -1, "lm_head", kFakeVocab, kFakeHidden, false});
  program.ops.push_back({LinearOp{{2}, {3}, 3, std::nullopt}, "lm_head", -1});
  return program;
}

class FakeExecutor final : public Executor {
 public:
  FakeExecutor(const ExecutorOptions& options, const FakeFaults& faults)
      : options_(options),
        faults_(faults),
        program_(fake_program()),
        histories_(static_cast<size_t>(options.n_sequences)) {}

  const Program& program() const override { return program_; }
  const ExecutorOptions& options() const override { return options_; }
  std::string device_name() const override { return "fake"; }
  std::vector<LedgerItem> ledger() const override { return {}; }
  int64_t length(int sequence) const override {
    return static_cast<int64_t>(history(sequence).size());
  }
  void reset(int sequence) override {
    if (faults_.forgets_reset) salt_ += history(sequence).size() > 0 ? 1 : 0;
    histories_[static_cast<size_t>(sequence)].clear();
  }

  void forward(std::span<const BatchItem> items, std::vector<float>& logits,
               const OpObserver& observer) override {
    logits.clear();
    std::vector<std::vector<float>> values(program_.ops.size());
    for (const BatchItem& item : items) {
      for (size_t i = 0; i < item.token_ids.size(); ++i) {
        const bool last = i + 1 == item.token_ids.size();
        const bool wanted =
            item.logits == LogitRows::kAll || (item.logits == LogitRows::kLast && last);
        auto& tokens = histories_[static_cast<size_t>(item.sequence)];
        tokens.push_back(item.token_ids[i]);
        add_row(item, items.size(), wanted, values);
      }
    }
    logits = values.back();
    if (!observer) return;
    for (size_t op = 0; op < program_.ops.size(); ++op) {
      const Register written = writes(program_.ops[op]).front();
      observer(program_.ops[op], program_.registers[static_cast<size_t>(written.index)],
               values[op]);
    }
  }

 private:
  const std::vector<int32_t>& history(int sequence) const {
    return histories_[static_cast<size_t>(sequence)];
  }

  /// Values of every op for the newest token of a sequence.
  void add_row(const BatchItem& item, size_t n_items, bool wanted,
               std::vector<std::vector<float>>& values) const {
    const std::vector<int32_t>& tokens = history(item.sequence);
    const auto position = static_cast<int64_t>(tokens.size()) - 1;
    uint64_t state = 0x1234 + salt_;
    for (const int32_t id : tokens) state = mix(state * 31 + static_cast<uint64_t>(id) + 1);
    bool changed = false;
    for (size_t op = 0; op < program_.ops.size(); ++op) {
      const bool head = op + 1 == program_.ops.size();
      if (op + 2 >= program_.ops.size() && !wanted) continue;  // norm and head: selected rows only
      const int64_t columns = head ? kFakeVocab : kFakeHidden;
      for (int64_t column = 0; column < columns; ++column) {
        float value = value_of(state, op, column);
        const bool here = program_.ops[op].name == faults_.op && position == faults_.position;
        if (here && column == faults_.index) changed = true;
        if (changed && (column == faults_.index || !here)) value = flip(value);
        if (head) value = with_logit_faults(value, item, n_items, position, column);
        values[op].push_back(value);
      }
    }
  }

  float with_logit_faults(float value, const BatchItem& item, size_t n_items, int64_t position,
                          int64_t column) const {
    if (faults_.op.empty() && position == faults_.position) value += faults_.logit_shift;
    if (position == faults_.position && column == faults_.index) value += faults_.one_logit_shift;
    if (column != 3) return value;
    if (faults_.depends_on_chunks && item.token_ids.size() > 1) value = flip(value);
    if (faults_.depends_on_batch && n_items > 1) value = flip(value);
    return value;
  }

  static float value_of(uint64_t state, size_t op, int64_t column) {
    const uint64_t bits = mix(state ^ (op * 1000 + static_cast<uint64_t>(column)));
    return static_cast<float>(static_cast<int64_t>(bits >> 40) - (1 << 23)) * 0x1p-20f;
  }
  static float flip(float value) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ 1u);
  }

  ExecutorOptions options_;
  FakeFaults faults_;
  Program program_;
  std::vector<std::vector<int32_t>> histories_;
  uint64_t salt_ = 0;
};

}  // namespace

std::unique_ptr<Executor> make_fake_executor(const ExecutorOptions& options,
                                             const FakeFaults& faults) {
  return std::make_unique<FakeExecutor>(options, faults);
}

}  // namespace assay::test
