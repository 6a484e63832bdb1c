#include "quantizer/regrid.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "quantizer/factor.h"
#include "quantizer/group_search.h"
#include "quantizer/panels.h"
#include "quantizer/q4_k_grid.h"

namespace assay {
namespace {

constexpr int64_t kLanes = kQuadraticLanes;

using Lanes = std::array<double, kLanes>;

// One group of a pack of rows.
class GroupTask {
 public:
  GroupTask(RowQuadraticPack& pack, const GroupBlock& block, const QuantizeOptions& options,
            int64_t group)
      : pack_(pack),
        block_(block),
        options_(options),
        group_(group),
        begin_(pack.row(0).begin_of(group)),
        n_(pack.row(0).end_of(group) - begin_),
        wanted_(static_cast<size_t>(n_ * kLanes)),
        steps_(wanted_.size()),
        best_steps_(wanted_.size()),
        target_(static_cast<size_t>(n_ * kSolverRows)) {}

  void run(double* gains) {
    find_target();
    start();
    std::array<ScaleAndZero, kSolverRows> own;
    for (int64_t r = 0; r < kSolverRows; ++r) {
      const RowQuadratic& row = pack_.row(std::min(r, pack_.n_rows() - 1));
      own[static_cast<size_t>(r)] = {row.scales[g()], static_cast<uint8_t>(row.zeros[g()])};
    }
    for (const auto& choice : {search(), own}) {
      std::array<ScaleAndZero, kSolverRows> grid = choice;
      for (int time = 0; time < 2; ++time) attempt(grid);
    }
    take(gains);
  }

 private:
  size_t g() const { return static_cast<size_t>(group_); }

  // wanted_ = t·B and target_ = t, fp32, in the block's solve order.
  void find_target() {
    std::vector<double> residual(static_cast<size_t>(n_));
    std::vector<double> solution(wanted_.size());
    const std::vector<int64_t>& order = block_.factor.order;
    std::vector<int64_t> position(static_cast<size_t>(n_));
    for (int64_t a = 0; a < n_; ++a) position[static_cast<size_t>(order[at(n_ - 1 - a)])] = a;
    for (int64_t r = 0; r < pack_.n_rows(); ++r) {
      const RowQuadratic& row = pack_.row(r);
      std::copy_n(row.wanted.begin() + begin_, n_, residual.begin());
      for (int64_t h = 0; h < row.n_groups; ++h) {
        if (h == group_) continue;
        solver_kernels().add_scaled(-static_cast<double>(row.scales[at(h)]),
                                    row.parts.data() + h * row.n + begin_, residual.data(), n_);
      }
      for (int64_t i = 0; i < n_; ++i) {
        wanted_[at(i * kLanes + r)] = residual[at(i)];
        solution[at(position[at(i)] * kLanes + r)] = residual[at(i)];
      }
    }
    std::vector<double> panel(static_cast<size_t>(n_ * kQuadraticPanel));
    solve_packs(block_.factor, solution.data(), 1, panel);
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t r = 0; r < kSolverRows; ++r) {
        const int64_t lane = std::min(r, pack_.n_rows() - 1);
        target_[at(i * kSolverRows + r)] =
            static_cast<float>(solution[at((n_ - 1 - i) * kLanes + lane)]);
      }
    }
  }

  // What the rows have now.
  void start() {
    for (int64_t r = 0; r < pack_.n_rows(); ++r) {
      const RowQuadratic& row = pack_.row(r);
      for (int64_t i = 0; i < n_; ++i) steps_[at(i * kLanes + r)] = row.steps[at(begin_ + i)];
    }
    const Lanes curvature = steps_squared();
    const Lanes slope = steps_wanted();
    for (int64_t r = 0; r < pack_.n_rows(); ++r) {
      const auto s = static_cast<double>(pack_.row(r).scales[g()]);
      first_[at(r)] = best_[at(r)] = s * (s * curvature[at(r)] - 2.0 * slope[at(r)]);
    }
  }

