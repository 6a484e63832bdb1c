#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <string>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "runtime/cpu_executor.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/causal_conv.h"
#include "runtime/ops/delta_net.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/kv_write.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/ops/route.h"

namespace assay {
namespace {

constexpr int64_t kElementGrain = 1 << 14;  // elements that are worth a turn of a thread

/// Rows per turn such that a turn has about kElementGrain elements.
int64_t row_grain(int64_t columns) {
  return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, columns));
}

struct RowRun;

class Runner {
 public:
  Runner(const Op& op, CpuContext& context) : op_(op), context_(context) {}

  void operator()(const EmbedOp& op) const;
  void operator()(const RmsNormOp& op) const;
  void operator()(const QuantizeOp& op) const;
  void operator()(const LinearOp& op) const;
  void operator()(const RopeOp& op) const;
  void operator()(const KvWriteOp& op) const;
  void operator()(const AttentionOp& op) const;
  void operator()(const SwiGluOp& op) const;
  void operator()(const AddOp& op) const;
  void operator()(const SelectRowsOp& op) const;
  void operator()(const GatedNormOp& op) const;
  void operator()(const ScaleOp& op) const;
  void operator()(const SoftcapOp& op) const;
  void operator()(const SplitGateOp& op) const;
  void operator()(const SigmoidGateOp& op) const;
  void operator()(const CausalConvOp& op) const;
  void operator()(const DeltaNetOp& op) const;
  void operator()(const GeGluOp& op) const;
  void operator()(const RouteOp& op) const;
  void operator()(const ExpertLinearOp& op) const;
  void operator()(const WeightedSumOp& op) const;
  void operator()(const SliceOp& op) const;

 private:
  const RegisterSpec& spec(Register r) const {
    return context_.program->registers[static_cast<size_t>(r.index)];
  }
  int64_t columns(Register r) const { return spec(r).columns; }
  float* f32(Register r) const {
    return context_.registers.f32[static_cast<size_t>(r.index)].data();
  }
  BlockInt16& block(Register r) const {
    return context_.registers.block[static_cast<size_t>(r.index)];
  }
  const std::vector<float>& vector(int index) const {
    return context_.weights->vectors[static_cast<size_t>(index)];
  }
  int64_t n_rows() const { return context_.n_rows; }
  void attend_run(const AttentionOp& op, int kv_head, RowRun run) const;

  const Op& op_;
  CpuContext& context_;
};

void Runner::operator()(const EmbedOp& op) const {
  const CheckpointMatrix& matrix = *context_.weights->embeddings[static_cast<size_t>(op.matrix)];
  const int64_t n = columns(op.out);
  float* out = f32(op.out);
  for (int64_t row = 0; row < n_rows(); ++row) {
    matrix.decode_row(context_.token_ids[static_cast<size_t>(row)],
                      std::span(out + row * n, static_cast<size_t>(n)));
  }
}

void Runner::operator()(const RmsNormOp& op) const {
  const int64_t n = columns(op.in) / op.n_heads;
  const float* weight = op.weight < 0 ? nullptr : vector(op.weight).data();
  const float* in = f32(op.in);
  float* out = f32(op.out);
  parallel_for(n_rows() * op.n_heads, row_grain(n), [&](int64_t begin, int64_t end) {
    rms_norm(in + begin * n, weight, op.eps, end - begin, n, out + begin * n);
  });
}

void Runner::operator()(const GatedNormOp& op) const {
  const int64_t n = columns(op.in) / op.n_heads;
  const float* weight = vector(op.weight).data();
  float* out = f32(op.out);
  parallel_for(n_rows() * op.n_heads, row_grain(n), [&](int64_t begin, int64_t end) {
    rms_norm(f32(op.in) + begin * n, weight, op.eps, end - begin, n, out + begin * n);
    swiglu(f32(op.gate) + begin * n, out + begin * n, (end - begin) * n, out + begin * n);
  });
}

