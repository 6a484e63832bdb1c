#include "quantizer/row_quadratic.h"

#include <algorithm>
#include <cmath>

#include "quantizer/panels.h"

namespace assay {
namespace {

constexpr int64_t kPanels = 4;  // read together: whole cache lines of H one after another

}  // namespace

int64_t RowQuadratic::end_of(int64_t group) const { return std::min(n, begin_of(group + 1)); }

void RowQuadratic::sum_groups() {
  for (int64_t g = 0; g < n_groups; ++g) {
    const double* part = parts.data() + g * n;
    for (int64_t h = 0; h <= g; ++h) {
      const int64_t begin = begin_of(h);
      gram[static_cast<size_t>(g * n_groups + h)] =
          solver_kernels().dot(part + begin, steps.data() + begin, end_of(h) - begin);
    }
    const int64_t begin = begin_of(g);
    linear[static_cast<size_t>(g)] =
        solver_kernels().dot(wanted.data() + begin, steps.data() + begin, end_of(g) - begin);
  }
}

double RowQuadratic::loss(std::span<const float> with_scales) const {
  double sum = weight_norm;
  for (int64_t g = 0; g < n_groups; ++g) {
    const auto s = static_cast<double>(with_scales[static_cast<size_t>(g)]);
    const double* row = gram.data() + g * n_groups;
    // s_g·(A_gg·s_g + 2 Σ_{h<g} A_gh·s_h − 2 b_g)
    double inner = -linear[static_cast<size_t>(g)];
    for (int64_t h = 0; h < g; ++h) {
      inner = std::fma(row[h], static_cast<double>(with_scales[static_cast<size_t>(h)]), inner);
    }
    inner = std::fma(row[g], s, 2.0 * inner);
    sum = std::fma(s, inner, sum);
  }
  return sum;
}

void RowQuadratic::residual(std::span<double> out) const {
  std::copy(wanted.begin(), wanted.end(), out.begin());
  for (int64_t g = 0; g < n_groups; ++g) {
    solver_kernels().add_scaled(-static_cast<double>(scales[static_cast<size_t>(g)]),
                                parts.data() + g * n, out.data(), n);
  }
}

void RowQuadratic::move(int64_t column, double step) {
  double* part = parts.data() + column / group_size * n;
  solver_kernels().add_scaled(step, hessian + column * n, part, n);
  part[column] = std::fma(step, damping[column], part[column]);
  steps[static_cast<size_t>(column)] += step;
}

RowQuadraticPack::RowQuadraticPack(const LayerProblem& problem, const Grid& grid)
    : problem_(problem), grid_(grid), rows_(kQuadraticLanes) {
  const auto n = static_cast<size_t>(problem.in_features);
  const auto n_groups = static_cast<size_t>(grid.n_groups);
  weights_.resize(n * kQuadraticLanes);
  steps_.resize(n * kQuadraticLanes);
  panel_.resize(kPanels * n * kQuadraticPanel);
  for (RowQuadratic& row : rows_) {
    row.n = problem.in_features;
    row.group_size = grid.group_size;
    row.n_groups = grid.n_groups;
    row.hessian = problem.hessian->values.data();
    row.damping = problem.factor->damping.data();
    for (auto* vector : {&row.weights, &row.wanted, &row.steps}) vector->resize(n);
    row.parts.resize(n_groups * n);
    row.scales.resize(n_groups);
    row.zeros.resize(n_groups);
    row.shared.resize(n_groups);
    row.gram.resize(n_groups * n_groups);
    row.linear.resize(n_groups);
  }
}

uint64_t RowQuadraticPack::bytes(int64_t columns, int64_t n_groups) {
  const auto n = static_cast<uint64_t>(columns);
  const auto groups = static_cast<uint64_t>(n_groups);
  const uint64_t row = n * (groups + 4) + groups * (groups + 3);
  return (kQuadraticLanes * (row + 2 * n) + kPanels * n * kQuadraticPanel) * sizeof(double);
}

void RowQuadraticPack::load(std::span<const float> target, std::span<const uint8_t> codes,
                            int64_t first_row) {
  const int64_t n = problem_.in_features;
  n_rows_ = std::min(kQuadraticLanes, problem_.out_features - first_row);
  load_pack(target, problem_.out_features, n, first_row, weights_.data());
  std::fill(steps_.begin(), steps_.end(), 0.0);
  for (int64_t r = 0; r < n_rows_; ++r) {
    RowQuadratic& row = rows_[static_cast<size_t>(r)];
    for (int64_t g = 0; g < grid_.n_groups; ++g) {
      const auto index = static_cast<size_t>((first_row + r) * grid_.n_groups + g);
      row.scales[static_cast<size_t>(g)] = grid_.scales[index];
      row.zeros[static_cast<size_t>(g)] = grid_.zero_points[index];
      if (!grid_.shared.empty()) row.shared[static_cast<size_t>(g)] = grid_.shared[index];
    }
    const uint8_t* row_codes = codes.data() + (first_row + r) * n;
    for (int64_t i = 0; i < n; ++i) {
      const double step = row_codes[i] - row.zeros[static_cast<size_t>(i / grid_.group_size)];
      steps_[static_cast<size_t>(i * kQuadraticLanes + r)] = step;
      row.steps[static_cast<size_t>(i)] = step;
      row.weights[static_cast<size_t>(i)] = weights_[static_cast<size_t>(i * kQuadraticLanes + r)];
    }
  }
  multiply();
  for (int64_t r = 0; r < n_rows_; ++r) {
    RowQuadratic& row = rows_[static_cast<size_t>(r)];
    row.weight_norm = solver_kernels().dot(row.wanted.data(), row.weights.data(), n);
  }
}

void RowQuadraticPack::load_panels(int64_t j0, int64_t begin, int64_t end) {
  const int64_t n = problem_.in_features;
  for (int64_t k = 0; k < kPanels && j0 + k * kQuadraticPanel < n; ++k) {
    load_panel(problem_.hessian->values.data() + begin * n, end - begin, n,
               j0 + k * kQuadraticPanel, panel_.data() + (k * n + begin) * kQuadraticPanel);
  }
}

void RowQuadraticPack::multiply_panels(const std::vector<double>& x, int64_t begin, int64_t end,
                                       int64_t j0, const std::function<double*(int64_t)>& out_of) {
  const int64_t n = problem_.in_features;
  double products[kQuadraticPanel * kQuadraticLanes];
  for (int64_t j = j0; j < std::min(n, j0 + kPanels * kQuadraticPanel); j += kQuadraticPanel) {
    solver_kernels().product_panel(x.data(), panel_.data() + (j - j0) * n, begin, end, products);
    for (int64_t r = 0; r < n_rows_; ++r) {
      double* out = out_of(r);
      if (out == nullptr) continue;
      for (int64_t c = j; c < std::min(n, j + kQuadraticPanel); ++c) {
        const double product = products[(c - j) * kQuadraticLanes + r];
        const bool damped = begin <= c && c < end;
        out[c] = damped ? std::fma(problem_.factor->damping[static_cast<size_t>(c)],
                                   x[static_cast<size_t>(c * kQuadraticLanes + r)], product)
                        : product;
      }
    }
  }
}

void RowQuadraticPack::multiply() {
  const int64_t n = problem_.in_features;
  for (int64_t j0 = 0; j0 < n; j0 += kPanels * kQuadraticPanel) {
    load_panels(j0, 0, n);
    multiply_panels(weights_, 0, n, j0, [&](int64_t r) { return row(r).wanted.data(); });
    for (int64_t g = 0; g < grid_.n_groups; ++g) {
      const int64_t begin = g * grid_.group_size;
      multiply_panels(steps_, begin, std::min(n, begin + grid_.group_size), j0,
                      [&](int64_t r) { return row(r).parts.data() + g * n; });
    }
  }
}

void RowQuadraticPack::make_parts(int64_t group, const std::function<bool(int64_t)>& wanted) {
  const int64_t n = problem_.in_features;
  const int64_t begin = group * grid_.group_size;
  const int64_t end = std::min(n, begin + grid_.group_size);
  for (int64_t r = 0; r < n_rows_; ++r) {
    for (int64_t i = begin; i < end; ++i) {
      steps_[static_cast<size_t>(i * kQuadraticLanes + r)] = row(r).steps[static_cast<size_t>(i)];
    }
  }
  for (int64_t j0 = 0; j0 < n; j0 += kPanels * kQuadraticPanel) {
    load_panels(j0, begin, end);
    multiply_panels(steps_, begin, end, j0, [&](int64_t r) {
      return wanted(r) ? row(r).parts.data() + group * n : nullptr;
    });
  }
}

}  // namespace assay