  // Objective of a scale s: s²·c·B·c^T − 2 s·t·B·c^T.
  Lanes steps_squared() const {
    Lanes sums{};
    double products[kQuadraticPanel * kLanes];
    for (int64_t j = 0; j < n_; j += kQuadraticPanel) {
      solver_kernels().product_panel(steps_.data(), block_.panels.data() + j * n_, 0, n_, products);
      for (int64_t c = 0; c < std::min(kQuadraticPanel, n_ - j); ++c) {
        const double* own = steps_.data() + (j + c) * kLanes;
        for (int64_t r = 0; r < kLanes; ++r) sums[at(r)] += products[c * kLanes + r] * own[r];
      }
    }
    return sums;
  }
  Lanes steps_wanted() const {
    Lanes sums{};
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t r = 0; r < kLanes; ++r) {
        sums[at(r)] += wanted_[at(i * kLanes + r)] * steps_[at(i * kLanes + r)];
      }
    }
    return sums;
  }

  std::array<ScaleAndZero, kSolverRows> search() const {
    std::array<ScaleAndZero, kSolverRows> out;
    std::vector<float> weights(static_cast<size_t>(n_ * kGridRows));
    for (int64_t half = 0; half < kSolverRows / kGridRows; ++half) {
      for (int64_t i = 0; i < n_; ++i) {
        const int64_t column = block_.factor.order[at(i)];
        std::copy_n(target_.begin() + i * kSolverRows + half * kGridRows, kGridRows,
                    weights.begin() + column * kGridRows);
      }
      const GroupSearch::Choices choices = choose(weights.data(), half * kGridRows);
      std::copy(choices.begin(), choices.end(), out.begin() + half * kGridRows);
    }
    return out;
  }

  // For weights (n, 16) of the rows from first_row on.
  GroupSearch::Choices choose(const float* weights, int64_t first_row) const {
    if (options_.grid == GridKind::kFree) {
      return GroupSearch(n_, block_.panels).run(weights, options_);
    }
    LatticeSearch::Shared shared;
    for (int64_t r = 0; r < kGridRows; ++r) shared[at(r)] = shared_of(first_row + r);
    LatticeSearch search(n_, block_.panels);
    search.load(weights, options_);
    return search.choose(shared);
  }

  const SharedScale& shared_of(int64_t r) const {
    return pack_.row(std::min(r, pack_.n_rows() - 1)).shared[g()];
  }

  // Codes for this grid, the scale that fits them; `grid` takes the new scales.
  void attempt(std::array<ScaleAndZero, kSolverRows>& grid) {
    run_column_loop(grid);
    const Lanes curvature = steps_squared();
    const Lanes slope = steps_wanted();
    for (int64_t r = 0; r < pack_.n_rows(); ++r) {
      ScaleAndZero& own = grid[at(r)];
      const auto old = static_cast<double>(own.scale);
      const double fitted = slope[at(r)] / curvature[at(r)];
      if (fitted > 0.3 * old && fitted < 3.0 * old) {
        own.scale = nearest_scale(fitted, own.zero, shared_of(r), options_);
      }
      const auto s = static_cast<double>(own.scale);
      const double objective = s * (s * curvature[at(r)] - 2.0 * slope[at(r)]);
      if (!(objective < best_[at(r)])) continue;
      best_[at(r)] = objective;
      choice_[at(r)] = own;
      for (int64_t i = 0; i < n_; ++i) {
        best_steps_[at(i * kLanes + r)] = steps_[at(i * kLanes + r)];
      }
    }
  }

  void run_column_loop(const std::array<ScaleAndZero, kSolverRows>& grid) {
    std::vector<float> weights = target_;
    std::vector<float> errors(target_.size());
    std::vector<uint8_t> codes(target_.size());
    const std::vector<int64_t> groups(static_cast<size_t>(n_), 0);
    std::array<float, kSolverRows> scales;
    std::array<float, kSolverRows> zeros;
    std::array<float, kSolverRows> clipped{};
    for (size_t r = 0; r < kSolverRows; ++r) {
      // A candidate may have no scale; its codes are never taken.
      const bool useful = std::isfinite(grid[r].scale) && grid[r].scale > 0.0f;
      scales[r] = useful ? grid[r].scale : 1.0f;
      zeros[r] = grid[r].zero;
    }
    const ColumnLoop loop{.n = n_,
                          .weights = weights.data(),
                          .originals = target_.data(),
                          .scales = scales.data(),
                          .zeros = zeros.data(),
                          .groups = groups.data(),
                          .ratios = block_.factor.ratios.data(),
                          .errors = errors.data(),
                          .codes = codes.data(),
                          .clipped = clipped.data(),
                          .largest_code = static_cast<float>((1 << options_.bits) - 1)};
    const int64_t size = std::max<int64_t>(1, options_.solve_block_size);
    for (int64_t i0 = 0; i0 < n_; i0 += size) {
      const int64_t i1 = std::min(n_, i0 + size);
      solver_kernels().solve_block(loop, i0, i1);
      solver_kernels().apply_block(loop, i0, i1, i1);
    }
    for (int64_t i = 0; i < n_; ++i) {
      const int64_t column = block_.factor.order[at(i)];
      for (int64_t r = 0; r < pack_.n_rows(); ++r) {
        steps_[at(column * kLanes + r)] =
            static_cast<double>(codes[at(i * kSolverRows + r)]) - static_cast<double>(zeros[at(r)]);
      }
    }
  }

  // Rows with something better take it.
  void take(double* gains) {
    bool any = false;
    for (int64_t r = 0; r < pack_.n_rows(); ++r) {
      if (!(best_[at(r)] < first_[at(r)])) continue;
      any = true;
      gains[r] += first_[at(r)] - best_[at(r)];
      RowQuadratic& row = pack_.row(r);
      row.scales[g()] = choice_[at(r)].scale;
      row.zeros[g()] = choice_[at(r)].zero;
      for (int64_t i = 0; i < n_; ++i) {
        row.steps[at(begin_ + i)] = best_steps_[at(i * kLanes + r)];
      }
    }
    if (any) pack_.make_parts(group_, [&](int64_t r) { return best_[at(r)] < first_[at(r)]; });
  }

  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  RowQuadraticPack& pack_;
  const GroupBlock& block_;
  const QuantizeOptions& options_;
  int64_t group_;
  int64_t begin_;
  int64_t n_;
  std::vector<double> wanted_;      // (n, 24) t·B, columns of the group ascending
  std::vector<double> steps_;       // (n, 24) of the attempt
  std::vector<double> best_steps_;  // (n, 24)
  std::vector<float> target_;       // (n, 32) t, solve order
  Lanes first_{}, best_{};
  std::array<ScaleAndZero, kLanes> choice_{};
};

}  // namespace