void Runner::operator()(const ScaleOp& op) const {
  const float factor = op.vector < 0 ? op.factor : vector(op.vector).front();
  float* x = f32(op.x);
  parallel_for(n_rows() * columns(op.x), kElementGrain, [&](int64_t begin, int64_t end) {
    scale(x + begin, factor, end - begin, x + begin);
  });
}

void Runner::operator()(const SoftcapOp& op) const {
  float* x = f32(op.x);
  parallel_for(n_rows() * columns(op.x), kElementGrain,
               [&](int64_t begin, int64_t end) { softcap(x + begin, op.cap, end - begin); });
}

void Runner::operator()(const SplitGateOp& op) const {
  const int64_t d = op.head_dim;
  const float* in = f32(op.in);
  parallel_for(n_rows() * op.n_heads, row_grain(2 * d), [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      std::copy_n(in + head * 2 * d, d, f32(op.q) + head * d);
      std::copy_n(in + head * 2 * d + d, d, f32(op.gate) + head * d);
    }
  });
}

void Runner::operator()(const SigmoidGateOp& op) const {
  parallel_for(n_rows() * columns(op.x), kElementGrain, [&](int64_t begin, int64_t end) {
    sigmoid_gate(f32(op.x) + begin, f32(op.gate) + begin, end - begin);
  });
}

void Runner::operator()(const CausalConvOp& op) const {
  const DeltaNetSpec& spec =
      context_.program->state_layers[static_cast<size_t>(op.state_layer)].spec;
  const int64_t n = columns(op.in);
  constexpr int64_t kChannels = 256;
  // A turn takes some channels through all rows, in order: each row reads what the one before left.
  parallel_for(n, kChannels, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < n_rows(); ++row) {
      const int sequence = context_.rows[static_cast<size_t>(row)].sequence;
      causal_conv_step(vector(op.weight).data(), spec.conv_kernel, n, begin, end,
                       f32(op.in) + row * n, context_.cache->conv_state(op.state_layer, sequence),
                       f32(op.out) + row * n);
    }
  });
}

void Runner::operator()(const DeltaNetOp& op) const {
  const DeltaNetSpec& spec =
      context_.program->state_layers[static_cast<size_t>(op.state_layer)].spec;
  const int heads_per_key = spec.n_value_heads / spec.n_key_heads;
  parallel_for(spec.n_value_heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> workspace(static_cast<size_t>(2 * spec.key_dim));
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t row = 0; row < n_rows(); ++row) {
        const float* qkv = f32(op.qkv) + row * columns(op.qkv);
        const float* q = qkv + head / heads_per_key * spec.key_dim;
        const int64_t at = row * spec.n_value_heads + head;
        const DeltaNetStep step{q,
                                q + spec.key_columns(),
                                qkv + 2 * spec.key_columns() + head * spec.value_dim,
                                f32(op.a)[at],
                                f32(op.b)[at],
                                vector(op.decay)[static_cast<size_t>(head)],
                                vector(op.step_bias)[static_cast<size_t>(head)]};
        const int sequence = context_.rows[static_cast<size_t>(row)].sequence;
        float* state = context_.cache->matrix_state(op.state_layer, sequence);
        delta_net_step(spec, step, state + head * spec.value_dim * spec.key_dim,
                       f32(op.out) + at * spec.value_dim, workspace.data());
      }
    }
  });
}

void Runner::operator()(const GeGluOp& op) const {
  parallel_for(n_rows() * columns(op.gate), kElementGrain, [&](int64_t begin, int64_t end) {
    geglu(f32(op.gate) + begin, f32(op.up) + begin, end - begin, f32(op.out) + begin);
  });
}

void Runner::operator()(const QuantizeOp& op) const {
  const int64_t n = columns(op.in);
  const int64_t width = spec(op.out).slot_columns();
  const int64_t bad =
      quantize_block_int16(f32(op.in), n_rows() * spec(op.out).slots, width, width, block(op.out));
  if (bad >= 0) {
    throw_not_finite(op_, context_, bad / n, bad % n, f32(op.in)[bad],
                     "input of a linear is not finite or above 32639*2^100");
  }
}

