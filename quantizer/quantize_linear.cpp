#include "quantizer/quantize_linear.h"

#include <utility>
#include <vector>

#include "convert/core/error.h"
#include "quantizer/coupled_rows.h"
#include "quantizer/grid.h"
#include "quantizer/loss.h"
#include "quantizer/refine.h"
#include "quantizer/target.h"

namespace assay {
namespace {

double loss_of_plain_recipe(const Algorithm& algorithm, const LayerProblem& problem,
                            const QuantizeOptions& options) {
  const Grid grid = min_max_grid(problem, options);
  std::vector<uint8_t> codes(problem.weights.size());
  algorithm.codes(problem, options, grid, codes);
  return loss_of_codes(problem, grid, codes);
}

// Ŵ of round-to-nearest with min-max scales.
std::vector<float> nearest_weights(const LayerProblem& problem, const QuantizeOptions& options) {
  const Grid grid = min_max_grid(problem, options);
  std::vector<uint8_t> codes(problem.weights.size());
  const auto columns = static_cast<size_t>(problem.in_features);
  for (int64_t row = 0; row < problem.out_features; ++row) {
    const size_t first = static_cast<size_t>(row) * columns;
    nearest_codes(problem.weights.subspan(first, columns), grid, row, options.bits,
                  std::span(codes).subspan(first, columns));
  }
  return rounded_weights(grid, codes, problem.in_features);
}

RowResult solve_rows(const Algorithm& algorithm, const LayerProblem& aim,
                     const QuantizeOptions& options) {
  const Refiner refiner(aim, options);
  const RowSolver solve = [&](const LayerProblem& rows) {
    RowResult part;
    part.grid = make_grid(rows, options);
    part.codes.resize(rows.weights.size());
    part.n_cut = algorithm.codes(rows, options, part.grid, part.codes);
    if (refines(options)) part.steps = refiner.run(rows, rows.weights, part.grid, part.codes);
    return part;
  };
  return aim.sensitivity.empty() ? solve(aim) : solve_coupled_rows(aim, options, solve);
}

}  // namespace

LayerResult quantize_linear(const LayerProblem& problem, const QuantizeOptions& options) {
  const Algorithm& algorithm = find_algorithm(options.algorithm);
  if (algorithm.needs_calibration) {
    ASSAY_CHECK(problem.hessian != nullptr && problem.factor != nullptr);
    ASSAY_CHECK(problem.factor->n == problem.in_features);
  }
  LayerProblem aim = problem;  // what the steps quantize: W* in the place of W
  std::vector<float> target;
  if (problem.drift != nullptr && options.target_alpha != 0.0) {
    target = two_stream_target(problem, options.target_alpha, options.residual_alpha);
    aim.weights = target;
  }
  LayerResult result;
  RowResult rows = solve_rows(algorithm, aim, options);
  Grid& grid = rows.grid;
  result.codes = std::move(rows.codes);
  if (options.measure_plain && algorithm.takes_steps) {
    result.plain_loss = loss_of_plain_recipe(algorithm, problem, options);
  }
  if (refines(options)) result.steps = rows.steps;
  target = {};
  const Losses losses = measure_losses(problem, options, grid, result.codes);
  result.loss = losses.loss;
  if (problem.drift != nullptr) {
    result.output_distance = output_distance(
        problem, rounded_weights(grid, result.codes, problem.in_features), losses.loss);
    result.rtn_output_distance =
        output_distance(problem, nearest_weights(problem, options), losses.rtn_loss);
  }
  if (!problem.sensitivity.empty()) {
    result.coupled_loss = coupled_loss(
        problem, errors_of(problem, rounded_weights(grid, result.codes, problem.in_features)));
    result.rtn_coupled_loss =
        coupled_loss(problem, errors_of(problem, nearest_weights(problem, options)));
  }
  result.rtn_loss = losses.rtn_loss;
  result.weight_norm = losses.weight_norm;
  result.clipped_share =
      static_cast<double>(rows.n_cut) / static_cast<double>(problem.weights.size());
  result.scales = std::move(grid.scales);
  result.zero_points = std::move(grid.zero_points);
  return result;
}

}  // namespace assay
