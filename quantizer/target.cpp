#include "quantizer/target.h"

#include <algorithm>
#include <cmath>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "quantizer/panels.h"

namespace assay {
namespace {

constexpr int64_t kPacksPerTask = 4;  // that use a panel once it is made

// A few packs of rows: first W, then α·W D + β·E in reversed solve order, then that times
// (H + λI)^-1.
class TargetTask {
 public:
  TargetTask(const LayerProblem& problem, int64_t first_pack, int64_t n_packs)
      : problem_(problem),
        n_(problem.in_features),
        first_pack_(first_pack),
        n_packs_(n_packs),
        values_(static_cast<size_t>(n_packs * n_ * kQuadraticLanes)),
        panel_(static_cast<size_t>(n_ * kQuadraticPanel)) {}

  void run(double alpha, double residual_alpha, std::span<float> out) {
    multiply_by_drift(alpha);
    if (problem_.residual_drift != nullptr) add_residual(residual_alpha);
    solve_packs(*problem_.factor, values_.data(), n_packs_, panel_);
    write(out);
  }

 private:
  double* pack(int64_t p) { return values_.data() + p * n_ * kQuadraticLanes; }
  // Column `order[n − 1 − a]` stands at position a of the reversed solve order.
  int64_t column(int64_t a) const {
    return problem_.factor->order[static_cast<size_t>(n_ - 1 - a)];
  }

  void multiply_by_drift(double alpha) {
    std::vector<double> weights(values_.size());
    for (int64_t p = 0; p < n_packs_; ++p) {
      load_pack(problem_.weights, problem_.out_features, n_, (first_pack_ + p) * kQuadraticLanes,
                weights.data() + p * n_ * kQuadraticLanes);
    }
    std::vector<int64_t> position(static_cast<size_t>(n_));
    for (int64_t a = 0; a < n_; ++a) position[static_cast<size_t>(column(a))] = a;
    double products[kQuadraticPanel * kQuadraticLanes];
    for (int64_t j = 0; j < n_; j += kQuadraticPanel) {
      load_panel(problem_.drift->values.data(), n_, n_, j, panel_.data());
      for (int64_t p = 0; p < n_packs_; ++p) {
        solver_kernels().product_panel(weights.data() + p * n_ * kQuadraticLanes, panel_.data(), 0,
                                       n_, products);
        for (int64_t c = 0; c < std::min(kQuadraticPanel, n_ - j); ++c) {
          double* out = pack(p) + position[static_cast<size_t>(j + c)] * kQuadraticLanes;
          for (int64_t r = 0; r < kQuadraticLanes; ++r) {
            out[r] = alpha * products[c * kQuadraticLanes + r];
          }
        }
      }
    }
  }

  void add_residual(double alpha) {
    for (int64_t r = 0; r < n_packs_ * kQuadraticLanes; ++r) {
      const int64_t row = first_pack_ * kQuadraticLanes + r;
      if (row >= problem_.out_features) break;
      const double* e = problem_.residual_drift->values.data() + row * n_;
      double* x = pack(r / kQuadraticLanes) + r % kQuadraticLanes;
      for (int64_t a = 0; a < n_; ++a) {
        x[a * kQuadraticLanes] = std::fma(alpha, e[column(a)], x[a * kQuadraticLanes]);
      }
    }
  }

  void write(std::span<float> out) {
    for (int64_t r = 0; r < n_packs_ * kQuadraticLanes; ++r) {
      const int64_t row = first_pack_ * kQuadraticLanes + r;
      if (row >= problem_.out_features) break;
      const double* x = pack(r / kQuadraticLanes) + r % kQuadraticLanes;
      for (int64_t a = 0; a < n_; ++a) {
        const auto i = static_cast<size_t>(row * n_ + column(a));
        out[i] =
            static_cast<float>(static_cast<double>(problem_.weights[i]) + x[a * kQuadraticLanes]);
      }
    }
  }