void Runner::operator()(const LinearOp& op) const {
  const PackedMatrix& weights = *context_.weights->matrices[static_cast<size_t>(op.matrix)];
  const auto bias = op.bias ? std::span<const float>(vector(*op.bias)) : std::span<const float>();
  try {
    linear(weights, block(op.in), bias, f32(op.out), columns(op.out));
  } catch (const InfiniteProduct& error) {
    throw_not_finite(op_, context_, error.token, error.row, INFINITY,
                     "product of weight scale and activation scale");
  }
}

void Runner::operator()(const RouteOp& op) const {
  const int64_t n = columns(op.logits);
  const int64_t k = columns(op.ids);
  const RouteOptions options{static_cast<int>(n), static_cast<int>(k), op.normalize};
  const float* scales = op.scales < 0 ? nullptr : vector(op.scales).data();
  for (int64_t row = 0; row < n_rows(); ++row) {
    const float* logits = f32(op.logits) + row * n;
    const int64_t bad =
        route(logits, options, scales, f32(op.ids) + row * k, f32(op.weights) + row * k);
    if (bad >= 0) throw_not_finite(op_, context_, row, bad, logits[bad], "logit of the router");
  }
}

void Runner::operator()(const ExpertLinearOp& op) const {
  const int64_t k = columns(op.ids);
  const int64_t n = columns(op.out) / k;
  const bool shared = spec(op.in).slots == 1;
  std::vector<std::vector<int64_t>> places(static_cast<size_t>(op.n_experts));  // row·k + slot
  for (int64_t at = 0; at < n_rows() * k; ++at) {
    places[static_cast<size_t>(f32(op.ids)[at])].push_back(at);
  }
  BlockInt16 inputs;
  std::vector<int64_t> rows;
  std::vector<float> outputs;
  for (int e = 0; e < op.n_experts; ++e) {
    const std::vector<int64_t>& own = places[static_cast<size_t>(e)];
    if (own.empty()) continue;
    rows.clear();
    for (const int64_t at : own) rows.push_back(shared ? at / k : at);
    gather_block_int16(block(op.in), rows, inputs);
    outputs.resize(own.size() * static_cast<size_t>(n));
    try {
      linear(*context_.weights
                  ->matrices[static_cast<size_t>(op.first_matrix) + static_cast<size_t>(e)],
             inputs, {}, outputs.data(), n);
    } catch (const InfiniteProduct& error) {
      throw_not_finite(
          op_, context_, own[static_cast<size_t>(error.token)] / k, error.row, INFINITY,
          "product of weight scale and activation scale of expert " + std::to_string(e));
    }
    for (size_t i = 0; i < own.size(); ++i) {
      std::copy_n(outputs.data() + static_cast<int64_t>(i) * n, n, f32(op.out) + own[i] * n);
    }
  }
}

void Runner::operator()(const WeightedSumOp& op) const {
  const int64_t k = columns(op.weights);
  const int64_t n = columns(op.out);
  parallel_for(n_rows(), row_grain(k * n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      weighted_sum(f32(op.weights) + row * k, f32(op.x) + row * k * n, k, n, f32(op.out) + row * n);
    }
  });
}

void Runner::operator()(const SliceOp& op) const {
  const int64_t n = columns(op.out);
  for (int64_t row = 0; row < n_rows(); ++row) {
    std::copy_n(f32(op.in) + row * columns(op.in) + op.first, n, f32(op.out) + row * n);
  }
}

void Runner::operator()(const RopeOp& op) const {
  const RopeTable& table = *context_.weights->ropes[static_cast<size_t>(op.table)];
  const int64_t n = columns(op.x);
  float* x = f32(op.x);
  parallel_for(n_rows(), row_grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = context_.rows[static_cast<size_t>(row)].position;
      rope_apply(table, position, x + row * n, op.n_heads, op.head_dim);
    }
  });
}

