#include "runtime/device/cuda_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "convert/core/parallel.h"
#include "runtime/float_environment.h"
#include "runtime/ops/read_bandwidth_cuda.h"
#include "runtime/ops/rms_norm.h"

namespace assay::cuda {
namespace {

ExecutorOptions resolved(const Checkpoint& checkpoint, ExecutorOptions options) {
  if (options.context <= 0) options.context = checkpoint.spec().context_length;
  options.max_batch_tokens = std::max<int64_t>(options.max_batch_tokens, kMaxGemvTokens);
  return options;
}

template <typename... Bodies>
struct Overloaded : Bodies... {
  using Bodies::operator()...;
};

/// Ops whose results a step leaves where they can be seen.
std::vector<int> visible_ops(const Step& step) {
  return std::visit(Overloaded{[](const LinearStep& linear) {
                                 return linear.arguments.epilogue == Epilogue::kStore
                                            ? linear.linears
                                            : std::vector<int>{linear.reported_op};
                               },
                               [](const auto& other) { return std::vector<int>{other.op}; }},
                    step);
}

/// The op that a step is named after.
int first_op(const Step& step) {
  return std::visit(Overloaded{[](const LinearStep& linear) { return linear.linears.front(); },
                               [](const auto& other) { return other.op; }},
                    step);
}

/// Bytes of weights, keys and values that a step reads for a token at `position`.
uint64_t step_bytes_read(const Step& step, int64_t position) {
  if (const auto* linear = std::get_if<LinearStep>(&step)) {
    uint64_t bytes = 0;
    for (int i = 0; i < n_matrices(linear->arguments); ++i)
      bytes += bytes_read(linear->arguments.matrices[i]);
    return bytes;
  }
  const auto* attention = std::get_if<AttentionStep>(&step);
  if (attention == nullptr) return 0;
  const AttentionArguments& a = attention->arguments;
  const int64_t seen = a.window > 0 ? std::min<int64_t>(position + 1, a.window) : position + 1;
  return static_cast<uint64_t>(2 * seen * a.n_kv_heads * a.head_dim *
                               (a.cache_type == CacheType::kF32 ? 4 : 2));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

CudaExecutor::CudaExecutor(int index, std::shared_ptr<const Checkpoint> checkpoint,
                           const ExecutorOptions& options)
    : index_(use_device(index)), options_(resolved(*checkpoint, options)) {
  plan_ = build_plan(checkpoint, options_, device_limits(index), stream_.get());
  lengths_.assign(static_cast<size_t>(options_.n_sequences), 0);
  const auto rows = static_cast<size_t>(options_.max_batch_tokens);
  pinned_ = PinnedBuffer(
      std::max(rows * 4 * sizeof(int32_t),
               size_t{kHeadRows} * static_cast<size_t>(plan_.program.spec.vocab_size) * 4));
}

CudaExecutor::~CudaExecutor() { static_cast<void>(cudaStreamSynchronize(stream_.get())); }

std::string CudaExecutor::device_name() const { return "cuda:" + std::to_string(index_); }

void CudaExecutor::check_items(std::span<const BatchItem> items) const {
  std::vector<int64_t> lengths = lengths_;
  for (const BatchItem& item : items) {
    if (item.sequence < 0 || item.sequence >= options_.n_sequences)
      throw UsageError(fmt::format("sequence {} of {}", item.sequence, options_.n_sequences));
    int64_t& length = lengths[static_cast<size_t>(item.sequence)];
    const auto n = static_cast<int64_t>(item.token_ids.size());
    if (length + n > options_.context)
      throw UsageError(
          fmt::format("sequence {}: {} tokens after {} need a context of {}, it is {}; raise "
                      "--context or shorten the prompt",
                      item.sequence, n, length, length + n, options_.context));
    length += n;
    for (const int32_t id : item.token_ids)
      if (id < 0 || id >= plan_.program.spec.vocab_size)
        throw UsageError(fmt::format("token id {} is outside the vocabulary of {}", id,
                                     plan_.program.spec.vocab_size));
  }
}

void CudaExecutor::forward(std::span<const BatchItem> items, std::vector<float>& logits,
                           const OpObserver& observer) {
  check_items(items);
  ASSAY_CUDA(cudaSetDevice(index_));
  const std::vector<int64_t> before = lengths_;
  logits.clear();
  std::vector<PassRow> rows;
  try {
    for (const BatchItem& item : items) {
      for (size_t i = 0; i < item.token_ids.size(); ++i) {
        int64_t& length = lengths_[static_cast<size_t>(item.sequence)];
        const bool selected = item.logits == LogitRows::kAll ||
                              (item.logits == LogitRows::kLast && i + 1 == item.token_ids.size());
        rows.push_back(
            {item.token_ids[i], static_cast<int32_t>(length++), item.sequence, selected});
        if (static_cast<int64_t>(rows.size()) == options_.max_batch_tokens) {
          run_pass(rows, logits, observer);
          rows.clear();
        }
      }
    }
    if (!rows.empty()) run_pass(rows, logits, observer);
  } catch (...) {
    lengths_ = before;
    throw;
  }
}

void CudaExecutor::upload_rows(std::span<const PassRow> rows) {
  const size_t n = rows.size();
  auto* host = reinterpret_cast<int32_t*>(pinned_.data());
  for (size_t i = 0; i < n; ++i) {
    host[i] = rows[i].token;
    host[n + i] = rows[i].position;
    host[2 * n + i] = rows[i].sequence;
  }
  size_t n_selected = 0;
  for (size_t i = 0; i < n; ++i)
    if (rows[i].selected) host[3 * n + n_selected++] = static_cast<int32_t>(i);
  const auto copy = [&](int32_t* to, const int32_t* from, size_t count) {
    if (count != 0)
      ASSAY_CUDA(cudaMemcpyAsync(to, from, count * sizeof(int32_t), cudaMemcpyHostToDevice,
                                 stream_.get()));
  };
  copy(plan_.token_ids, host, n);
  copy(plan_.positions, host + n, n);
  copy(plan_.sequences, host + 2 * n, n);
  copy(plan_.selected, host + 3 * n, n_selected);
}

void CudaExecutor::run_pass(std::span<const PassRow> rows, std::vector<float>& logits,
                            const OpObserver& observer) {
  const auto n = static_cast<int>(rows.size());
  std::vector<int32_t> sequences;
  for (const PassRow& row : rows) sequences.push_back(row.sequence);
  std::sort(sequences.begin(), sequences.end());
  const bool one_token_each =
      n <= kMaxGemvTokens &&
      std::adjacent_find(sequences.begin(), sequences.end()) == sequences.end();
  upload_rows(rows);
  run_body(n, one_token_each, false, observer);

  const auto n_selected = static_cast<int>(
      std::count_if(rows.begin(), rows.end(), [](const PassRow& row) { return row.selected; }));
  const auto hidden = static_cast<int32_t>(plan_.program.spec.hidden_size);
  const auto vocab = static_cast<size_t>(plan_.program.spec.vocab_size);
  if (n_selected > 0)
    launch_select_rows(plan_.registers[static_cast<size_t>(plan_.program.residual.index)].data,
                       plan_.selected, plan_.selected_rows, hidden, n_selected, stream_.get());
  for (int done = 0; done < n_selected; done += kHeadRows) {
    const int count = std::min(kHeadRows, n_selected - done);
    run_head(plan_.selected_rows + static_cast<size_t>(done) * static_cast<size_t>(hidden), count,
             false);
    if (observer && plan_.head.norm_op >= 0) observe_last_norm(done, count, observer);
    const size_t elements = static_cast<size_t>(count) * vocab;
    launch_check_finite(plan_.logits, static_cast<int64_t>(elements), plan_.head.reported_op + 1,
                        plan_.fault, stream_.get());
    ASSAY_CUDA(cudaMemcpyAsync(pinned_.data(), plan_.logits, elements * 4, cudaMemcpyDeviceToHost,
                               stream_.get()));
    ASSAY_CUDA(cudaStreamSynchronize(stream_.get()));
    const size_t at = logits.size();
    logits.resize(at + elements);
    parallel_for(count, 8, [&](int64_t begin, int64_t end) {
      const auto first = static_cast<size_t>(begin) * vocab;
      std::memcpy(logits.data() + at + first, pinned_.data() + first * 4,
                  static_cast<size_t>(end - begin) * vocab * 4);
    });
    if (observer)
      observer(plan_.program.ops[static_cast<size_t>(plan_.head.reported_op)],
               plan_.program.registers[static_cast<size_t>(plan_.program.logits.index)],
               std::span<const float>(logits).subspan(at));
  }
  throw_on_fault();
}

void CudaExecutor::run_body(int tokens, bool one_token_each, bool dependent,
                            const OpObserver& observer) {
  const Program& program = plan_.program;
  const DeviceRegister& residual = plan_.registers[static_cast<size_t>(program.residual.index)];
  launch_embed(plan_.embedding, plan_.embedding_rows, plan_.embedding_type, plan_.token_ids,
               residual.data, residual.stride, tokens, dependent, stream_.get());
  if (observer)
    observe(program.ops[static_cast<size_t>(plan_.embed_op)], program.residual, tokens, observer);
  for (const Step& step : plan_.steps) {
    run_step(step, tokens, one_token_each, dependent);
    if (!observer) continue;
    for (const int i : visible_ops(step)) {
      const Op& op = program.ops[static_cast<size_t>(i)];
      observe(op, writes(op).front(), tokens, observer);
    }
  }
}

void CudaExecutor::run_head(const float* rows, int n, bool dependent) {
  run_linear(plan_.head, rows, n, dependent);
}

void CudaExecutor::run_step(const Step& step, int tokens, bool one_token_each, bool dependent) {
  std::visit(Overloaded{[&](const LinearStep& linear) {
                          run_linear(linear, linear.arguments.x, tokens, dependent);
                        },
                        [&](const AttentionStep& attention) {
                          AttentionArguments a = attention.arguments;
                          a.tokens = tokens;
                          if (one_token_each)
                            launch_decode_attention(a, dependent, stream_.get());
                          else
                            launch_prefill_attention(a, stream_.get());
                        },
                        [&](const SwiGluStep& swiglu) {
                          launch_swiglu(swiglu.gate.data, swiglu.up.data, swiglu.gate.stride,
                                        swiglu.out.data, swiglu.columns, tokens, stream_.get());
                        }},
             step);
}

void CudaExecutor::run_linear(const LinearStep& step, const float* x, int tokens, bool dependent) {
  GemvArguments a = step.arguments;
  a.x = x;
  a.tokens = tokens;
  if (tokens <= kMaxGemvTokens) return launch_gemv(a, dependent, stream_.get());
  const int32_t columns = a.matrices[0].columns;
  DeviceActivations activations = plan_.activations;
  activations.groups = a.matrices[0].groups;
  launch_norm_quantize(x, columns, a.norm_weight, a.eps, a.inverse_n, columns, tokens, activations,
                       a.fault_op, a.fault, stream_.get());
  for (int i = 0; i < n_matrices(a); ++i) {
    const auto linear = std::min(static_cast<size_t>(i), step.linears.size() - 1);
    launch_gemm(a.matrices[i], activations, a.bias[i], a.out + a.out_offset[i], a.out_stride,
                tokens, a.epilogue, step.linears[linear] + 1, a.fault, stream_.get());
  }
}

void CudaExecutor::observe(const Op& op, Register r, int rows, const OpObserver& observer) {
  const DeviceRegister& from = plan_.registers[static_cast<size_t>(r.index)];
  const RegisterSpec& spec = plan_.program.registers[static_cast<size_t>(r.index)];
  std::vector<float> values(static_cast<size_t>(rows) * static_cast<size_t>(spec.columns));
  ASSAY_CUDA(cudaMemcpy2DAsync(values.data(), static_cast<size_t>(spec.columns) * 4, from.data,
                               static_cast<size_t>(from.stride) * 4,
                               static_cast<size_t>(spec.columns) * 4, static_cast<size_t>(rows),
                               cudaMemcpyDeviceToHost, stream_.get()));
  ASSAY_CUDA(cudaStreamSynchronize(stream_.get()));
  observer(op, spec, values);
}

void CudaExecutor::observe_last_norm(int first_row, int rows, const OpObserver& observer) {
  const Program& program = plan_.program;
  const Op& op = program.ops[static_cast<size_t>(plan_.head.norm_op)];
  const auto columns = static_cast<size_t>(program.spec.hidden_size);
  std::vector<float> values(static_cast<size_t>(rows) * columns), weight(columns);
  const auto copy = [&](std::vector<float>& to, const float* from) {
    ASSAY_CUDA(cudaMemcpyAsync(to.data(), from, to.size() * sizeof(float), cudaMemcpyDeviceToHost,
                               stream_.get()));
  };
  copy(values, plan_.selected_rows + static_cast<size_t>(first_row) * columns);
  copy(weight, plan_.head.arguments.norm_weight);
  ASSAY_CUDA(cudaStreamSynchronize(stream_.get()));
  rms_norm(values.data(), weight.data(), plan_.head.arguments.eps, rows,
           static_cast<int64_t>(columns), values.data());
  observer(op, program.registers[static_cast<size_t>(writes(op).front().index)], values);
}

void CudaExecutor::throw_on_fault() {
  DeviceFault fault;
  ASSAY_CUDA(
      cudaMemcpyAsync(&fault, plan_.fault, sizeof(fault), cudaMemcpyDeviceToHost, stream_.get()));
  ASSAY_CUDA(cudaStreamSynchronize(stream_.get()));
  if (fault.op == 0) return;
  ASSAY_CUDA(cudaMemsetAsync(plan_.fault, 0, sizeof(fault), stream_.get()));
  const Op& op = plan_.program.ops[static_cast<size_t>(fault.op - 1)];
  throw NumericError(fmt::format("{}: layer {}, element {}: {} is not finite or too large", op.name,
                                 op.layer, fault.index, fault.value));
}

void CudaExecutor::capture_decode_graph() {
  cudaGraph_t graph = nullptr;
  ASSAY_CUDA(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
  const bool one_kernel = has_step_kernel();
  if (one_kernel) {
    const DeviceRegister& residual =
        plan_.registers[static_cast<size_t>(plan_.program.residual.index)];
    launch_embed(plan_.embedding, plan_.embedding_rows, plan_.embedding_type, plan_.token_ids,
                 residual.data, residual.stride, 1, false, stream_.get());
    launch_step(plan_.step_program->arguments, plan_.step_program->grid, stream_.get());
  } else {
    run_body(1, true, true, nullptr);
    run_head(plan_.registers[static_cast<size_t>(plan_.program.residual.index)].data, 1, true);
  }
  const DecodeState state{plan_.token_ids, plan_.positions, plan_.generated, plan_.step};
  launch_greedy(plan_.logits, static_cast<int32_t>(plan_.program.spec.vocab_size), 1, state,
                plan_.greedy_partial, plan_.greedy_counters, plan_.head.reported_op + 1,
                plan_.fault, !one_kernel, stream_.get());
  ASSAY_CUDA(cudaStreamEndCapture(stream_.get(), &graph));
  graph_ = GraphExec(graph);
  ASSAY_CUDA(cudaGraphDestroy(graph));
}

std::vector<float> CudaExecutor::last_logits() {
  std::vector<float> logits(static_cast<size_t>(plan_.program.spec.vocab_size));
  ASSAY_CUDA(cudaMemcpyAsync(logits.data(), plan_.logits, logits.size() * sizeof(float),
                             cudaMemcpyDeviceToHost, stream_.get()));
  ASSAY_CUDA(cudaStreamSynchronize(stream_.get()));
  return logits;
}

void CudaExecutor::use_step_kernel(bool use) {
  use_step_kernel_ = use;
  graph_ = GraphExec();
}

std::optional<double> CudaExecutor::measure_read_bandwidth() {
  return measure_read_gbps(stream_.get()) * 1e9;
}

std::vector<int32_t> CudaExecutor::decode_greedy(int sequence, int32_t first_token,
                                                 int64_t n_tokens) {
  std::vector<int32_t> generated(static_cast<size_t>(n_tokens));
  if (n_tokens == 0) return generated;
  const std::vector<int32_t> placeholder(static_cast<size_t>(n_tokens), first_token);
  const BatchItem item{sequence, placeholder, LogitRows::kNone};
  check_items({&item, 1});
  ASSAY_CUDA(cudaSetDevice(index_));
  int64_t& length = lengths_[static_cast<size_t>(sequence)];
  const PassRow row{first_token, static_cast<int32_t>(length), sequence, false};
  upload_rows({&row, 1});
  ASSAY_CUDA(cudaMemsetAsync(plan_.step, 0, sizeof(int32_t), stream_.get()));
  if (!eager_ && !graph_) capture_decode_graph();
  for (int64_t i = 0; i < n_tokens; ++i) {
    if (!eager_) {
      graph_.launch(stream_.get());
      continue;
    }
    run_body(1, true, false, nullptr);
    run_head(plan_.registers[static_cast<size_t>(plan_.program.residual.index)].data, 1, false);
    const DecodeState state{plan_.token_ids, plan_.positions, plan_.generated, plan_.step};
    launch_greedy(plan_.logits, static_cast<int32_t>(plan_.program.spec.vocab_size), 1, state,
                  plan_.greedy_partial, plan_.greedy_counters, plan_.head.reported_op + 1,
                  plan_.fault, false, stream_.get());
  }
  ASSAY_CUDA(cudaMemcpyAsync(generated.data(), plan_.generated, generated.size() * sizeof(int32_t),
                             cudaMemcpyDeviceToHost, stream_.get()));
  throw_on_fault();
  length += n_tokens;
  return generated;
}

namespace {

/// An event that is destroyed with its owner.
class Event {
 public:
  Event() { ASSAY_CUDA(cudaEventCreate(&event_)); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::vector<NodeTime> CudaExecutor::nodes_at(int64_t position) const {
  std::vector<NodeTime> nodes;
  const auto add = [&](const Step& step) {
    nodes.push_back({plan_.program.ops[static_cast<size_t>(first_op(step))].name, 0.0,
                     step_bytes_read(step, position)});
  };
  for (const Step& step : plan_.steps) add(step);
  add(plan_.head);
  return nodes;
}

std::vector<std::vector<double>> CudaExecutor::time_stages(int repeats) {
  const StepProgram& program = *plan_.step_program;
  const auto n_stages = static_cast<size_t>(program.arguments.n_stages);
  const auto grid = static_cast<size_t>(program.grid);
  const DeviceBuffer device_times(n_stages * grid * sizeof(StageTimes));
  StepArguments arguments = program.arguments;
  arguments.times = reinterpret_cast<StageTimes*>(device_times.data());
  std::vector<StageTimes> times(n_stages * grid);
  std::vector<std::vector<double>> microseconds(n_stages);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    ASSAY_CUDA(cudaMemsetAsync(device_times.data(), 0, device_times.bytes(), stream_.get()));
    launch_step(arguments, program.grid, stream_.get());
    ASSAY_CUDA(cudaMemcpyAsync(times.data(), device_times.data(), device_times.bytes(),
                               cudaMemcpyDeviceToHost, stream_.get()));
    ASSAY_CUDA(cudaStreamSynchronize(stream_.get()));
    uint64_t before = times[0].begin;
    for (size_t b = 0; b < grid; ++b) before = std::min(before, times[b].begin);
    for (size_t s = 0; s < n_stages; ++s) {
      uint64_t end = before;
      for (size_t b = 0; b < grid; ++b) end = std::max(end, times[s * grid + b].end);
      microseconds[s].push_back(static_cast<double>(end - before) * 1e-3);
      before = end;
    }
  }
  return microseconds;
}

std::vector<std::vector<double>> CudaExecutor::time_kernels(int repeats) {
  const size_t n_steps = plan_.steps.size();
  std::vector<Event> events(n_steps + 2);
  std::vector<std::vector<double>> microseconds(n_steps + 1);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    ASSAY_CUDA(cudaEventRecord(events[0].get(), stream_.get()));
    for (size_t i = 0; i < n_steps; ++i) {
      run_step(plan_.steps[i], 1, true, false);
      ASSAY_CUDA(cudaEventRecord(events[i + 1].get(), stream_.get()));
    }
    run_head(plan_.registers[static_cast<size_t>(plan_.program.residual.index)].data, 1, false);
    ASSAY_CUDA(cudaEventRecord(events.back().get(), stream_.get()));
    ASSAY_CUDA(cudaStreamSynchronize(stream_.get()));
    for (size_t i = 0; i < microseconds.size(); ++i) {
      float ms = 0;
      ASSAY_CUDA(cudaEventElapsedTime(&ms, events[i].get(), events[i + 1].get()));
      microseconds[i].push_back(static_cast<double>(ms) * 1e3);
    }
  }
  return microseconds;
}

std::vector<NodeTime> CudaExecutor::time_decode_nodes(int sequence, int repeats) {
  ASSAY_CUDA(cudaSetDevice(index_));
  const PassRow row{0, static_cast<int32_t>(length(sequence)), sequence, false};
  upload_rows({&row, 1});
  const std::vector<std::vector<double>> microseconds =
      has_step_kernel() ? time_stages(repeats) : time_kernels(repeats);
  std::vector<NodeTime> nodes = nodes_at(row.position);
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i].microseconds = median(microseconds[i]);
  return nodes;
}

}  // namespace assay::cuda
