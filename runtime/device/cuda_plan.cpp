#include "runtime/device/cuda_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "convert/core/parallel.h"
#include "runtime/ops/linear_cuda_pack.h"
#include "runtime/ops/rope.h"
#include "runtime/ops/step_tables_cuda.h"

namespace assay::cuda {
namespace {

uint64_t aligned(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

int64_t context_of(const Program& program, const ExecutorOptions& options) {
  return options.context > 0 ? options.context : program.spec.context_length;
}

int max_segments_of(const Program& program, const ExecutorOptions& options) {
  return static_cast<int>((context_of(program, options) + 127) / 128) + 1;
}

/// Thread blocks per token and KV head of split attention: enough to fill the card once.
int splits_of(const AttentionOp& op, int max_segments, const DeviceLimits& limits) {
  return std::clamp(limits.multiprocessors / op.n_kv_heads, 1, max_segments);
}

/// Bytes of all results between the stages of a step program, at most.
uint64_t step_vectors_bytes(const Program& program) {
  uint64_t bytes = 0;
  for (const Op& op : program.ops) {
    if (const auto* linear = std::get_if<LinearOp>(&op.kind);
        linear && linear->out != program.logits)
      bytes +=
          step_vector_bytes(program.matrices[static_cast<size_t>(linear->matrix)].out_features);
    else if (const auto* attention = std::get_if<AttentionOp>(&op.kind))
      bytes += step_vector_bytes(int64_t{attention->n_heads} * attention->head_dim);
  }
  return bytes;
}

/// Bytes of the tables of a step program, each aligned.
uint64_t step_table_bytes(uint64_t n_stages, const Program& program, const DeviceLimits& limits) {
  const auto blocks = static_cast<uint64_t>(limits.multiprocessors);
  return aligned(step_vectors_bytes(program)) + aligned(n_stages * sizeof(StepStage)) +
         aligned(n_stages * blocks * sizeof(BlockShare)) +
         aligned(n_stages * blocks * sizeof(WeightStream));
}

/// Stages that a program can have, at most: each needs a linear or an attention of its own.
uint64_t most_stages(const Program& program) {
  return static_cast<uint64_t>(
      std::count_if(program.ops.begin(), program.ops.end(), [](const Op& op) {
        return std::holds_alternative<LinearOp>(op.kind) ||
               std::holds_alternative<AttentionOp>(op.kind);
      }));
}

/// The widest input of any linear, columns.
int64_t widest_input(const Program& program) {
  int64_t widest = 0;
  for (const MatrixSlot& slot : program.matrices) widest = std::max(widest, slot.in_features);
  return widest;
}

const AttentionOp* first_attention(const Program& program) {
  for (const Op& op : program.ops)
    if (const auto* attention = std::get_if<AttentionOp>(&op.kind)) return attention;
  return nullptr;
}

bool is_raw(const WeightFormat& format) { return format.fold() == Fold::kFloat; }

/// How a matrix lies on disk, without reading it. A tied head is the embedding: the same object.
const StoredTensor& stored(const Checkpoint& checkpoint, const MatrixSlot& slot) {
  return checkpoint.stored(slot.role, slot.layer);
}

/// Columns per scale.
int64_t group_of(const StoredTensor& stored, const MatrixSlot& slot) {
  return stored.group_size > 0 ? stored.group_size : slot.in_features;
}

/// Builds a plan; one instance per load.
class Builder {
 public:
  Builder(const std::shared_ptr<const Checkpoint>& checkpoint, const ExecutorOptions& options,
          const DeviceLimits& limits, cudaStream_t stream)
      : checkpoint_(checkpoint),
        options_(options),
        limits_(limits),
        stream_(stream),
        staging_{PinnedBuffer(kStagingBytes), PinnedBuffer(kStagingBytes)} {
    for (cudaEvent_t& event : copied_)
      ASSAY_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  ~Builder() {
    for (cudaEvent_t event : copied_) static_cast<void>(cudaEventDestroy(event));
  }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  Plan build() {
    plan_.program = build_program(checkpoint_->spec(), checkpoint_->tensors());
    plan_.ledger = estimate(*checkpoint_, plan_.program, options_, limits_);
    uint64_t total = 0;
    for (const LedgerItem& item : plan_.ledger) total += item.bytes;
    reserve(total);
    take_buffers();
    bind_registers();
    const std::vector<Op>& ops = plan_.program.ops;
    for (size_t i = 0; i < ops.size();) i = add_step(i);
    add_step_program();
    ASSAY_CUDA(cudaStreamSynchronize(stream_));
    return std::move(plan_);
  }

 private:
  static constexpr size_t kStagingBytes = size_t{32} << 20;

  void reserve(uint64_t total) {
    try {
      plan_.arena = Arena(total);
    } catch (const ResourceError& error) {
      size_t available = 0, all = 0;
      static_cast<void>(cudaMemGetInfo(&available, &all));
      std::string message =
          fmt::format("the GPU has {:.2f} GB free of {:.2f}, this load needs {:.2f} GB:",
                      static_cast<double>(available) / 1e9, static_cast<double>(all) / 1e9,
                      static_cast<double>(total) / 1e9);
      for (const LedgerItem& item : plan_.ledger)
        message += fmt::format(" {} {:.2f} GB,", item.name, static_cast<double>(item.bytes) / 1e9);
      throw ResourceError(message + " try a smaller --context or fewer sequences");
    }
  }

  template <typename T>
  T* take(uint64_t n) {
    return reinterpret_cast<T*>(plan_.arena.take(n * sizeof(T)));
  }

  /// Sends `bytes` bytes that `fill(staging)` writes to pinned memory, at most kStagingBytes. The
  /// next piece is filled while this one is copied.
  template <typename Fill>
  void send(std::byte* to, size_t bytes, const Fill& fill) {
    ASSAY_CUDA(cudaEventSynchronize(copied_[slot_]));
    fill(staging_[slot_].data());
    ASSAY_CUDA(cudaMemcpyAsync(to, staging_[slot_].data(), bytes, cudaMemcpyHostToDevice, stream_));
    ASSAY_CUDA(cudaEventRecord(copied_[slot_], stream_));
    slot_ ^= 1;
  }

  /// Copies host bytes; returns when the source may go.
  void copy(const void* from, std::byte* to, size_t bytes) {
    const auto* source = static_cast<const std::byte*>(from);
    for (size_t done = 0; done < bytes;) {
      const size_t n = std::min(kStagingBytes, bytes - done);
      send(to + done, n, [&](std::byte* staging) {
        parallel_for(static_cast<int64_t>(n), int64_t{1} << 20, [&](int64_t begin, int64_t end) {
          std::memcpy(staging + begin, source + done + begin, static_cast<size_t>(end - begin));
        });
      });
      done += n;
    }
  }

  template <typename T>
  const T* upload(const std::vector<T>& values) {
    T* to = take<T>(values.size());
    copy(values.data(), reinterpret_cast<std::byte*>(to), values.size() * sizeof(T));
    return to;
  }

  DeviceMatrix upload(const MatrixPacker& packer) {
    DeviceMatrix m = packer.shape();
    const size_t tile_bytes = packer.tile_bytes();
    const auto most = static_cast<int64_t>(kStagingBytes / tile_bytes);
    if (most == 0)
      throw UnsupportedError(fmt::format("cuda: 16 rows of {} columns are more than {} bytes",
                                         m.columns, kStagingBytes));
    std::byte* to = plan_.arena.take(matrix_bytes(m));
    m.units = to;
    for (int64_t tile = 0; tile < m.tiles; tile += most) {
      const int64_t end = std::min<int64_t>(m.tiles, tile + most);
      send(to + static_cast<size_t>(tile) * tile_bytes,
           static_cast<size_t>(end - tile) * tile_bytes,
           [&](std::byte* staging) { packer.pack(tile, end, staging); });
    }
    return m;
  }

  CheckpointMatrix matrix_of(const MatrixSlot& slot) const {
    return checkpoint_->matrix(slot.role, slot.layer);
  }

  const DeviceMatrix& device_matrix(int index) {
    const MatrixSlot& slot = plan_.program.matrices[static_cast<size_t>(index)];
    const StoredTensor& key = stored(*checkpoint_, slot);
    const auto found = matrices_.find(&key);
    if (found != matrices_.end()) return found->second;
    const CheckpointMatrix matrix = matrix_of(slot);
    const MatrixPacker packer(
        slot.module, *key.format, slot.out_features, slot.in_features, group_of(key, slot),
        [&](int64_t row, IntegerRow& out) { matrix.read_integers(row, out); });
    return matrices_.emplace(&key, upload(packer)).first->second;
  }

  void take_buffers() {
    const Program& program = plan_.program;
    const auto rows = static_cast<uint64_t>(options_.max_batch_tokens);
    const auto groups =
        static_cast<uint64_t>((widest_input(program) + kGroupColumns - 1) / kGroupColumns);
    plan_.activations.planes = take<int8_t>(rows * groups * 256);
    plan_.activations.sums16 = take<int32_t>(rows * groups * 8);
    plan_.activations.sums32 = take<int32_t>(rows * groups * 4);
    plan_.activations.sums128 = take<int32_t>(rows * groups);
    plan_.activations.scales = take<float>(rows * groups);
    plan_.token_ids = take<int32_t>(rows);
    plan_.positions = take<int32_t>(rows);
    plan_.sequences = take<int32_t>(rows);
    plan_.selected = take<int32_t>(rows);
    plan_.selected_rows = take<float>(rows * static_cast<uint64_t>(program.spec.hidden_size));
    plan_.logits =
        take<float>(uint64_t{kHeadRows} * static_cast<uint64_t>(program.spec.vocab_size));
    plan_.generated = take<int32_t>(static_cast<uint64_t>(context_of(program, options_)));
    plan_.step = take<int32_t>(1);
    plan_.greedy_partial = take<float>(128 * kMaxGemvTokens);
    plan_.greedy_counters = take<int32_t>(kMaxGemvTokens + 1);
    plan_.fault = take<DeviceFault>(1);
    ASSAY_CUDA(
        cudaMemsetAsync(plan_.greedy_counters, 0, sizeof(int32_t) * (kMaxGemvTokens + 1), stream_));
    ASSAY_CUDA(cudaMemsetAsync(plan_.fault, 0, sizeof(DeviceFault), stream_));
    if (const AttentionOp* attention = first_attention(program)) {
      const auto segments = static_cast<uint64_t>(max_segments_of(program, options_));
      attention_partial_ = take<float>(kMaxGemvTokens * static_cast<uint64_t>(attention->n_heads) *
                                       segments * static_cast<uint64_t>(attention->head_dim + 2));
      attention_counters_ =
          take<int32_t>(kMaxGemvTokens * static_cast<uint64_t>(attention->n_heads));
      ASSAY_CUDA(cudaMemsetAsync(
          attention_counters_, 0,
          sizeof(int32_t) * kMaxGemvTokens * static_cast<size_t>(attention->n_heads), stream_));
    }
  }

  /// Registers that linears of one input write lie side by side in one row (q, k, v; gate, up).
  void bind_registers() {
    const Program& program = plan_.program;
    plan_.registers.resize(program.registers.size());
    const auto rows = static_cast<uint64_t>(options_.max_batch_tokens);
    const std::vector<Op>& ops = program.ops;
    for (size_t i = 0; i < ops.size(); ++i) {
      const auto* first = std::get_if<LinearOp>(&ops[i].kind);
      if (first == nullptr) continue;
      std::vector<Register> outputs;
      size_t end = i;
      for (; end < ops.size(); ++end) {
        const auto* linear = std::get_if<LinearOp>(&ops[end].kind);
        if (linear == nullptr || linear->in != first->in) break;
        outputs.push_back(linear->out);
      }
      i = end - 1;
      if (outputs.size() < 2 ||
          plan_.registers[static_cast<size_t>(outputs[0].index)].data != nullptr)
        continue;
      int64_t width = 0;
      for (Register r : outputs) width += spec_of(r).columns;
      float* data = take<float>(rows * static_cast<uint64_t>(width));
      int64_t offset = 0;
      for (Register r : outputs) {
        plan_.registers[static_cast<size_t>(r.index)] = {data + offset,
                                                         static_cast<int32_t>(width)};
        offset += spec_of(r).columns;
      }
    }
    for (size_t i = 0; i < program.registers.size(); ++i) {
      DeviceRegister& r = plan_.registers[i];
      const RegisterSpec& spec = program.registers[i];
      if (r.data != nullptr || spec.block_int16 || static_cast<int>(i) == program.logits.index)
        continue;
      r = {take<float>(rows * static_cast<uint64_t>(spec.columns)),
           static_cast<int32_t>(spec.columns)};
    }
    plan_.registers[static_cast<size_t>(program.logits.index)] = {
        plan_.logits, static_cast<int32_t>(program.spec.vocab_size)};
  }

  const RegisterSpec& spec_of(Register r) const {
    return plan_.program.registers[static_cast<size_t>(r.index)];
  }
  const DeviceRegister& device(Register r) const {
    return plan_.registers[static_cast<size_t>(r.index)];
  }

  const float* vector(int index) {
    const VectorSlot& slot = plan_.program.vectors[static_cast<size_t>(index)];
    const auto key = std::pair(static_cast<int>(slot.role), slot.layer);
    const auto found = vectors_.find(key);
    if (found != vectors_.end()) return found->second;
    return vectors_.emplace(key, upload(checkpoint_->vector(slot.role, slot.layer))).first->second;
  }

  [[noreturn]] void refuse(const Op& op) const {
    throw UnsupportedError("cuda: no kernel for the op " + op.name +
                           " in this place; use --device cpu");
  }

  size_t add_step(size_t i) {
    const std::vector<Op>& ops = plan_.program.ops;
    const Op& op = ops[i];
    if (const auto* embed = std::get_if<EmbedOp>(&op.kind)) {
      plan_.embed_op = static_cast<int>(i);
      add_embedding(*embed);
      return i + 1;
    }
    if (std::holds_alternative<RmsNormOp>(op.kind) || std::holds_alternative<QuantizeOp>(op.kind))
      return add_linear(i);
    if (std::holds_alternative<RopeOp>(op.kind) || std::holds_alternative<KvWriteOp>(op.kind) ||
        std::holds_alternative<AttentionOp>(op.kind))
      return add_attention(i);
    if (const auto* swiglu = std::get_if<SwiGluOp>(&op.kind)) {
      plan_.steps.emplace_back(SwiGluStep{static_cast<int>(i), device(swiglu->gate),
                                          device(swiglu->up), device(swiglu->out),
                                          static_cast<int32_t>(spec_of(swiglu->out).columns)});
      return i + 1;
    }
    if (std::holds_alternative<SelectRowsOp>(op.kind)) {
      after_selection_ = true;
      return i + 1;
    }
    refuse(op);
  }

  void add_embedding(const EmbedOp& embed) {
    const MatrixSlot& slot = plan_.program.matrices[static_cast<size_t>(embed.matrix)];
    const WeightFormat& format = *stored(*checkpoint_, slot).format;
    if (!is_raw(format)) {
      plan_.embedding = device_matrix(embed.matrix);
      return;
    }
    const CheckpointMatrix matrix = matrix_of(slot);
    const size_t bytes = static_cast<size_t>(format.row_bytes(slot.in_features)) *
                         static_cast<size_t>(slot.out_features);
    std::byte* to = plan_.arena.take(bytes);
    copy(matrix.view.data.data(), to, bytes);
    plan_.embedding_rows = to;
    plan_.embedding_type = format.code_bits() == 32                 ? ScaleType::kF32
                           : &format == &scalar_format(DType::kF16) ? ScaleType::kF16
                                                                    : ScaleType::kBF16;
  }

  size_t add_linear(size_t i) {
    const std::vector<Op>& ops = plan_.program.ops;
    LinearStep step;
    GemvArguments& a = step.arguments;
    if (const auto* norm = std::get_if<RmsNormOp>(&ops[i].kind)) {
      if (norm->weight < 0 || norm->n_heads != 1 || norm->out == norm->in) refuse(ops[i]);
      step.input = norm->in;
      a.norm_weight = vector(norm->weight);
      step.norm_op = static_cast<int>(i);
      a.eps = norm->eps;
      ++i;
    }
    const auto* quantize = i < ops.size() ? std::get_if<QuantizeOp>(&ops[i].kind) : nullptr;
    if (quantize == nullptr) refuse(ops[i - 1]);
    if (a.norm_weight == nullptr) step.input = quantize->in;
    const Register quantized = quantize->out;
    ++i;
    std::vector<const LinearOp*> linears;
    for (; i < ops.size(); ++i) {
      const auto* linear = std::get_if<LinearOp>(&ops[i].kind);
      if (linear == nullptr || linear->in != quantized) break;
      linears.push_back(linear);
      step.linears.push_back(static_cast<int>(i));
    }
    if (linears.empty() || linears.size() > kMaxGemvMatrices) refuse(ops[i - 1]);
    step.reported_op = static_cast<int>(i) - 1;
    DeviceRegister out = device(linears[0]->out);
    const bool is_head = linears[0]->out == plan_.program.logits;
    std::vector<DeviceMatrix> matrices;
    const auto* add = i < ops.size() ? std::get_if<AddOp>(&ops[i].kind) : nullptr;
    const auto* swiglu = i < ops.size() ? std::get_if<SwiGluOp>(&ops[i].kind) : nullptr;
    if (add != nullptr && linears.size() == 1 && add->y == linears[0]->out) {
      // A bias is added before the residual, each with one rounding.
      a.epilogue = Epilogue::kAddTo;
      out = device(add->x);
      step.reported_op = static_cast<int>(i++);
    } else if (swiglu != nullptr && can_interleave(linears, *swiglu)) {
      a.epilogue = Epilogue::kSwiGlu;
      out = device(swiglu->out);
      matrices.push_back(interleaved(*linears[0], *linears[1]));
      step.reported_op = static_cast<int>(i++);
    }
    if (a.epilogue != Epilogue::kSwiGlu) {
      int32_t offset = 0;
      for (size_t k = 0; k < linears.size(); ++k) {
        matrices.push_back(device_matrix(linears[k]->matrix));
        a.bias[k] = linears[k]->bias ? vector(*linears[k]->bias) : nullptr;
        a.out_offset[k] = offset;
        offset += static_cast<int32_t>(spec_of(linears[k]->out).columns);
      }
    }
    const std::vector<int32_t> n_blocks = deal_blocks(matrices, limits_.multiprocessors);
    std::copy(matrices.begin(), matrices.end(), a.matrices);
    std::copy(n_blocks.begin(), n_blocks.end(), a.n_blocks);
    a.x = device(step.input).data;
    a.inverse_n = 1.0f / static_cast<float>(matrices.front().columns);
    a.out = out.data;
    a.out_stride = out.stride;
    a.fault_op = step.linears.front() + 1;
    a.fault = plan_.fault;
    if (is_head)
      plan_.head = step;
    else if (after_selection_)
      refuse(ops[static_cast<size_t>(step.reported_op)]);
    else
      plan_.steps.emplace_back(std::move(step));
    return i;
  }

  bool can_interleave(const std::vector<const LinearOp*>& linears, const SwiGluOp& swiglu) const {
    if (linears.size() != 2 || linears[0]->out != swiglu.gate || linears[1]->out != swiglu.up)
      return false;
    if (linears[0]->bias || linears[1]->bias) return false;
    const MatrixSlot& gate = plan_.program.matrices[static_cast<size_t>(linears[0]->matrix)];
    const MatrixSlot& up = plan_.program.matrices[static_cast<size_t>(linears[1]->matrix)];
    const StoredTensor &a = stored(*checkpoint_, gate), &b = stored(*checkpoint_, up);
    return a.format == b.format && group_of(a, gate) == group_of(b, up) &&
           gate.out_features == up.out_features && gate.out_features % 8 == 0;
  }

  /// Tile t holds rows 8t … 8t + 7 of gate, then the same of up.
  DeviceMatrix interleaved(const LinearOp& gate_op, const LinearOp& up_op) {
    const MatrixSlot& gate_slot = plan_.program.matrices[static_cast<size_t>(gate_op.matrix)];
    const CheckpointMatrix gate = matrix_of(gate_slot);
    const CheckpointMatrix up =
        matrix_of(plan_.program.matrices[static_cast<size_t>(up_op.matrix)]);
    const StoredTensor& both = stored(*checkpoint_, gate_slot);
    return upload(MatrixPacker(gate_slot.module, *both.format, 2 * gate_slot.out_features,
                               gate_slot.in_features, group_of(both, gate_slot),
                               [&](int64_t row, IntegerRow& out) {
                                 const int64_t source = row / 16 * 8 + row % 8;
                                 (row % 16 < 8 ? gate : up).read_integers(source, out);
                               }));
  }

  /// The steps and the head as stages of one kernel, if the device and all of them allow it.
  void add_step_program() {
    const uint64_t vector_bytes = step_vectors_bytes(plan_.program);
    auto* vectors = take<std::byte>(vector_bytes);
    uint64_t bytes = 0, n_linears = 0;
    const auto count = [&](const LinearStep& linear) {
      ++n_linears;
      for (int i = 0; i < n_matrices(linear.arguments); ++i)
        bytes += bytes_read(linear.arguments.matrices[i]);
    };
    for (const Step& step : plan_.steps)
      if (const auto* linear = std::get_if<LinearStep>(&step)) count(*linear);
    count(plan_.head);
    StepTables tables(limits_, vectors, vector_bytes, bytes / n_linears);
    for (const Step& step : plan_.steps) {
      if (const auto* linear = std::get_if<LinearStep>(&step))
        tables.add_linear(linear->arguments);
      else if (const auto* attention = std::get_if<AttentionStep>(&step))
        tables.add_attention(attention->arguments);
      else
        return;
    }
    GemvArguments head = plan_.head.arguments;
    head.x = device(plan_.program.residual).data;  // the only row is the selected one
    tables.add_linear(head);
    if (!tables.can_run()) return;
    StepProgram program;
    program.grid = limits_.multiprocessors;
    program.arguments = tables.sizes();
    program.arguments.stages = upload(tables.stages());
    program.arguments.shares = upload(tables.shares());
    program.arguments.streams = upload(tables.streams());
    program.arguments.positions = plan_.positions;
    program.arguments.sequences = plan_.sequences;
    plan_.step_program = program;
  }

  size_t add_attention(size_t i) {
    const std::vector<Op>& ops = plan_.program.ops;
    const auto* rope_q = std::get_if<RopeOp>(&ops[i].kind);
    const auto* rope_k = i + 1 < ops.size() ? std::get_if<RopeOp>(&ops[i + 1].kind) : nullptr;
    const auto* write = i + 2 < ops.size() ? std::get_if<KvWriteOp>(&ops[i + 2].kind) : nullptr;
    const auto* attention =
        i + 3 < ops.size() ? std::get_if<AttentionOp>(&ops[i + 3].kind) : nullptr;
    if (rope_q == nullptr || rope_k == nullptr || write == nullptr || attention == nullptr ||
        rope_q->x != attention->q || rope_k->x != write->k || rope_q->table != rope_k->table ||
        attention->head_dim % 32 != 0 || attention->head_dim > kMaxHeadDim)
      refuse(ops[i]);
    AttentionStep step;
    step.op = static_cast<int>(i) + 3;
    AttentionArguments& a = step.arguments;
    const DeviceRegister q = device(attention->q), k = device(write->k), v = device(write->v);
    a.qkv = q.data;
    a.qkv_stride = q.stride;
    a.k_offset = static_cast<int32_t>(k.data - q.data);
    a.v_offset = static_cast<int32_t>(v.data - q.data);
    const auto [cos, sin] = rope(rope_q->table);
    a.rope_cos = cos;
    a.rope_sin = sin;
    a.rotary_dims = plan_.program.ropes[static_cast<size_t>(rope_q->table)].rotary_dims;
    a.positions = plan_.positions;
    a.sequences = plan_.sequences;
    a.capacity = context_of(plan_.program, options_);
    a.cache_type = options_.kv_type == KvType::kF16    ? CacheType::kF16
                   : options_.kv_type == KvType::kBF16 ? CacheType::kBF16
                                                       : CacheType::kF32;
    const uint64_t layer_bytes = cache_bytes(attention->n_kv_heads, attention->head_dim);
    a.keys = plan_.arena.take(layer_bytes);
    a.values = plan_.arena.take(layer_bytes);
    a.n_heads = attention->n_heads;
    a.n_kv_heads = attention->n_kv_heads;
    a.head_dim = attention->head_dim;
    a.scale = attention->scale;
    a.window = static_cast<int32_t>(attention->sliding_window.value_or(0));
    a.out = device(attention->out).data;
    a.partial = attention_partial_;
    a.counters = attention_counters_;
    a.max_segments = max_segments_of(plan_.program, options_);
    a.splits = splits_of(*attention, a.max_segments, limits_);
    a.fault_op = step.op + 1;
    a.fault = plan_.fault;
    plan_.steps.emplace_back(step);
    return i + 4;
  }

  uint64_t cache_bytes(int n_kv_heads, int head_dim) const {
    const uint64_t element = options_.kv_type == KvType::kF32 ? 4 : 2;
    return static_cast<uint64_t>(options_.n_sequences) * static_cast<uint64_t>(n_kv_heads) *
           static_cast<uint64_t>(context_of(plan_.program, options_)) *
           static_cast<uint64_t>(head_dim) * element;
  }

  std::pair<const float*, const float*> rope(int index) {
    const auto found = ropes_.find(index);
    if (found != ropes_.end()) return found->second;
    const RopeTable table = make_rope_table(plan_.program.ropes[static_cast<size_t>(index)],
                                            context_of(plan_.program, options_));
    const float* cos = upload(table.cos);
    const float* sin = upload(table.sin);
    return ropes_.emplace(index, std::pair(cos, sin)).first->second;
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  ExecutorOptions options_;
  DeviceLimits limits_;
  cudaStream_t stream_;
  PinnedBuffer staging_[2];
  cudaEvent_t copied_[2] = {};
  int slot_ = 0;
  Plan plan_;
  bool after_selection_ = false;
  std::map<const StoredTensor*, DeviceMatrix> matrices_;
  std::map<std::pair<int, int>, const float*> vectors_;
  std::map<int, std::pair<const float*, const float*>> ropes_;
  float* attention_partial_ = nullptr;
  int32_t* attention_counters_ = nullptr;
};

}  // namespace

std::vector<LedgerItem> estimate(const Checkpoint& checkpoint, const Program& program,
                                 const ExecutorOptions& options, const DeviceLimits& limits) {
  std::map<std::string, uint64_t> weights;
  std::set<std::pair<const StoredTensor*, bool>> counted;  // a tied head is packed once
  const auto rows = static_cast<uint64_t>(options.max_batch_tokens);
  for (const Op& op : program.ops) {
    int index = -1;
    bool raw = false;
    if (const auto* linear = std::get_if<LinearOp>(&op.kind)) index = linear->matrix;
    if (const auto* embed = std::get_if<EmbedOp>(&op.kind)) {
      index = embed->matrix;
      raw = true;
    }
    if (index < 0) continue;
    const MatrixSlot& slot = program.matrices[static_cast<size_t>(index)];
    const StoredTensor& on_disk = stored(checkpoint, slot);
    const WeightFormat& format = *on_disk.format;
    raw = raw && is_raw(format);
    if (!counted.emplace(&on_disk, raw).second) continue;
    const uint64_t bytes =
        raw ? format.row_bytes(slot.in_features) * static_cast<uint64_t>(slot.out_features)
            : packed_bytes(format, slot.out_features, slot.in_features, group_of(on_disk, slot));
    weights["weights " + std::string(format.name())] += aligned(bytes);
  }
  std::vector<LedgerItem> ledger;
  for (const auto& [name, bytes] : weights) ledger.push_back({name, bytes});
  uint64_t small = 0;
  for (const VectorSlot& slot : program.vectors)
    small += aligned(static_cast<uint64_t>(slot.size) * 4);
  const auto context = static_cast<uint64_t>(context_of(program, options));
  for (const RopeSpec& rope : program.ropes)
    small += 2 * aligned(context * static_cast<uint64_t>(rope.rotary_dims) * 2);
  small += step_table_bytes(most_stages(program), program, limits);
  ledger.push_back({"norms, biases, tables", small});
  uint64_t cache = 0;
  for (const CacheLayerSpec& layer : program.cache_layers)
    cache += 2 * aligned(static_cast<uint64_t>(options.n_sequences) *
                         static_cast<uint64_t>(layer.n_kv_heads) * context *
                         static_cast<uint64_t>(layer.head_dim) *
                         (options.kv_type == KvType::kF32 ? 4 : 2));
  ledger.push_back({"kv cache", cache});
  uint64_t activations = 0;
  for (const RegisterSpec& spec : program.registers)
    if (!spec.block_int16) activations += aligned(rows * static_cast<uint64_t>(spec.columns) * 4);
  activations -=
      aligned(rows * static_cast<uint64_t>(program.spec.vocab_size) * 4);  // logits: below
  const auto groups =
      static_cast<uint64_t>((widest_input(program) + kGroupColumns - 1) / kGroupColumns);
  activations += aligned(rows * groups * (256 + 32 + 16 + 4 + 4)) + 5 * 256;
  activations += aligned(rows * static_cast<uint64_t>(program.spec.hidden_size) * 4) +
                 aligned(rows * 16) + 4 * 256;
  ledger.push_back({"activations", activations});
  uint64_t workspace =
      aligned(uint64_t{kHeadRows} * static_cast<uint64_t>(program.spec.vocab_size) * 4);
  workspace += aligned(context * 4) + 8 * 4096;
  if (const AttentionOp* attention = first_attention(program))
    workspace += aligned(kMaxGemvTokens * static_cast<uint64_t>(attention->n_heads) *
                         static_cast<uint64_t>(max_segments_of(program, options)) *
                         static_cast<uint64_t>(attention->head_dim + 2) * 4) +
                 4096;
  ledger.push_back({"workspace", workspace});
  return ledger;
}

Plan build_plan(const std::shared_ptr<const Checkpoint>& checkpoint, const ExecutorOptions& options,
                const DeviceLimits& limits, cudaStream_t stream) {
  return Builder(checkpoint, options, limits, stream).build();
}

}  // namespace assay::cuda
