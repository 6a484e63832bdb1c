#include "quantizer/estimate.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <numeric>
#include <set>
#include <thread>

#include "calibrate/gram.h"
#include "calibrate/sensitivity.h"
#include "convert/core/isa.h"
#include "convert/core/parallel.h"
#include "quantizer/coupled_rows.h"
#include "quantizer/factor.h"
#include "quantizer/held_out.h"
#include "quantizer/layer_solver.h"
#include "quantizer/refine.h"
#include "runtime/cpu_executor.h"

namespace assay {
namespace {

// Operations per second of one core, between what a Xeon and an EPYC core took for each stage
// of whole runs with each instruction set (docs/measured.md). They serve the estimate of time
// and the progress bar alone.
struct Rates {
  double linear;     // products of W4 × int16
  double linear16;   // products of 16-bit weights × int16
  double attention;  // fused products of q·k and p·v
  double elements;   // register elements written by other ops
  double gram;
  double factor;     // fused fp64
  double columns;    // fused fp32
  double quadratic;  // fused fp64: scale search and losses
  double gradient;   // fused fp32 of derivatives
};

const Rates& rates_in_use() {
  static constexpr Rates kScalar = {.3e9, .3e9, .2e9, .1e9, 2e9, 1e9, .7e9, .7e9, .3e9};
  static constexpr Rates kAvx2 = {30e9, 12e9, 14e9, 1.5e9, 28e9, 9e9, 16e9, 10e9, 25e9};
  static constexpr Rates kAvx512 = {70e9, 45e9, 33e9, 3e9, 65e9, 18e9, 33e9, 23e9, 50e9};
  const Isa isa = active_isa();
  return isa == Isa::kAvx512 ? kAvx512 : isa == Isa::kAvx2 ? kAvx2 : kScalar;
}

uint64_t held_bytes(const Program& program, const std::set<int>& registers, int64_t n_tokens) {
  uint64_t total = 0;
  for (const int index : registers) {
    total += register_bytes(program.registers[static_cast<size_t>(index)], n_tokens);
  }
  return total;
}

// Activations of all tokens held at the worst moment of a layer: values move from store to store
// batch by batch, so one batch counts twice.
uint64_t activation_bytes(const Program& program, const LayerPlan& plan, int64_t n_tokens,
                          int64_t batch_tokens) {
  std::set<int> held;
  for (const Register r : live_before(program, plan.segments.front().begin)) held.insert(r.index);
  uint64_t most = held_bytes(program, held, n_tokens);
  for (const Segment& segment : plan.segments) {
    for (const Register r : segment.drops) held.erase(r.index);
    for (const Register r : segment.stores) held.insert(r.index);
    uint64_t batch = 0;
    for (const Register r : segment.loads) {
      batch += register_bytes(program.registers[static_cast<size_t>(r.index)], batch_tokens);
    }
    most = std::max(most, held_bytes(program, held, n_tokens) + batch);
  }
  return most;
}

// Registers that one batch works in.
uint64_t batch_bytes(const Program& program, const LayerPlan& plan, int64_t batch_tokens) {
  std::set<int> used;
  for (const Segment& segment : plan.segments) {
    for (int i = segment.begin; i < segment.end; ++i) {
      const Op& op = program.ops[static_cast<size_t>(i)];
      for (const Register r : reads(op)) used.insert(r.index);
      for (const Register r : writes(op)) used.insert(r.index);
    }
  }
  return held_bytes(program, used, batch_tokens);
}

struct LayerMemory {
  uint64_t activations = 0;
  uint64_t batch = 0;
  uint64_t weights = 0;  // packed for the forward pass, and as they go to disk
  uint64_t hessian = 0;  // Gram sums, then Hessian and factor, then the solver
};

LayerMemory layer_memory(const RunPlan& plan, const RunOptions& options, int layer,
                         int64_t n_tokens, int64_t n_plain_tokens, int64_t n_held_out_tokens,
                         int64_t batch_tokens) {
  LayerMemory memory;
  const LayerPlan cut = plan.layer(layer);
  const Program& program = plan.program;
  if (plan.calibrated) {
    memory.activations = activation_bytes(program, cut, n_tokens, batch_tokens);
    if (options.capture == CaptureMode::kLayer && plan.quantize.propagate) {
      memory.activations +=
          register_bytes(program.registers[static_cast<size_t>(program.residual.index)], n_tokens);
    }
    if (n_plain_tokens > 0) {
      memory.activations += activation_bytes(program, cut, n_plain_tokens, batch_tokens);
    }
    memory.activations +=
        (2 + plan.beside.size()) * activation_bytes(program, cut, n_held_out_tokens, batch_tokens);
  }
  for (const CaptureStop& stop : cut.stops) {
    const uint64_t hessian =
        static_cast<uint64_t>(stop.columns) * static_cast<uint64_t>(stop.columns) * sizeof(double);
    uint64_t solve = 0;
    for (const int matrix : stop.matrices) {
      const auto index = static_cast<size_t>(matrix);
      solve = std::max(solve, solve_peak_bytes(plan.shape(matrix), plan.options[index]));
      for (const auto& other : plan.beside) {
        solve = std::max(solve, solve_peak_bytes(plan.shape(matrix), other[index]));
      }
    }
    if (!plan.calibrated) {
      memory.hessian = std::max(memory.hessian, solve);
      continue;
    }
    const auto n = static_cast<uint64_t>(stop.columns);
    // With two streams their products stand beside the Hessian, and the factor in full.
    const uint64_t drift = plan.two_streams() ? hessian : 0;
    uint64_t residual = 0;
    std::vector<int64_t> cross_rows;  // in the order in which StreamWalk::products ends them
    // Columns of one batch: differences, and what is read from disk.
    int64_t taken = 0;
    const int64_t copies = memory.activations > options.activation_memory ? 3 : 1;
    if (plan.wants_residual(stop.matrices) && stop.adds_to.index >= 0) {
      const int64_t rows = plan.shape(stop.matrices.front()).out_features;
      residual = static_cast<uint64_t>(rows) * n * sizeof(double);
      cross_rows.push_back(rows);
      taken += copies * rows;
    }
    if (plan.two_streams()) {
      cross_rows.push_back(stop.columns);
      taken += copies * stop.columns;
    }
    if (copies > 1) taken += stop.columns;
    const uint64_t taken_bytes = static_cast<uint64_t>(batch_tokens * taken) * sizeof(float);
    if (options.per_module) {
      // The same products of the held-out windows, and the best trial beside the one at work.
      const int64_t rows = plan.shape(stop.matrices.front()).out_features;
      residual += 2 * hessian + static_cast<uint64_t>(rows) * n * (sizeof(double) + 1);
    }
    memory.hessian =
        std::max({memory.hessian, products_peak_bytes(stop.columns, cross_rows) + taken_bytes,
                  hessian + drift + residual + factor_peak_bytes(stop.columns),
                  hessian + 2 * drift + residual + n * n * 4 + solve});
  }
  const auto& matrices = program.matrices;
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].layer != layer) continue;
    const int64_t rows = matrices[i].out_features;
    const int64_t columns = matrices[i].in_features;
    const bool quantized = plan.selected[i] != 0;
    if (quantized) {
      for (const TensorSpec& tensor :
           plan.layout->tensors(plan.shape(static_cast<int>(i)), plan.quantize)) {
        memory.weights += tensor.bytes();
      }
    }
    const bool runs_quantized = quantized && plan.quantize.propagate;
    if (plan.calibrated && runs_quantized) {
      memory.weights +=
          (1 + plan.beside.size()) *
          PackedMatrix::bytes_for(
              integer_format(plan.quantize.bits, plan.quantize.symmetric), rows, columns,
              plan.quantize.group_size < 0 ? columns : plan.quantize.group_size);
    }
    const bool runs_plain =
        !runs_quantized || options.capture == CaptureMode::kLayer || plan.two_streams();
    if (plan.calibrated && runs_plain) {
      memory.weights += PackedMatrix::bytes_for(scalar_format(plan.checkpoint->spec().source_dtype),
                                                rows, columns, columns);
    }
  }
  if (!plan.calibrated) return memory;
  memory.batch = batch_bytes(program, cut, batch_tokens);
  return memory;
}

