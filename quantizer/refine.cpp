#include "quantizer/refine.h"

#include <algorithm>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "quantizer/descent.h"
#include "quantizer/refit.h"
#include "quantizer/solver_kernels.h"

namespace assay {
namespace {

StepLosses refine_row(RowQuadratic& row, const QuantizeOptions& options,
                      std::span<double> residual) {
  StepLosses losses;
  row.sum_groups();
  double loss = losses.column_loop = row.loss(row.scales);
  for (int round = 0; round < options.refit_rounds; ++round) {
    const double gain = refit_scales(row, options);
    losses.refit += gain;
    loss -= gain;
    int64_t n_moved = 0;
    for (int pass = 0; pass < options.descent_passes; ++pass) {
      const int64_t n = descend_codes(row, options.bits, residual);
      n_moved += n;
      if (n == 0) break;
    }
    if (n_moved == 0) {
      if (gain == 0.0) break;  // nothing would change any more
      continue;
    }
    row.sum_groups();
    const double now = row.loss(row.scales);
    losses.descent += loss - now;
    loss = now;
  }
  return losses;
}

}  // namespace

bool refines(const QuantizeOptions& options) { return options.refit_rounds > 0; }

uint64_t refine_peak_bytes(int64_t columns, const QuantizeOptions& options) {
  const int64_t group = columns_per_group(columns, options);
  return RowQuadraticPack::bytes(columns, (columns + group - 1) / group);
}

StepLosses refine(const LayerProblem& problem, const QuantizeOptions& options,
                  std::span<const float> target, Grid& grid, std::span<uint8_t> codes) {
  const int64_t n = problem.in_features;
  std::vector<StepLosses> row_losses(static_cast<size_t>(problem.out_features));
  const int64_t n_packs = (problem.out_features + kQuadraticLanes - 1) / kQuadraticLanes;
  parallel_for(n_packs, 1, [&](int64_t begin, int64_t end) {
    RowQuadraticPack pack(problem, grid);
    std::vector<double> residual(static_cast<size_t>(n));
    for (int64_t p = begin; p < end; ++p) {
      const int64_t first = p * kQuadraticLanes;
      pack.load(target, codes, first);
      for (int64_t r = 0; r < pack.n_rows(); ++r) {
        RowQuadratic& row = pack.row(r);
        row_losses[static_cast<size_t>(first + r)] = refine_row(row, options, residual);
        std::copy(row.scales.begin(), row.scales.end(),
                  grid.scales.begin() + (first + r) * grid.n_groups);
        for (int64_t i = 0; i < n; ++i) {
          const double code = row.steps[static_cast<size_t>(i)] +
                              row.zeros[static_cast<size_t>(i / grid.group_size)];
          codes[static_cast<size_t>((first + r) * n + i)] = static_cast<uint8_t>(code);
        }
      }
    }
  });
  StepLosses total;
  for (const StepLosses& row : row_losses) {
    total.column_loop += row.column_loop;
    total.refit += row.refit;
    total.descent += row.descent;
  }
  return total;
}

}  // namespace assay
