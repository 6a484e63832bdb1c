#include "runtime/cpu_executor.h"

#include <algorithm>
#include <string>

#include "convert/core/error.h"
#include "convert/core/isa.h"
#include "runtime/float_environment.h"
#include "runtime/host_memory.h"
#include "runtime/ops/elementwise.h"
#include "runtime/read_bandwidth.h"

namespace assay {
namespace {

constexpr int64_t kHeadRows = 64;  // rows that the head runs on at once: bounds its memory

int64_t capacity_of(const ModelSpec& spec, const ExecutorOptions& options) {
  return options.context > 0 ? options.context : spec.context_length;
}

int64_t batch_rows(const ModelSpec& spec, const ExecutorOptions& options) {
  return std::min(options.max_batch_tokens, capacity_of(spec, options) * options.n_sequences);
}

void check_options(const ExecutorOptions& options) {
  if (options.n_sequences < 1 || options.max_batch_tokens < 1 || options.context < 0) {
    throw UsageError("sequences and batch must be at least 1 and the context not negative; found " +
                     std::to_string(options.n_sequences) + ", " +
                     std::to_string(options.max_batch_tokens) + ", " +
                     std::to_string(options.context));
  }
}

int selection_index(const Program& program) {
  const auto is_selection = [](const Op& op) {
    return std::holds_alternative<SelectRowsOp>(op.kind);
  };
  const auto found = std::find_if(program.ops.begin(), program.ops.end(), is_selection);
  ASSAY_CHECK(found != program.ops.end());
  return static_cast<int>(found - program.ops.begin());
}

/// Collects sizes under their names, in order of first use.
class Ledger {
 public:
  void add(const std::string& name, uint64_t bytes) {
    const auto same = [&](const LedgerItem& item) { return item.name == name; };
    const auto found = std::find_if(items_.begin(), items_.end(), same);
    if (found == items_.end()) {
      items_.push_back({name, bytes});
    } else {
      found->bytes = checked_add(found->bytes, bytes, "memory estimate");
    }
  }
  std::vector<LedgerItem> items() const { return items_; }

 private:
  std::vector<LedgerItem> items_;
};

bool is_packed(const Program& program, size_t matrix) {
  const Role role = program.matrices[matrix].role;
  return role != Role::kTokenEmbedding && role != Role::kPerLayerEmbedding;
}

std::string weights_name(const Checkpoint& checkpoint, const MatrixSlot& slot) {
  return "weights " +
         std::string(checkpoint.stored(slot.role, slot.layer, slot.expert).format->name());
}

std::vector<LedgerItem> estimate_cpu(const Checkpoint& checkpoint, const Program& program,
                                     const ExecutorOptions& options) {
  Ledger ledger;
  for (size_t i = 0; i < program.matrices.size(); ++i) {
    if (!is_packed(program, i)) continue;
    const MatrixSlot& slot = program.matrices[i];
    const StoredTensor& stored = checkpoint.stored(slot.role, slot.layer, slot.expert);
    ledger.add(weights_name(checkpoint, slot),
               PackedMatrix::bytes_for(*stored.format, slot.out_features, slot.in_features,
                                       stored.group_size));
  }
  for (const VectorSlot& slot : program.vectors) {
    ledger.add("norms and biases", static_cast<uint64_t>(slot.size) * sizeof(float));
  }
  const int64_t capacity = capacity_of(program.spec, options);
  for (const RopeSpec& rope : program.ropes) {
    const auto pairs = static_cast<uint64_t>(rope.rotary_dims / 2);
    const uint64_t values =
        checked_multiply(static_cast<uint64_t>(capacity) * 2 + 1, pairs, "rope");
    ledger.add("rope tables", checked_multiply(values, sizeof(float), "rope"));
  }
  ledger.add("kv cache", KvCache::bytes(program.cache_layers, options.kv_type, options.n_sequences,
                                        capacity, batch_rows(program.spec, options)));
  if (!program.state_layers.empty()) {
    ledger.add("recurrent state", KvCache::state_bytes(program.state_layers, options.n_sequences));
  }
  const int64_t rows = batch_rows(program.spec, options);
  for (size_t i = 0; i < program.registers.size(); ++i) {
    const Register r{static_cast<int>(i)};
    ledger.add("activations",
               register_bytes(program.registers[i],
                              register_rows(program, r, rows, std::min(rows, kHeadRows))));
  }
  return ledger.items();
}

class CpuExecutor : public Executor {
 public:
  CpuExecutor(std::shared_ptr<const Checkpoint> checkpoint, Program program,
              const ExecutorOptions& options)
      : program_(std::move(program)),
        options_(options),
        selection_(selection_index(program_)),
        cache_(program_.cache_layers, options.kv_type, options.n_sequences,
               capacity_of(program_.spec, options), program_.state_layers,
               batch_rows(program_.spec, options)) {
    const auto n_ops = static_cast<int>(program_.ops.size());
    bind_weights(program_, std::move(checkpoint), 0, n_ops, cache_.capacity(), weights_);
    const int64_t rows = batch_rows(program_.spec, options_);
    prepare_registers(program_, 0, selection_, rows, context_);
    prepare_registers(program_, selection_ + 1, n_ops, std::min(rows, kHeadRows), context_);
    context_.weights = &weights_;
    context_.cache = &cache_;
  }