// What follows the layers, and the logits of both models, for the windows that are held out.
uint64_t head_bytes(const RunPlan& plan) {
  uint64_t bytes = 0;
  for (const MatrixSlot& slot : plan.program.matrices) {
    if (slot.role != Role::kHead) continue;
    bytes += PackedMatrix::bytes_for(scalar_format(plan.checkpoint->spec().source_dtype),
                                     slot.out_features, slot.in_features, slot.in_features);
  }
  const auto vocab = static_cast<uint64_t>(plan.checkpoint->spec().vocab_size);
  return bytes + 3 * static_cast<uint64_t>(kHeldOutRows) * vocab * sizeof(float);
}

double segment_seconds(const Program& program, const Segment& segment, const Rates& rates,
                       double n_tokens, int64_t window_length, double linear_rate) {
  double seconds = 0.0;
  for (int i = segment.begin; i < segment.end; ++i) {
    const Op& op = program.ops[static_cast<size_t>(i)];
    if (const auto* linear = std::get_if<LinearOp>(&op.kind)) {
      const MatrixSlot& slot = program.matrices[static_cast<size_t>(linear->matrix)];
      seconds += n_tokens * static_cast<double>(slot.out_features * slot.in_features) / linear_rate;
    } else if (const auto* experts = std::get_if<ExpertLinearOp>(&op.kind)) {
      const MatrixSlot& slot = program.matrices[static_cast<size_t>(experts->first_matrix)];
      const auto used = program.registers[static_cast<size_t>(experts->ids.index)].columns;
      seconds +=
          n_tokens * static_cast<double>(used * slot.out_features * slot.in_features) / linear_rate;
    } else if (const auto* attention = std::get_if<AttentionOp>(&op.kind)) {
      const int64_t seen =
          std::min(window_length / 2 + 1, attention->sliding_window.value_or(window_length));
      seconds += n_tokens * static_cast<double>(seen) * 2.0 * attention->n_heads *
                 attention->head_dim / rates.attention;
    } else {
      for (const Register r : writes(op)) {
        seconds += n_tokens *
                   static_cast<double>(program.registers[static_cast<size_t>(r.index)].columns) /
                   rates.elements;
      }
    }
  }
  return seconds;
}

}  // namespace

