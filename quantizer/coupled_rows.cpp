#include "quantizer/coupled_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "calibrate/gradient_kernels.h"
#include "calibrate/sensitivity.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "quantizer/factor.h"
#include "quantizer/loss.h"
#include "quantizer/panels.h"
#include "quantizer/target.h"

namespace assay {
namespace {

constexpr double kSensitivityDamp = 0.1;  // part of the mean diagonal that is added to it
// Rows of a chain that are decided at once, without knowing each other: few, for their own sake,
// and more where a linear is so large that several cores shall have work.
constexpr int64_t kFewAtOnce = 8;
constexpr int64_t kManyAtOnce = 16;
constexpr int64_t kManyChains = 9;
constexpr int64_t kCoupledPacks = 4;  // that use a panel once it is made

size_t at(int64_t i) { return static_cast<size_t>(i); }

// One chain: its rows in the order in which they are decided, and what they left.
struct Chain {
  int64_t begin = 0;  // first row
  int64_t length = 0;
  HessianFactor factor;       // of G; order and ratios within the chain
  std::vector<float> errors;  // (length, in_features) w* − ŵ of the decided rows, in that order

  int64_t row(int64_t position) const { return begin + factor.order[at(position)]; }
};

int64_t rows_at_once(const RowChains& chains) {
  return chains.n_chains < kManyChains ? kFewAtOnce : kManyAtOnce;
}

class CoupledSolver {
 public:
  CoupledSolver(const LayerProblem& aim, const QuantizeOptions& options, const RowSolver& solve)
      : aim_(aim), n_(aim.in_features), solve_(solve) {
    QuantizeOptions factoring;
    factoring.damp_percent = kSensitivityDamp;
    factoring.act_order = ActOrder::kStatic;
    const RowChains chains(aim.out_features);
    ASSAY_CHECK(static_cast<int64_t>(aim.sensitivity.size()) == chains.n_values());
    const std::string name = std::string(aim.module) + ", sensitivity of its outputs";
    for (int64_t c = 0; c < chains.n_chains; ++c) {
      Chain& chain = chains_.emplace_back();
      chain.begin = chains.begin(c);
      chain.length = chains.end(c) - chain.begin;
      Hessian g;
      g.n = chain.length;
      g.n_tokens = 1;
      const auto values =
          aim.sensitivity.subspan(at(chains.first_value(c)), at(chain.length * chain.length));
      g.values.assign(values.begin(), values.end());
      chain.factor = factor_hessian(g, factoring, name);
      chain.errors.resize(at(chain.length * n_));
      longest_ = std::max(longest_, chain.length);
    }
    at_once_ = rows_at_once(chains);
    result_.codes.resize(aim.weights.size());
    result_.grid.group_size = columns_per_group(n_, options);
    result_.grid.n_groups = groups_per_row(n_, options);
    result_.grid.scales.resize(at(aim.out_features * result_.grid.n_groups));
    result_.grid.zero_points.resize(result_.grid.scales.size());
  }

  RowResult run() {
    for (int64_t first = 0; first < longest_; first += at_once_) {
      const std::vector<float> aims = make_aims(first);
      LayerProblem rows = aim_;
      rows.out_features = static_cast<int64_t>(aims.size()) / n_;
      rows.weights = aims;
      rows.residual_drift = nullptr;
      take(first, solve_(rows));
    }
    return std::move(result_);
  }

 private:
  int64_t end_of(const Chain& chain, int64_t first) const {
    return std::max(first, std::min(chain.length, first + at_once_));
  }

  // (rows, in_features): positions [first, first + at_once_) of all chains, one after another.
  std::vector<float> make_aims(int64_t first) const {
    std::vector<float> aims;
    for (const Chain& chain : chains_) {
      for (int64_t p = first; p < end_of(chain, first); ++p) {
        const float* row = aim_.weights.data() + chain.row(p) * n_;
        aims.insert(aims.end(), row, row + n_);
      }
    }
    parallel_for(static_cast<int64_t>(chains_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const Chain& chain = chains_[at(c)];
        int64_t before = 0;
        for (int64_t other = 0; other < c; ++other) {
          before += end_of(chains_[at(other)], first) - first;
        }
        const int64_t n_rows = end_of(chain, first) - first;
        if (n_rows == 0) continue;
        gradient_kernels().multiply(chain.factor.ratios.data() + first, 1, chain.length,
                                    chain.errors.data(), n_, n_rows, first, n_,
                                    aims.data() + before * n_, n_);
      }
    });
    return aims;
  }

