#include "calibrate/measure_importance.h"

#include <fmt/core.h>

#include <map>
#include <string>
#include <vector>

#include "calibrate/walk.h"
#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/core/parallel.h"
#include "runtime/float_environment.h"
#include "runtime/program.h"

namespace assay {
namespace {

constexpr int64_t kChannelsPerTask = 64;

/// Σ x² of each channel, and the number of rows behind it.
class SquareSums {
 public:
  explicit SquareSums(int64_t columns) : columns_(columns), sums_(static_cast<size_t>(columns)) {}

  void add(const float* x, int64_t rows) {
    n_rows_ += rows;
    parallel_for(columns_, kChannelsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; ++row) {
        const float* values = x + row * columns_;
        for (int64_t c = begin; c < end; ++c) {
          const auto value = static_cast<double>(values[c]);
          sums_[static_cast<size_t>(c)] += value * value;
        }
      }
    });
  }

  /// Appends them to those of the matrices before, columns in the order of GGUF.
  void append_to(ImportanceSums& sums, const TensorEntry& entry) const {
    std::vector<float> squares(sums_.begin(), sums_.end());
    reorder_columns(gguf_columns_of_huggingface(entry), squares);
    sums.squares.insert(sums.squares.end(), squares.begin(), squares.end());
    sums.n_tokens.push_back(n_rows_);
  }

 private:
  int64_t columns_;
  std::vector<double> sums_;
  int64_t n_rows_ = 0;
};

/// What each matrix of a stop reads: all captured rows, or an expert's share of them.
void measure_stop(const Checkpoint& checkpoint, const Program& program, const StreamWalk& walk,
                  const CaptureStop& stop, ImportanceSource& source) {
  std::map<int, SquareSums> by_expert;  // −1: all rows
  for (const int matrix : stop.matrices) {
    const MatrixSlot& slot = program.matrices[static_cast<size_t>(matrix)];
    if (by_expert.contains(slot.expert)) continue;
    SquareSums& sums = by_expert.try_emplace(slot.expert, stop.columns).first->second;
    if (slot.expert >= 0) {
      walk.for_routed_rows(stop, slot.expert, [&](const float* x, int64_t n) { sums.add(x, n); });
      continue;
    }
    std::vector<float> scratch;
    for (int64_t b = 0; b < walk.n_batches(); ++b) {
      sums.add(walk.values(stop.input).view(b, scratch).data(), walk.batch_rows(b));
    }
  }
  // The experts of a linear lie in one tensor, ascending; gate and up may share one, too.
  std::map<std::string, int> last;  // expert that a tensor has sums of
  for (const int matrix : stop.matrices) {
    const MatrixSlot& slot = program.matrices[static_cast<size_t>(matrix)];
    const TensorEntry& entry = checkpoint.entry(slot.role, slot.layer, slot.expert);
    const auto [found, is_new] = last.try_emplace(entry.gguf_name, slot.expert);
    if (!is_new && slot.expert <= found->second) continue;
    found->second = slot.expert;
    by_expert.at(slot.expert).append_to(source.weights[entry.gguf_name], entry);
  }
}

}  // namespace

ImportanceSource measure_importance(const std::shared_ptr<const Checkpoint>& checkpoint,
                                    const TokenWindows& windows, const ImportanceRun& run) {
  check_float_environment();
  const Program program = build_program(checkpoint->spec(), checkpoint->tensors());
  CpuWeights weights;
  weights.checkpoint = checkpoint;
  ActivationMemory memory(run.activation_memory, run.spill_folder);
  StreamWalk walk(program, weights, windows, {.kv_type = run.kv_type}, memory);
  bind_weights(program, checkpoint, 0, program.layers.front().begin, windows.window_length,
               weights);
  walk.embed();
  ImportanceSource source;
  source.chunk_count = windows.n_windows;
  source.chunk_size = windows.window_length;
  const auto n_layers = static_cast<int>(program.layers.size());
  for (int layer = 0; layer < n_layers; ++layer) {
    if (run.progress) {
      run.progress(static_cast<double>(layer) / n_layers,
                   fmt::format("layer {} of {}", layer + 1, n_layers));
    }
    const LayerPlan plan = plan_layer(program, layer, [](const MatrixSlot& slot) {
      return slot.role != Role::kRouter;  // which no file quantizes
    });
    const OpRange& range = program.layers[static_cast<size_t>(layer)];
    bind_weights(program, checkpoint, range.begin, range.end, windows.window_length, weights);
    for (size_t s = 0; s < plan.segments.size(); ++s) {
      walk.run_segment(plan, s);
      if (s == plan.stops.size()) break;
      const CaptureStop& stop = plan.stops[s];
      if (const int64_t channel = walk.captured_maxima().find_fault(); channel >= 0) {
        const MatrixSlot& slot = program.matrices[static_cast<size_t>(stop.matrices.front())];
        throw NumericError(fmt::format("{}: channel {} of its calibration input is not finite",
                                       slot.module, channel));
      }
      measure_stop(*checkpoint, program, walk, stop, source);
    }
    for (auto& matrix : weights.matrices) matrix.reset();
    for (auto& vector : weights.vectors) vector = {};
    if (checkpoint->safetensors() != nullptr) checkpoint->safetensors()->release_pages();
  }
  if (run.progress) run.progress(1.0, "");
  return source;
}

}  // namespace assay