void Runner::operator()(const KvWriteOp& op) const {
  const CacheLayerSpec& layer = context_.program->cache_layers[static_cast<size_t>(op.cache_layer)];
  const int64_t n = columns(op.k);
  parallel_for(n_rows(), row_grain(2 * n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const RowPosition at = context_.rows[static_cast<size_t>(row)];
      const float* k = f32(op.k) + row * n;
      const float* v = f32(op.v) + row * n;
      const int64_t bad = kv_write(k, v, layer.n_kv_heads, layer.head_dim, op.cache_layer,
                                   at.sequence, at.position, *context_.cache);
      if (bad < 0) continue;
      throw_not_finite(op_, context_, row, bad % n, bad < n ? k[bad] : v[bad - n],
                       std::string(bad < n ? "K" : "V") + " is not finite after rounding to " +
                           std::string(kv_type_name(context_.cache->type())));
    }
  });
}

/// Rows [begin, end) of one sequence that a turn attends with.
struct RowRun {
  int64_t begin = 0;
  int64_t end = 0;
};

std::vector<RowRun> row_runs(std::span<const RowPosition> rows) {
  constexpr int64_t kMostRows = 16;  // enough to read each key once for many queries
  std::vector<RowRun> runs;
  for (int64_t row = 0; row < static_cast<int64_t>(rows.size()); ++row) {
    const auto at = static_cast<size_t>(row);
    if (runs.empty() || row - runs.back().begin == kMostRows ||
        rows[at].sequence != rows[at - 1].sequence) {
      runs.push_back({row, row});
    }
    runs.back().end = row + 1;
  }
  return runs;
}

void Runner::operator()(const AttentionOp& op) const {
  const std::span<const RowPosition> rows(context_.rows.data(), static_cast<size_t>(n_rows()));
  const std::vector<RowRun> runs = row_runs(rows);
  const auto n_runs = static_cast<int64_t>(runs.size());
  int64_t products = 0;
  for (const RowPosition& at : rows) products += (at.position + 1) * columns(op.q);
  // Little work is done by one thread: waking the others takes longer.
  const int64_t n_turns = op.n_kv_heads * n_runs;
  const int64_t grain = products < kElementGrain ? n_turns : 1;
  // Heads outside, so that neighbouring turns read the same keys.
  parallel_for(n_turns, std::max<int64_t>(1, grain), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      attend_run(op, static_cast<int>(i / n_runs), runs[static_cast<size_t>(i % n_runs)]);
    }
  });
}

void Runner::attend_run(const AttentionOp& op, int kv_head, RowRun run) const {
  const int group = op.n_heads / op.n_kv_heads;
  const int64_t n = columns(op.q);
  std::vector<AttentionQuery> queries;
  for (int64_t row = run.begin; row < run.end; ++row) {
    const int64_t position = context_.rows[static_cast<size_t>(row)].position;
    const int64_t first =
        op.sliding_window ? std::max<int64_t>(0, position - *op.sliding_window + 1) : 0;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const int64_t at = row * n + static_cast<int64_t>(head) * op.head_dim;
      queries.push_back({f32(op.q) + at, f32(op.out) + at, first, position});
    }
  }
  const KvCache& cache = *context_.cache;
  const int sequence = context_.rows[static_cast<size_t>(run.begin)].sequence;
  const int64_t bad = attend_many(queries, cache.keys(op.cache_layer, sequence, kv_head),
                                  cache.values(op.cache_layer, sequence, kv_head), cache.type(),
                                  op.head_dim, op.scale, cache.rows(op.cache_layer));
  if (bad < 0) return;
  const int64_t head = kv_head * group + bad % group;
  throw_not_finite(op_, context_, run.begin + bad / group, head * op.head_dim, NAN,
                   "attention score or output of head " + std::to_string(head));
}

void Runner::operator()(const SwiGluOp& op) const {
  const int64_t n = n_rows() * columns(op.gate);
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    swiglu(f32(op.gate) + begin, f32(op.up) + begin, end - begin, f32(op.out) + begin);
  });
}

