#include "calibrate/measure_importance.h"

#include <fmt/core.h>

#include <algorithm>

#include "calibrate/walk.h"
#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/core/parallel.h"
#include "runtime/float_environment.h"
#include "runtime/program.h"

namespace assay {
namespace {

constexpr int64_t kChannelsPerTask = 64;

/// Σ x² of each channel over the captured tokens.
std::vector<float> squares_of(const StreamWalk& walk, const CaptureStop& stop) {
  std::vector<double> sums(static_cast<size_t>(stop.columns), 0.0);
  const ActivationStore& store = walk.values(stop.input);
  std::vector<float> scratch;
  for (int64_t b = 0; b < walk.n_batches(); ++b) {
    const std::span<const float> x = store.view(b, scratch);
    const int64_t rows = walk.batch_rows(b);
    parallel_for(stop.columns, kChannelsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; ++row) {
        const float* values = x.data() + row * stop.columns;
        for (int64_t c = begin; c < end; ++c) {
          const auto value = static_cast<double>(values[c]);
          sums[static_cast<size_t>(c)] += value * value;
        }
      }
    });
  }
  return {sums.begin(), sums.end()};
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
    const LayerPlan plan = plan_layer(program, layer, [](const MatrixSlot&) { return true; });
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
      if (stop.routes.index >= 0) {
        throw UnsupportedError(fmt::format(
            "{}: an importance matrix of experts is not implemented; quantize with --algorithm "
            "gptq, or convert without --imatrix",
            program.matrices[static_cast<size_t>(stop.matrices.front())].module));
      }
      const ImportanceSums sums{squares_of(walk, stop), windows.n_tokens()};
      for (const int matrix : stop.matrices) {
        const MatrixSlot& slot = program.matrices[static_cast<size_t>(matrix)];
        const TensorEntry& entry = checkpoint->entry(slot.role, slot.layer);
        ImportanceSums& own = source.weights[entry.gguf_name] = sums;
        reorder_columns(gguf_columns_of_huggingface(entry), own.squares);
      }
    }
    for (auto& matrix : weights.matrices) matrix.reset();
    for (auto& vector : weights.vectors) vector = {};
    if (checkpoint->safetensors() != nullptr) checkpoint->safetensors()->release_pages();
  }
  if (run.progress) run.progress(1.0, "");
  return source;
}

}  // namespace assay