StageCost layer_cost(const RunPlan& plan, int layer, int64_t n_windows, int64_t window_length) {
  const Rates& rates = rates_in_use();
  StageCost cost;
  const LayerPlan cut = plan.layer(layer);
  const auto n_tokens = static_cast<double>(n_windows * window_length);
  const double plain_share = n_windows == 0 ? 0.0
                                            : static_cast<double>(plan.n_plain_windows(n_windows)) /
                                                  static_cast<double>(n_windows);
  const bool last = layer + 1 == static_cast<int>(plan.program.layers.size());
  for (const Segment& segment : cut.segments) {
    if (last && &segment == &cut.segments.back()) break;  // its output goes nowhere
    if (plan.calibrated) {
      const auto stream = [&](double linear_rate) {
        return segment_seconds(plan.program, segment, rates, n_tokens, window_length, linear_rate);
      };
      cost.forward += stream(plan.quantize.propagate ? rates.linear : rates.linear16);
      cost.forward += plain_share * stream(rates.linear16);
    }
  }
  // Pairs of scale and zero point that are tried for each group, and what a round that quantizes
  // groups anew takes, in such pairs.
  const double candidates = (plan.quantize.scale_search == ScaleSearch::kHessianGrid ? 21.0 : 0.0) +
                            45.0 * plan.quantize.regrid_rounds;
  for (const CaptureStop& stop : cut.stops) {
    const auto n = static_cast<double>(stop.columns);
    const auto& moe = plan.program.spec.layers[static_cast<size_t>(layer)].moe;
    if (plan.calibrated && stop.routes.index >= 0) {  // one Hessian per expert
      cost.gram += n_tokens * moe->top_k * n * n / 2.0 / rates.gram;
      cost.factor += moe->n_experts * n * n * n / 3.0 / rates.factor;
    } else if (plan.calibrated) {
      cost.gram += n_tokens * n * n / 2.0 / rates.gram * (1.0 + 2.0 * plain_share);
      cost.factor += n * n * n / 3.0 / rates.factor;
    }
    for (const int matrix : stop.matrices) {
      const int64_t n_rows = plan.shape(matrix).out_features;
      const bool coupled = plan.quantize.sensitivity_windows > 0 && stop.routes.index < 0;
      const auto rows = static_cast<double>(coupled ? coupled_lanes(n_rows) : n_rows);
      const double group =
          plan.quantize.group_size < 0 ? n : static_cast<double>(plan.quantize.group_size);
      // Losses; the target's three products; the two of the rows that are refined, and about as
      // much again for what moves.
      const double products =
          3.0 + (plan.two_streams() ? 3.0 : 0.0) + (refines(plan.quantize) ? 3.0 : 0.0);
      cost.solve += rows * n * n / 2.0 / rates.columns +
                    rows * n * (products * n + candidates * group) / rates.quadratic;
    }
  }
  cost.solve *= static_cast<double>(1 + plan.beside.size());
  const double threads = n_threads();
  cost.forward /= threads;
  cost.gram /= threads;
  cost.factor /= threads;
  cost.solve /= threads;
  return cost;
}