void Runner::operator()(const AddOp& op) const {
  const int64_t n = n_rows() * columns(op.x);
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    add(f32(op.x) + begin, f32(op.y) + begin, end - begin);
  });
}

void Runner::operator()(const SelectRowsOp& op) const {
  const int64_t n = columns(op.in);
  const auto selected = static_cast<int64_t>(context_.selected_rows.size());
  for (int64_t i = 0; i < selected; ++i) {
    const int64_t row = context_.selected_rows[static_cast<size_t>(i)];
    std::copy_n(f32(op.in) + row * n, n, f32(op.out) + i * n);
  }
  context_.n_rows = selected;
}

/// Batch row behind row `row` of the registers: after SelectRowsOp those are the selected ones.
RowPosition position_of(const CpuContext& context, int64_t row) {
  const bool selected = context.n_rows != static_cast<int64_t>(context.rows.size());
  const int64_t batch_row = selected ? context.selected_rows[static_cast<size_t>(row)] : row;
  return context.rows[static_cast<size_t>(batch_row)];
}

}  // namespace

void throw_not_finite(const Op& op, const CpuContext& context, int64_t row, int64_t column,
                      float value, std::string_view what) {
  const RowPosition at = position_of(context, row);
  std::ostringstream message;
  message << op.name << ": ";
  if (op.layer >= 0) message << "layer " << op.layer << ", ";
  message << "sequence " << at.sequence << ", position " << at.position << ", column " << column
          << ": " << what << ": " << std::setprecision(9) << value;
  throw NumericError(message.str());
}

int64_t register_rows(const Program& program, Register r, int64_t n_rows, int64_t n_selected) {
  bool after_selection = false;
  for (const Op& op : program.ops) {
    after_selection = after_selection || std::holds_alternative<SelectRowsOp>(op.kind);
    const std::vector<Register> written = writes(op);
    if (std::find(written.begin(), written.end(), r) != written.end()) {
      return after_selection ? n_selected : n_rows;
    }
  }
  return n_rows;
}

void prepare_registers(const Program& program, int begin, int end, int64_t n_rows,
                       CpuContext& context) {
  context.program = &program;
  context.n_rows = n_rows;
  context.registers.f32.resize(program.registers.size());
  context.registers.block.resize(program.registers.size());
  const auto prepare = [&](Register r) {
    const auto i = static_cast<size_t>(r.index);
    const RegisterSpec& spec = program.registers[i];
    if (spec.block_int16) {
      BlockInt16& block = context.registers.block[i];
      const int64_t rows = n_rows * spec.slots;
      if (block.columns != spec.slot_columns() || block.rows < rows) {
        block.resize(rows, spec.slot_columns());
      }
      return;
    }
    std::vector<float>& values = context.registers.f32[i];
    const auto size = static_cast<size_t>(n_rows * spec.columns);
    if (values.size() < size) values.resize(size);
  };
  for (int i = begin; i < end; ++i) {
    const Uses used = uses(program.ops[static_cast<size_t>(i)]);
    for (const Register r : used.reads) prepare(r);
    for (const Register r : used.writes) prepare(r);
  }
}

uint64_t register_bytes(const RegisterSpec& spec, int64_t n_rows) {
  const auto rows = static_cast<uint64_t>(n_rows);
  if (!spec.block_int16) return rows * static_cast<uint64_t>(spec.columns) * sizeof(float);
  const int64_t groups =
      spec.slots * ((spec.slot_columns() + kActivationGroup - 1) / kActivationGroup);
  constexpr uint64_t kGroupBytes =
      2 * kActivationGroup + sizeof(float) + 2 * sizeof(int16_t) * kActivationGroup / kSumColumns;
  return rows * static_cast<uint64_t>(groups) * kGroupBytes;
}

void run_op(const Op& op, CpuContext& context) { std::visit(Runner(op, context), op.kind); }

}  // namespace assay
