#include "quantizer/refine.h"

#include <algorithm>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "quantizer/descent.h"
#include "quantizer/refit.h"
#include "quantizer/solver_kernels.h"

namespace assay {
namespace {

// One pack of rows on its way.
class PackTask {
 public:
  PackTask(RowQuadraticPack& pack, const QuantizeOptions& options,
           const std::vector<GroupBlock>& blocks, std::span<StepLosses> losses)
      : pack_(pack),
        options_(options),
        blocks_(blocks),
        losses_(losses),
        residual_(static_cast<size_t>(pack.row(0).n)),
        loss_(losses.size()) {}

  void run() {
    for (int64_t r = 0; r < pack_.n_rows(); ++r) {
      RowQuadratic& row = pack_.row(r);
      row.sum_groups();
      loss_[at(r)] = losses_[at(r)].column_loop = row.loss(row.scales);
    }
    for (int round = 0; round < options_.refit_rounds; ++round) {
      for (int64_t r = 0; r < pack_.n_rows(); ++r) {
        const double gain = refit_scales(pack_.row(r), options_);
        losses_[at(r)].refit += gain;
        loss_[at(r)] -= gain;
        descend(r);
      }
      if (round < options_.regrid_rounds) regrid();
    }
  }

 private:
  static size_t at(int64_t r) { return static_cast<size_t>(r); }

  void descend(int64_t r) {
    int64_t n_moved = 0;
    for (int pass = 0; pass < options_.descent_passes; ++pass) {
      const int64_t n = descend_codes(pack_.row(r), options_.bits, residual_);
      n_moved += n;
      if (n == 0) break;
    }
    if (n_moved > 0) losses_[at(r)].descent += update(r);
  }

  void regrid() {
    double gains[kQuadraticLanes] = {};
    regrid_groups(pack_, blocks_, options_, gains);
    for (int64_t r = 0; r < pack_.n_rows(); ++r) {
      if (gains[r] != 0.0) losses_[at(r)].regrid += update(r);
      descend(r);
    }
  }

  // By how much the loss fell since it was last known.
  double update(int64_t r) {
    RowQuadratic& row = pack_.row(r);
    row.sum_groups();
    const double now = row.loss(row.scales);
    return std::exchange(loss_[at(r)], now) - now;
  }

  RowQuadraticPack& pack_;
  const QuantizeOptions& options_;
  const std::vector<GroupBlock>& blocks_;
  std::span<StepLosses> losses_;  // of the pack's rows
  std::vector<double> residual_;
  std::vector<double> loss_;
};

}  // namespace

bool refines(const QuantizeOptions& options) { return options.refit_rounds > 0; }

uint64_t refine_peak_bytes(int64_t columns, const QuantizeOptions& options) {
  if (!refines(options)) return 0;
  const uint64_t pack = RowQuadraticPack::bytes(columns, groups_per_row(columns, options));
  if (options.regrid_rounds == 0) return pack;
  return pack + regrid_peak_bytes(columns_per_group(columns, options));
}

uint64_t refine_shared_bytes(int64_t columns, const QuantizeOptions& options) {
  if (options.regrid_rounds == 0) return 0;
  return group_blocks_bytes(columns, columns_per_group(columns, options));
}

Refiner::Refiner(const LayerProblem& problem, const QuantizeOptions& options) : options_(options) {
  if (options.regrid_rounds > 0) blocks_ = group_blocks(problem, options);
}

StepLosses Refiner::run(const LayerProblem& problem, std::span<const float> target, Grid& grid,
                        std::span<uint8_t> codes) const {
  const int64_t n = problem.in_features;
  std::vector<StepLosses> row_losses(static_cast<size_t>(problem.out_features));
  const int64_t n_packs = (problem.out_features + kQuadraticLanes - 1) / kQuadraticLanes;
  parallel_for(n_packs, 1, [&](int64_t begin, int64_t end) {
    RowQuadraticPack pack(problem, grid);
    for (int64_t p = begin; p < end; ++p) {
      const int64_t first = p * kQuadraticLanes;
      pack.load(target, codes, first);
      PackTask(pack, options_, blocks_,
               std::span(row_losses)
                   .subspan(static_cast<size_t>(first), static_cast<size_t>(pack.n_rows())))
          .run();
      for (int64_t r = 0; r < pack.n_rows(); ++r) {
        const RowQuadratic& row = pack.row(r);
        for (int64_t g = 0; g < grid.n_groups; ++g) {
          const auto index = static_cast<size_t>((first + r) * grid.n_groups + g);
          grid.scales[index] = row.scales[static_cast<size_t>(g)];
          grid.zero_points[index] = static_cast<uint8_t>(row.zeros[static_cast<size_t>(g)]);
        }
        for (int64_t i = 0; i < n; ++i) {
          const double code = row.steps[static_cast<size_t>(i)] +
                              row.zeros[static_cast<size_t>(i / grid.group_size)];
          codes[static_cast<size_t>((first + r) * n + i)] = static_cast<uint8_t>(code);
        }
      }
    }
  });
  StepLosses total;
  for (const StepLosses& row : row_losses) total += row;
  return total;
}

}  // namespace assay