  const Program& program() const override { return program_; }
  const ExecutorOptions& options() const override { return options_; }
  std::string device_name() const override { return "cpu"; }
  std::vector<LedgerItem> ledger() const override;

  std::optional<double> measure_read_bandwidth() override { return host_read_bandwidth(); }

  int64_t length(int sequence) const override {
    check_sequence(sequence);
    return cache_.length(sequence);
  }
  void reset(int sequence) override {
    check_sequence(sequence);
    cache_.reset(sequence);
  }

  void forward(std::span<const BatchItem> items, std::vector<float>& logits,
               const OpObserver& observer) override;

 private:
  /// All rows of a call, in order.
  struct Batch {
    std::vector<RowPosition> rows;
    std::vector<int32_t> token_ids;
    std::vector<bool> wants_logits;
    int64_t n_logits = 0;
  };

  void check_sequence(int sequence) const;
  Batch flatten(std::span<const BatchItem> items) const;
  void run_pass(const Batch& batch, size_t begin, size_t end, float*& logits,
                const OpObserver& observer);
  void run_head(std::span<const int64_t> selected, float*& logits, const OpObserver& observer);
  void run(const Op& op, const OpObserver& observer);
  void show(const Op& op, Register r, const OpObserver& observer);

  Program program_;
  ExecutorOptions options_;
  int selection_ = 0;  // index of the SelectRowsOp
  CpuWeights weights_;
  KvCache cache_;
  CpuContext context_;
  std::vector<float> shown_;  // a block-int16 register for the observer
};

std::vector<LedgerItem> CpuExecutor::ledger() const {
  Ledger ledger;
  for (size_t i = 0; i < program_.matrices.size(); ++i) {
    if (!is_packed(program_, i)) continue;
    ledger.add(weights_name(*weights_.checkpoint, program_.matrices[i]),
               weights_.matrices[i]->bytes());
  }
  for (const std::vector<float>& v : weights_.vectors) {
    ledger.add("norms and biases", v.size() * sizeof(float));
  }
  for (const auto& rope : weights_.ropes) {
    ledger.add("rope tables",
               (rope->cos.size() + rope->sin.size() + rope->inv_freq.size()) * sizeof(float));
  }
  ledger.add("kv cache", cache_.bytes());
  if (!program_.state_layers.empty()) {
    ledger.add("recurrent state",
               KvCache::state_bytes(program_.state_layers, options_.n_sequences));
  }
  for (const std::vector<float>& values : context_.registers.f32) {
    ledger.add("activations", values.capacity() * sizeof(float));
  }
  for (const BlockInt16& block : context_.registers.block) {
    ledger.add("activations",
               block.high.capacity() + block.low.capacity() +
                   block.scales.capacity() * sizeof(float) +
                   (block.high_sums.capacity() + block.low_sums.capacity()) * sizeof(int16_t));
  }
  return ledger.items();
}

void CpuExecutor::check_sequence(int sequence) const {
  if (sequence >= 0 && sequence < options_.n_sequences) return;
  throw UsageError("sequence " + std::to_string(sequence) +
                   " does not exist; the model was loaded "
                   "for " +
                   std::to_string(options_.n_sequences));
}

CpuExecutor::Batch CpuExecutor::flatten(std::span<const BatchItem> items) const {
  Batch batch;
  std::vector<int64_t> lengths(static_cast<size_t>(options_.n_sequences));
  for (int s = 0; s < options_.n_sequences; ++s) lengths[static_cast<size_t>(s)] = cache_.length(s);
  for (const BatchItem& item : items) {
    check_sequence(item.sequence);
    int64_t& length = lengths[static_cast<size_t>(item.sequence)];
    const auto n = static_cast<int64_t>(item.token_ids.size());
    if (n > cache_.capacity() - length) {
      throw UsageError("context: sequence " + std::to_string(item.sequence) + " holds " +
                       std::to_string(length) + " tokens and " + std::to_string(n) +
                       " more were given, the context has room for " +
                       std::to_string(cache_.capacity()) +
                       "; use a larger --context or fewer tokens");
    }
    length += n;
  }
  for (int s = 0; s < options_.n_sequences; ++s) lengths[static_cast<size_t>(s)] = cache_.length(s);
  for (const BatchItem& item : items) {
    for (size_t i = 0; i < item.token_ids.size(); ++i) {
      const int32_t id = item.token_ids[i];
      if (id < 0 || id >= program_.spec.vocab_size) {
        throw UsageError("token id " + std::to_string(id) + " at index " + std::to_string(i) +
                         " is outside the vocabulary of " +
                         std::to_string(program_.spec.vocab_size));
      }
      const bool last = i + 1 == item.token_ids.size();
      const bool selected =
          item.logits == LogitRows::kAll || (item.logits == LogitRows::kLast && last);
      batch.rows.push_back({item.sequence, lengths[static_cast<size_t>(item.sequence)]++});
      batch.token_ids.push_back(id);
      batch.wants_logits.push_back(selected);
      batch.n_logits += selected ? 1 : 0;
    }
  }
  return batch;
}

void CpuExecutor::forward(std::span<const BatchItem> items, std::vector<float>& logits,
                          const OpObserver& observer) {
  check_float_environment();
  const Batch batch = flatten(items);
  logits.resize(static_cast<size_t>(batch.n_logits * program_.spec.vocab_size));
  std::vector<int64_t> lengths;
  for (int s = 0; s < options_.n_sequences; ++s) lengths.push_back(cache_.length(s));
  const auto pass = static_cast<size_t>(batch_rows(program_.spec, options_));
  float* next = logits.data();
  try {
    for (size_t begin = 0; begin < batch.rows.size(); begin += pass) {
      run_pass(batch, begin, std::min(batch.rows.size(), begin + pass), next, observer);
    }
  } catch (...) {
    for (int s = 0; s < options_.n_sequences; ++s) {
      cache_.set_length(s, lengths[static_cast<size_t>(s)]);
    }
    // States and rings cannot go back to where the call began.
    if (!cache_.can_rewind()) {
      for (const BatchItem& item : items) cache_.reset(item.sequence);
    }
    throw;
  }
}

void CpuExecutor::run_pass(const Batch& batch, size_t begin, size_t end, float*& logits,
                           const OpObserver& observer) {
  const auto from = static_cast<int64_t>(begin);
  const auto to = static_cast<int64_t>(end);
  context_.rows.assign(batch.rows.begin() + from, batch.rows.begin() + to);
  context_.token_ids.assign(batch.token_ids.begin() + from, batch.token_ids.begin() + to);
  context_.n_rows = to - from;
  for (int i = 0; i < selection_; ++i) run(program_.ops[static_cast<size_t>(i)], observer);
  for (const RowPosition& row : context_.rows) cache_.set_length(row.sequence, row.position + 1);

  std::vector<int64_t> selected;
  for (size_t i = begin; i < end; ++i) {
    if (batch.wants_logits[i]) selected.push_back(static_cast<int64_t>(i - begin));
  }
  for (size_t i = 0; i < selected.size(); i += kHeadRows) {
    const size_t n = std::min<size_t>(kHeadRows, selected.size() - i);
    run_head(std::span(selected).subspan(i, n), logits, observer);
  }
}

void CpuExecutor::run_head(std::span<const int64_t> selected, float*& logits,
                           const OpObserver& observer) {
  context_.selected_rows.assign(selected.begin(), selected.end());
  for (size_t i = static_cast<size_t>(selection_); i < program_.ops.size(); ++i) {
    run(program_.ops[i], observer);
  }
  const std::vector<float>& values =
      context_.registers.f32[static_cast<size_t>(program_.logits.index)];
  const int64_t n = context_.n_rows * program_.spec.vocab_size;
  const int64_t bad = find_not_finite(values.data(), n);
  if (bad >= 0) {
    throw_not_finite(program_.ops.back(), context_, bad / program_.spec.vocab_size,
                     bad % program_.spec.vocab_size, values[static_cast<size_t>(bad)], "logit");
  }
  logits = std::copy_n(values.data(), n, logits);
}

void CpuExecutor::run(const Op& op, const OpObserver& observer) {
  run_op(op, context_);
  if (!observer) return;
  for (const Register r : writes(op)) show(op, r, observer);
}

void CpuExecutor::show(const Op& op, Register r, const OpObserver& observer) {
  const auto i = static_cast<size_t>(r.index);
  const RegisterSpec& spec = program_.registers[i];
  const auto size = static_cast<size_t>(context_.n_rows * spec.columns);
  if (!spec.block_int16) {
    observer(op, spec, std::span(context_.registers.f32[i]).first(size));
    return;
  }
  shown_.resize(size);
  dequantize_block_int16(context_.registers.block[i], shown_.data());
  observer(op, spec, shown_);
}

class CpuDevice : public Device {
 public:
  std::string name() const override { return "cpu"; }

  std::vector<LedgerItem> estimate(const Checkpoint& checkpoint,
                                   const ExecutorOptions& options) const override {
    check_options(options);
    return estimate_cpu(checkpoint, build_program(checkpoint.spec(), checkpoint.tensors()),
                        options);
  }

  std::unique_ptr<Executor> load(std::shared_ptr<const Checkpoint> checkpoint,
                                 const ExecutorOptions& options) override {
    check_options(options);
    check_float_environment();
    Program program = build_program(checkpoint->spec(), checkpoint->tensors());
    if (const auto available = available_host_memory()) {
      require_memory(estimate_cpu(*checkpoint, program, options), *available,
                     checkpoint->path() + " on cpu");
    }
    return std::make_unique<CpuExecutor>(std::move(checkpoint), std::move(program), options);
  }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace assay
