#include "quantizer/layer_solver.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/core/stopwatch.h"
#include "quantizer/coupled_rows.h"
#include "quantizer/grid.h"
#include "quantizer/loss.h"
#include "quantizer/q4_k_grid.h"
#include "quantizer/quantize_linear.h"
#include "quantizer/recipe.h"
#include "quantizer/refine.h"
#include "quantizer/solver_kernels.h"
#include "quantizer/target.h"

namespace assay {
namespace {

std::vector<float> read_weights(const RunPlan& plan, const MatrixSlot& slot) {
  const CheckpointMatrix matrix = plan.checkpoint->matrix(slot.role, slot.layer, slot.expert);
  std::vector<float> weights(static_cast<size_t>(slot.out_features * slot.in_features));
  parallel_for(slot.out_features, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto out = std::span(weights).subspan(static_cast<size_t>(row * slot.in_features),
                                                  static_cast<size_t>(slot.in_features));
      matrix.decode_row(row, out);
      for (size_t k = 0; k < out.size(); ++k) {
        if (std::isfinite(out[k])) continue;
        throw NumericError(slot.module + ".weight: row " + std::to_string(row) + ", column " +
                           std::to_string(k) + " is " + std::to_string(out[k]));
      }
    }
  });
  return weights;
}

double held_out_distance(const LayerProblem& problem, const QuantizeOptions& options,
                         const LayerResult& result) {
  Grid grid;
  grid.group_size = columns_per_group(problem.in_features, options);
  grid.n_groups = groups_per_row(problem.in_features, options);
  grid.scales = result.scales;
  grid.zero_points = result.zero_points;
  std::vector<float> rounded = rounded_weights(grid, result.codes, problem.in_features);
  if (!problem.sensitivity.empty()) return coupled_loss(problem, errors_of(problem, rounded));
  const double loss = loss_of_codes(problem, grid, result.codes);
  return problem.drift == nullptr ? loss : output_distance(problem, rounded, loss);
}

/// Round to nearest, with nothing that looks at activations.
QuantizeOptions uncalibrated(QuantizeOptions options) {
  options.algorithm = "rtn";
  apply_recipe(find_recipe("plain"), false, options);
  return options;
}

}  // namespace

PackedMatrix pack_result(const LinearShape& linear, const QuantizeOptions& options,
                         const LayerResult& result) {
  const int64_t group_size = columns_per_group(linear.in_features, options);
  const int64_t n_groups = groups_per_row(linear.in_features, options);
  const auto read_row = [&](int64_t row, IntegerRow& out) {
    const auto* codes = result.codes.data() + row * linear.in_features;
    out.codes.assign(codes, codes + linear.in_features);
    out.scales.assign(result.scales.begin() + row * n_groups,
                      result.scales.begin() + (row + 1) * n_groups);
    out.zeros.assign(result.zero_points.begin() + row * n_groups,
                     result.zero_points.begin() + (row + 1) * n_groups);
  };
  return PackedMatrix::pack(integer_format(options.bits, options.symmetric), linear.out_features,
                            linear.in_features, group_size, read_row);
}

LinearTrial try_linear(const RunPlan& plan, int matrix, const QuantizeOptions& options,
                       const Calibration& calibration, const Calibration* held_out) {
  const Stopwatch watch;
  const MatrixSlot& slot = plan.program.matrices[static_cast<size_t>(matrix)];
  const std::vector<float> weights = read_weights(plan, slot);
  LayerProblem problem{.module = slot.module,
                       .out_features = slot.out_features,
                       .in_features = slot.in_features,
                       .weights = weights,
                       .hessian = calibration.hessian,
                       .factor = calibration.factor,
                       .drift = calibration.drift,
                       .residual_drift = calibration.residual_drift};
  std::vector<float> scratch;
  if (calibration.sensitivities != nullptr && options.sensitivity_windows > 0 &&
      !calibration.starved) {
    problem.sensitivity = calibration.sensitivities->of(matrix, scratch);
  }
  LinearTrial trial;
  trial.options = options;
  trial.result = quantize_linear(problem, calibration.starved ? uncalibrated(options) : options);
  trial.starved = calibration.starved;
  if (calibration.factor != nullptr) {
    trial.damp_percent = calibration.factor->damp_percent;
    trial.n_dead = calibration.factor->n_dead;
  }
  if (held_out != nullptr) {
    problem.hessian = held_out->hessian;
    problem.drift = held_out->drift;
    problem.residual_drift = held_out->residual_drift;
    trial.held_out_distance = held_out_distance(problem, options, trial.result);
  }
  trial.seconds = watch.seconds();
  return trial;
}