std::vector<GroupBlock> group_blocks(const LayerProblem& problem, const QuantizeOptions& options) {
  const int64_t n = problem.in_features;
  const int64_t group_size = columns_per_group(n, options);
  QuantizeOptions undamped = options;  // the damping is in the blocks already
  undamped.damp_percent = 0.0;
  undamped.damp_retries.clear();
  undamped.act_order = ActOrder::kStatic;
  undamped.target_alpha = 1.0;  // keep the factor in full
  std::vector<GroupBlock> blocks;
  for (int64_t begin = 0; begin < n; begin += group_size) {
    Hessian block;
    block.n = std::min(group_size, n - begin);
    block.n_tokens = problem.hessian->n_tokens;
    for (int64_t i = begin; i < begin + block.n; ++i) {
      for (int64_t j = begin; j < begin + block.n; ++j) {
        const double h = problem.hessian->values[static_cast<size_t>(i * n + j)];
        block.values.push_back(i == j ? h + problem.factor->damping[static_cast<size_t>(i)] : h);
      }
    }
    GroupBlock& out = blocks.emplace_back();
    out.panels = block_panels(block.values.data(), block.n, 0, block.n, nullptr);
    out.factor = factor_hessian(block, undamped, problem.module);
  }
  return blocks;
}

uint64_t group_blocks_bytes(int64_t columns, int64_t group_size) {
  return static_cast<uint64_t>(columns) * static_cast<uint64_t>(group_size + 8) *
         (2 * sizeof(double) + sizeof(float));
}

void regrid_groups(RowQuadraticPack& pack, const std::vector<GroupBlock>& blocks,
                   const QuantizeOptions& options, double* gains) {
  for (int64_t g = 0; g < pack.row(0).n_groups; ++g) {
    GroupTask(pack, blocks[static_cast<size_t>(g)], options, g).run(gains);
  }
}

uint64_t regrid_peak_bytes(int64_t group_size) {
  const auto n = static_cast<uint64_t>(group_size);
  const uint64_t packs = n * (4 * kLanes + kQuadraticPanel) * sizeof(double);
  return packs + n * kSolverRows * (3 * sizeof(float) + 1) + n * kGridRows * sizeof(float) +
         GroupSearch::bytes(group_size);
}

}  // namespace assay