double sensitivity_seconds(const RunPlan& plan, int64_t n_windows, int64_t window_length) {
  if (plan.quantize.sensitivity_windows == 0) return 0.0;
  const Rates& rates = rates_in_use();
  const auto n_tokens =
      static_cast<double>(std::min(n_windows, plan.quantize.sensitivity_windows) * window_length);
  const auto products = [&](const OpRange& range) {
    double seconds = 0.0;
    for (int i = range.begin; i < range.end; ++i) {
      const Op& op = plan.program.ops[static_cast<size_t>(i)];
      if (const auto* linear = std::get_if<LinearOp>(&op.kind)) {
        const MatrixSlot& slot = plan.program.matrices[static_cast<size_t>(linear->matrix)];
        const auto rows = static_cast<double>(slot.out_features);
        // The derivative of what it reads, and the half of what its outputs do together.
        const double coupled = std::min(rows, static_cast<double>(kChainRows)) / 2.0;
        seconds +=
            n_tokens * rows *
            (static_cast<double>(slot.in_features) + (plan.wants(linear->matrix) ? coupled : 0.0)) /
            rates.gradient;
      } else if (const auto* attention = std::get_if<AttentionOp>(&op.kind)) {
        const int64_t seen =
            std::min(window_length / 2 + 1, attention->sliding_window.value_or(window_length));
        seconds += n_tokens * static_cast<double>(seen) * 8.0 * attention->n_heads *
                   attention->head_dim / rates.gradient;
      } else if (const auto* delta = std::get_if<DeltaNetOp>(&op.kind)) {
        const auto& states = plan.program.state_layers[static_cast<size_t>(delta->state_layer)];
        seconds += n_tokens * 14.0 * static_cast<double>(states.matrix_values()) / rates.attention;
      }
    }
    return seconds;
  };
  double seconds =
      products({plan.program.layers.back().end, static_cast<int>(plan.program.ops.size())});
  for (const OpRange& range : plan.program.layers) {
    const LayerPlan whole =
        plan_ops(plan.program, -1, range, [](const MatrixSlot&) { return false; });
    // Forward twice, and what passes over every register on the way back.
    seconds += 4.0 * segment_seconds(plan.program, whole.segments.front(), rates, n_tokens,
                                     window_length, rates.linear16 * 2.0) +
               products(range);
  }
  return seconds / n_threads();
}