SolvedLinear finish_linear(const RunPlan& plan, int matrix, const LinearTrial& trial,
                           int64_t n_tokens, bool want_packed) {
  const MatrixSlot& slot = plan.program.matrices[static_cast<size_t>(matrix)];
  const LinearShape linear = plan.shape(matrix);
  const LayerResult& result = trial.result;
  SolvedLinear solved;
  solved.matrix = matrix;
  solved.tensors = plan.layout->tensors(linear, plan.quantize);
  solved.bytes = plan.layout->pack(linear, plan.quantize, result);
  if (want_packed) {
    solved.packed =
        std::make_shared<const PackedMatrix>(pack_result(linear, plan.quantize, result));
  }
  ModuleReport& report = solved.report;
  report.module = slot.module;
  report.layer = slot.layer;
  report.out_features = slot.out_features;
  report.in_features = slot.in_features;
  report.bits_per_weight = plan.bits_per_weight(matrix);
  report.n_tokens = n_tokens;
  report.starved = trial.starved;
  report.off_lattice = plan.is_off_lattice(matrix);
  report.loss = result.loss;
  report.rtn_loss = result.rtn_loss;
  report.weight_norm = result.weight_norm;
  report.damp_percent = trial.damp_percent;
  report.n_dead = trial.n_dead;
  report.clipped_share = result.clipped_share;
  report.output_distance = result.output_distance;
  report.rtn_output_distance = result.rtn_output_distance;
  report.coupled_loss = result.coupled_loss;
  report.rtn_coupled_loss = result.rtn_coupled_loss;
  report.steps = result.steps;
  report.plain_loss = result.plain_loss;
  report.seconds = trial.seconds;
  return solved;
}

uint64_t solve_peak_bytes(const LinearShape& linear, const QuantizeOptions& options) {
  const auto rows = static_cast<uint64_t>(linear.out_features);
  const auto columns = static_cast<uint64_t>(linear.in_features);
  const auto group = static_cast<uint64_t>(columns_per_group(linear.in_features, options));
  const auto threads = static_cast<uint64_t>(n_threads());
  const uint64_t weights = rows * columns * (sizeof(float) + 1);  // and codes
  const uint64_t scales = rows * (columns / group + 1) * 2 * (sizeof(float) + 1);
  // Per thread: the algorithm's own, the errors of the loss, those of the scale search.
  const Algorithm& algorithm = find_algorithm(options.algorithm);
  const uint64_t codes =
      algorithm.bytes_per_thread != nullptr ? algorithm.bytes_per_thread(linear.in_features) : 0;
  const uint64_t loss = columns * (4 * kQuadraticLanes + kQuadraticPanel + 1) * sizeof(double);
  const uint64_t search = options.scale_search == ScaleSearch::kHessianGrid
                              ? group * (14 * kQuadraticLanes + kGridRows) * sizeof(double)
                              : 0;
  const uint64_t lattice =
      options.grid == GridKind::kQ4K ? q4_k_grid_peak_bytes(static_cast<int64_t>(group)) : 0;
  uint64_t steps = refine_peak_bytes(linear.in_features, options);
  uint64_t target = refine_shared_bytes(linear.in_features, options);
  if (options.target_alpha != 0.0) {
    target += rows * columns * sizeof(float);
    steps = std::max(steps, target_peak_bytes(linear.in_features));
  }
  if (options.sensitivity_windows > 0) {
    target += coupled_rows_bytes(linear.out_features, linear.in_features);
  }
  return weights + target + scales + threads * std::max({codes, loss, search, lattice, steps});
}

}  // namespace assay