  const LayerProblem& problem_;
  int64_t n_;
  int64_t first_pack_;
  int64_t n_packs_;
  std::vector<double> values_;  // (n_packs, n, 24)
  std::vector<double> panel_;   // (n, 8)
};

// products (8, 24) += E of 24 rows and the columns [j0, j0 + 8).
void add_residual(const CrossProduct& drift, int64_t first_row, int64_t j0, double* products) {
  const int64_t n_rows = std::min(kQuadraticLanes, drift.n_rows - first_row);
  const int64_t n_columns = std::min(kQuadraticPanel, drift.n_columns - j0);
  for (int64_t r = 0; r < n_rows; ++r) {
    const double* e = drift.values.data() + (first_row + r) * drift.n_columns + j0;
    for (int64_t c = 0; c < n_columns; ++c) products[c * kQuadraticLanes + r] += e[c];
  }
}

}  // namespace

std::vector<float> two_stream_target(const LayerProblem& problem, double alpha,
                                     double residual_alpha) {
  ASSAY_CHECK(problem.drift != nullptr && problem.factor != nullptr);
  ASSAY_CHECK(!problem.factor->upper.empty());
  std::vector<float> target(problem.weights.size());
  const int64_t n_packs = (problem.out_features + kQuadraticLanes - 1) / kQuadraticLanes;
  parallel_for(n_packs, kPacksPerTask, [&](int64_t begin, int64_t end) {
    TargetTask(problem, begin, end - begin).run(alpha, residual_alpha, target);
  });
  return target;
}

double output_distance(const LayerProblem& problem, std::span<const float> quantized, double loss) {
  ASSAY_CHECK(problem.drift != nullptr);
  const int64_t n = problem.in_features;
  const int64_t n_packs = (problem.out_features + kQuadraticLanes - 1) / kQuadraticLanes;
  std::vector<double> row_sums(static_cast<size_t>(n_packs * kQuadraticLanes));
  parallel_for(n_packs, kPacksPerTask, [&](int64_t begin, int64_t end) {
    const auto size = static_cast<size_t>(n * kQuadraticLanes);
    std::vector<double> weights(static_cast<size_t>(end - begin) * size);
    std::vector<double> errors(weights.size());
    std::vector<double> panel(static_cast<size_t>(n * kQuadraticPanel));
    for (int64_t p = 0; p < end - begin; ++p) {
      double* w = weights.data() + static_cast<size_t>(p) * size;
      double* e = errors.data() + static_cast<size_t>(p) * size;
      load_pack(problem.weights, problem.out_features, n, (begin + p) * kQuadraticLanes, w);
      load_pack(quantized, problem.out_features, n, (begin + p) * kQuadraticLanes, e);
      for (size_t i = 0; i < size; ++i) e[i] = w[i] - e[i];
    }
    double products[kQuadraticPanel * kQuadraticLanes];
    for (int64_t j = 0; j < n; j += kQuadraticPanel) {
      load_panel(problem.drift->values.data(), n, n, j, panel.data());
      for (int64_t p = 0; p < end - begin; ++p) {
        const double* w = weights.data() + static_cast<size_t>(p) * size;
        const double* e = errors.data() + static_cast<size_t>(p) * size;
        solver_kernels().product_panel(w, panel.data(), 0, n, products);
        if (problem.residual_drift != nullptr) {
          add_residual(*problem.residual_drift, (begin + p) * kQuadraticLanes, j, products);
        }
        double* sums = row_sums.data() + (begin + p) * kQuadraticLanes;
        for (int64_t c = 0; c < std::min(kQuadraticPanel, n - j); ++c) {
          for (int64_t r = 0; r < kQuadraticLanes; ++r) {
            sums[r] = std::fma(products[c * kQuadraticLanes + r], e[(j + c) * kQuadraticLanes + r],
                               sums[r]);
          }
        }
      }
    }
  });
  double total = 0.0;
  for (const double sum : row_sums) total += sum;
  return std::fma(2.0, total, loss);
}

uint64_t target_peak_bytes(int64_t columns) {
  return static_cast<uint64_t>(columns) * (2 * kPacksPerTask * kQuadraticLanes + kQuadraticPanel) *
         sizeof(double);
}

}  // namespace assay