double idle_share() {
  using Clock = std::chrono::steady_clock;
  static constexpr auto kTime = std::chrono::milliseconds(150);
  const auto n = static_cast<size_t>(n_threads());
  std::vector<double> seconds(n);
  std::vector<std::thread> threads;
  const Clock::time_point begin = Clock::now();
  for (double& used : seconds) {
    threads.emplace_back([&used, begin] {
      while (Clock::now() - begin < kTime) {
      }
      timespec time{};
      if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0) {
        used = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double all = std::chrono::duration<double>(Clock::now() - begin).count();
  // Work is shared out as threads come for it, so that their sum counts.
  const double used = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return std::clamp(used / (all * static_cast<double>(n)), 0.01, 1.0);
}

RunEstimate estimate_run(const RunPlan& plan, const RunOptions& options,
                         const OutputContents& contents, int64_t n_windows, int64_t window_length) {
  RunEstimate out;
  out.files = plan_output_folder(plan, contents, options.max_shard_bytes);
  for (const OutputFile& file : out.files) out.output_bytes += file.bytes;

  const int64_t n_tokens = n_windows * window_length;
  const int64_t n_plain_tokens = plan.n_plain_windows(n_windows) * window_length;
  const int64_t together =
      std::max<int64_t>(1, options.batch_tokens / std::max<int64_t>(1, window_length));
  const int64_t batch_tokens = std::min(n_windows, together) * window_length;
  LayerMemory most;
  for (int layer = 0; layer < static_cast<int>(plan.program.layers.size()); ++layer) {
    const LayerMemory here = layer_memory(plan, options, layer, n_tokens, n_plain_tokens,
                                          options.held_out_windows * window_length, batch_tokens);
    most.activations = std::max(most.activations, here.activations);
    most.batch = std::max(most.batch, here.batch);
    most.weights = std::max(most.weights, here.weights);
    most.hessian = std::max(most.hessian, here.hessian);
    out.seconds += layer_cost(plan, layer, n_windows, window_length).total();
  }
  if (options.held_out_windows > 0) most.weights = std::max(most.weights, head_bytes(plan));
  out.seconds += sensitivity_seconds(plan, n_windows, window_length);
  SensitivityCost sensitivity;
  if (plan.quantize.sensitivity_windows > 0) {
    sensitivity = sensitivity_cost(plan.program, plan.wanted(), n_windows, window_length,
                                   {plan.quantize.sensitivity_windows, options.kv_type});
    most.activations += sensitivity.found_bytes;  // the rest is gone before the first layer
  }
  const uint64_t in_memory = std::min(most.activations, options.activation_memory);
  const uint64_t stored = std::min(sensitivity.stored_bytes, options.activation_memory);
  out.spill_bytes = std::max(most.activations - in_memory, sensitivity.stored_bytes - stored);
  uint64_t tables = 0;
  for (const RopeSpec& rope : plan.program.ropes) {
    tables += static_cast<uint64_t>(window_length * rope.rotary_dims) * sizeof(float);
  }
  const uint64_t cache =
      KvCache::bytes(plan.program.cache_layers, options.kv_type,
                     static_cast<int>(std::min(n_windows, together)), window_length) /
          std::max<size_t>(1, plan.program.cache_layers.size()) +
      KvCache::state_bytes(plan.program.state_layers,
                           static_cast<int>(std::min(n_windows, together))) /
          std::max<size_t>(1, plan.program.state_layers.size());
  constexpr uint64_t kProgramBytes = uint64_t{24} << 20;  // code, tokenizer, buffers of files
  out.memory = {{"activations", in_memory},
                {"Hessian, factor and solver", most.hessian},
                {"one batch of the forward pass", most.batch + cache + tables},
                {"weights of one layer", most.weights},
                {"token ids", static_cast<uint64_t>(n_tokens) * sizeof(int32_t)},
                {"program", kProgramBytes}};
  for (const LedgerItem& item : out.memory) out.memory_bytes += item.bytes;
  // Nothing of the layers is there yet while sensitivities are measured.
  const uint64_t measuring = stored + sensitivity.work_bytes + cache + tables +
                             static_cast<uint64_t>(n_tokens) * sizeof(int32_t) + kProgramBytes;
  if (measuring > out.memory_bytes) {
    out.memory.push_back({"derivatives, beyond all that", measuring - out.memory_bytes});
    out.memory_bytes = measuring;
  }
  // Blocks below what the allocator gives back at once; up to 4 % was measured.
  const uint64_t kept = out.memory_bytes / 20;
  out.memory.push_back({"freed blocks that the allocator keeps", kept});
  out.memory_bytes += kept;

  if (plan.calibrated) {
    // The stream into the next layer is written before the one before it is removed.
    const int64_t n_held_out_tokens = options.held_out_windows * window_length;
    uint64_t most_live = 0;
    for (const OpRange& layer : plan.program.layers) {
      std::set<int> live;
      for (const Register r : live_before(plan.program, layer.begin)) live.insert(r.index);
      most_live = std::max(
          most_live,
          held_bytes(plan.program, live, n_tokens + n_plain_tokens + 2 * n_held_out_tokens));
    }
    out.state_bytes += 2 * most_live;
  }
  for (size_t i = 0; i < plan.selected.size(); ++i) {
    if (plan.selected[i] == 0) continue;
    for (const TensorSpec& tensor :
         plan.layout->tensors(plan.shape(static_cast<int>(i)), plan.quantize)) {
      out.state_bytes += tensor.bytes();
    }
  }
  return out;
}

}  // namespace assay
