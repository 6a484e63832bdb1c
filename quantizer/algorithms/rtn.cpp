#include <atomic>

#include "convert/core/parallel.h"
#include "quantizer/algorithms/algorithms.h"
#include "quantizer/grid.h"
#include "quantizer/loss.h"

namespace assay {

LayerResult quantize_rtn(const LayerProblem& problem, const QuantizeOptions& options) {
  Grid grid = make_grid(problem, options);
  LayerResult result;
  result.codes.resize(problem.weights.size());
  const auto columns = static_cast<size_t>(problem.in_features);
  std::atomic<int64_t> n_cut = 0;
  parallel_for(problem.out_features, 32, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const size_t first = static_cast<size_t>(row) * columns;
      n_cut += nearest_codes(problem.weights.subspan(first, columns), grid, row, options.bits,
                             std::span(result.codes).subspan(first, columns));
    }
  });
  const Losses losses = measure_losses(problem, options, grid, result.codes);
  result.loss = losses.loss;
  result.rtn_loss = losses.rtn_loss;
  result.weight_norm = losses.weight_norm;
  result.clipped_share =
      static_cast<double>(n_cut.load()) / static_cast<double>(problem.weights.size());
  result.scales = std::move(grid.scales);
  result.zero_points = std::move(grid.zero_points);
  return result;
}

}  // namespace assay