  void take(int64_t first, const RowResult& part) {
    const std::vector<float> rounded = rounded_weights(part.grid, part.codes, n_);
    const int64_t n_groups = part.grid.n_groups;
    Grid& grid = result_.grid;
    if (!part.grid.shared.empty()) grid.shared.resize(grid.scales.size());
    int64_t from = 0;
    for (Chain& chain : chains_) {
      for (int64_t p = first; p < end_of(chain, first); ++p, ++from) {
        const int64_t row = chain.row(p);
        std::copy_n(part.codes.begin() + from * n_, n_, result_.codes.begin() + row * n_);
        const auto copy_groups = [&](const auto& source, auto& target) {
          std::copy_n(source.begin() + from * n_groups, n_groups, target.begin() + row * n_groups);
        };
        copy_groups(part.grid.scales, grid.scales);
        copy_groups(part.grid.zero_points, grid.zero_points);
        if (!part.grid.shared.empty()) copy_groups(part.grid.shared, grid.shared);
        float* error = chain.errors.data() + p * n_;
        const float* w = aim_.weights.data() + row * n_;
        for (int64_t i = 0; i < n_; ++i) error[i] = w[i] - rounded[at(from * n_ + i)];
      }
    }
    result_.n_cut += part.n_cut;
    result_.steps += part.steps;
  }

  const LayerProblem& aim_;
  int64_t n_;
  const RowSolver& solve_;
  std::vector<Chain> chains_;
  int64_t longest_ = 0;
  int64_t at_once_ = 0;
  RowResult result_;
};

}  // namespace

RowResult solve_coupled_rows(const LayerProblem& aim, const QuantizeOptions& options,
                             const RowSolver& solve) {
  return CoupledSolver(aim, options, solve).run();
}

// With F = G·E it is Σ_i e_i·H·f_i^T.
double coupled_loss(const LayerProblem& problem, std::span<const float> errors) {
  const int64_t n = problem.in_features;
  const RowChains chains(problem.out_features);
  std::vector<float> weighted(errors.size());
  for (int64_t c = 0; c < chains.n_chains; ++c) {
    const int64_t length = chains.end(c) - chains.begin(c);
    const float* g = problem.sensitivity.data() + chains.first_value(c);
    const float* e = errors.data() + chains.begin(c) * n;
    float* out = weighted.data() + chains.begin(c) * n;
    parallel_for(length, kQuadraticLanes, [&](int64_t begin, int64_t end) {
      gradient_kernels().multiply(g + begin * length, length, 1, e, n, end - begin, length, n,
                                  out + begin * n, n);
    });
  }
  const int64_t n_packs = (problem.out_features + kQuadraticLanes - 1) / kQuadraticLanes;
  std::vector<double> row_sums(at(n_packs * kQuadraticLanes));
  parallel_for(n_packs, kCoupledPacks, [&](int64_t begin, int64_t end) {
    const int64_t size = n * kQuadraticLanes;
    std::vector<double> e(at((end - begin) * size));
    std::vector<double> f(e.size());
    for (int64_t p = begin; p < end; ++p) {
      load_pack(errors, problem.out_features, n, p * kQuadraticLanes,
                e.data() + (p - begin) * size);
      load_pack(weighted, problem.out_features, n, p * kQuadraticLanes,
                f.data() + (p - begin) * size);
    }
    std::vector<double> panel(at(n * kQuadraticPanel));
    double products[kQuadraticPanel * kQuadraticLanes];
    for (int64_t j = 0; j < n; j += kQuadraticPanel) {
      load_panel(problem.hessian->values.data(), n, n, j, panel.data());
      for (int64_t p = begin; p < end; ++p) {
        solver_kernels().product_panel(e.data() + (p - begin) * size, panel.data(), 0, n, products);
        const double* right = f.data() + (p - begin) * size + j * kQuadraticLanes;
        double* sums = row_sums.data() + p * kQuadraticLanes;
        for (int64_t i = 0; i < std::min(kQuadraticPanel, n - j) * kQuadraticLanes; ++i) {
          sums[i % kQuadraticLanes] = std::fma(products[i], right[i], sums[i % kQuadraticLanes]);
        }
      }
    }
  });
  const double loss = std::accumulate(row_sums.begin(), row_sums.end(), 0.0);
  if (problem.drift == nullptr) return loss;
  for (size_t i = 0; i < weighted.size(); ++i) weighted[i] = problem.weights[i] - weighted[i];
  return output_distance(problem, weighted, loss);
}

int64_t coupled_lanes(int64_t rows) {
  const RowChains chains(rows);
  const int64_t at_once = rows_at_once(chains);
  const int64_t n_steps = (chains.length + at_once - 1) / at_once;
  const int64_t n_packs = (chains.n_chains * at_once + kQuadraticLanes - 1) / kQuadraticLanes;
  return n_steps * n_packs * kQuadraticLanes;
}

uint64_t coupled_rows_bytes(int64_t rows, int64_t columns) {
  const auto n = static_cast<uint64_t>(RowChains(rows).n_values());
  // Errors of all rows; G, its copy in fp64 and its ratios; the work of one factorisation.
  return static_cast<uint64_t>(rows) * static_cast<uint64_t>(columns) * sizeof(float) +
         n * (2 * sizeof(float)) + factor_peak_bytes(kChainRows) +
         at(kChainRows * kChainRows) * sizeof(double);
}

}  // namespace assay
