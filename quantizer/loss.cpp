#include "quantizer/loss.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "quantizer/solver_kernels.h"

namespace assay {
namespace {

// Packs of 24 rows that one task takes, so that a panel of H is used that often once it is made.
constexpr int64_t kPacksPerTask = 4;

double loss_without_hessian(int64_t rows, int64_t columns, const ErrorRow& error_row) {
  std::vector<double> row_losses(static_cast<size_t>(rows));
  parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<double> errors(static_cast<size_t>(columns));
    for (int64_t row = begin; row < end; ++row) {
      error_row(row, errors);
      double sum = 0.0;
      for (const double e : errors) sum = std::fma(e, e, sum);
      row_losses[static_cast<size_t>(row)] = sum;
    }
  });
  double total = 0.0;
  for (const double loss : row_losses) total += loss;
  return total;
}

// Columns [j0, j0 + 8) of H as (n, 8); H is symmetric, so rows are read instead.
void copy_panel(const Hessian& hessian, int64_t j0, double* panel) {
  const int64_t n = hessian.n;
  for (int64_t c = 0; c < kQuadraticPanel; ++c) {
    const double* row = j0 + c < n ? hessian.values.data() + (j0 + c) * n : nullptr;
    for (int64_t i = 0; i < n; ++i) panel[i * kQuadraticPanel + c] = row != nullptr ? row[i] : 0.0;
  }
}

void hessian_rows(int64_t first_pack, int64_t last_pack, int64_t rows, const Hessian& hessian,
                  const ErrorRow& error_row, double* row_losses) {
  const int64_t n = hessian.n;
  const int64_t n_packs = last_pack - first_pack;
  std::vector<double> errors(static_cast<size_t>(n_packs * n * kQuadraticLanes));
  std::vector<double> row_errors(static_cast<size_t>(n));
  for (int64_t r = 0; r < n_packs * kQuadraticLanes; ++r) {
    const int64_t row = first_pack * kQuadraticLanes + r;
    if (row >= rows) break;
    error_row(row, row_errors);
    double* out = errors.data() + r / kQuadraticLanes * n * kQuadraticLanes + r % kQuadraticLanes;
    for (int64_t i = 0; i < n; ++i) out[i * kQuadraticLanes] = row_errors[static_cast<size_t>(i)];
  }
  std::vector<double> panel(static_cast<size_t>(n * kQuadraticPanel));
  std::vector<double> sums(static_cast<size_t>(n_packs * kQuadraticLanes), 0.0);
  for (int64_t j = 0; j < n; j += kQuadraticPanel) {
    copy_panel(hessian, j, panel.data());
    for (int64_t p = 0; p < n_packs; ++p) {
      solver_kernels().quadratic_panel(errors.data() + p * n * kQuadraticLanes, n, panel.data(), j,
                                       std::min(kQuadraticPanel, n - j),
                                       sums.data() + p * kQuadraticLanes);
    }
  }
  for (int64_t r = 0; r < n_packs * kQuadraticLanes; ++r) {
    const int64_t row = first_pack * kQuadraticLanes + r;
    if (row < rows) row_losses[row] = sums[static_cast<size_t>(r)];
  }
}

}  // namespace

double quadratic_loss(int64_t rows, int64_t columns, const Hessian* hessian,
                      const ErrorRow& error_row) {
  if (hessian == nullptr) return loss_without_hessian(rows, columns, error_row);
  ASSAY_CHECK(hessian->n == columns);
  std::vector<double> row_losses(static_cast<size_t>(rows));
  const int64_t n_packs = (rows + kQuadraticLanes - 1) / kQuadraticLanes;
  parallel_for(n_packs, kPacksPerTask, [&](int64_t begin, int64_t end) {
    hessian_rows(begin, end, rows, *hessian, error_row, row_losses.data());
  });
  double total = 0.0;
  for (const double loss : row_losses) total += loss;
  return total;
}

void rounding_errors(std::span<const float> weights, std::span<const uint8_t> codes,
                     const Grid& grid, int64_t row, std::span<double> errors) {
  for (int64_t group = 0; group < grid.n_groups; ++group) {
    const auto index = static_cast<size_t>(row * grid.n_groups + group);
    const float scale = grid.scales[index];
    const int zero = grid.zero_points[index];
    const auto begin = static_cast<size_t>(group * grid.group_size);
    const size_t end = std::min(weights.size(), begin + static_cast<size_t>(grid.group_size));
    for (size_t k = begin; k < end; ++k) {
      const float rounded = scale * static_cast<float>(codes[k] - zero);
      errors[k] = static_cast<double>(weights[k]) - static_cast<double>(rounded);
    }
  }
}

std::vector<float> errors_of(const LayerProblem& problem, std::vector<float> rounded) {
  for (size_t i = 0; i < rounded.size(); ++i) rounded[i] = problem.weights[i] - rounded[i];
  return rounded;
}

double loss_of_codes(const LayerProblem& problem, const Grid& grid,
                     std::span<const uint8_t> codes) {
  const auto columns = static_cast<size_t>(problem.in_features);
  return quadratic_loss(problem.out_features, problem.in_features, problem.hessian,
                        [&](int64_t row, std::span<double> errors) {
                          const size_t first = static_cast<size_t>(row) * columns;
                          rounding_errors(problem.weights.subspan(first, columns),
                                          codes.subspan(first, columns), grid, row, errors);
                        });
}

Losses measure_losses(const LayerProblem& problem, const QuantizeOptions& options, const Grid& grid,
                      std::span<const uint8_t> codes) {
  const auto columns = static_cast<size_t>(problem.in_features);
  const auto row_of = [&](int64_t row) {
    return problem.weights.subspan(static_cast<size_t>(row) * columns, columns);
  };
  const auto total = [&](const ErrorRow& error_row) {
    return quadratic_loss(problem.out_features, problem.in_features, problem.hessian, error_row);
  };
  Losses losses;
  losses.loss = loss_of_codes(problem, grid, codes);
  const Grid plain = min_max_grid(problem, options);
  losses.rtn_loss = total([&](int64_t row, std::span<double> errors) {
    std::vector<uint8_t> nearest(columns);
    nearest_codes(row_of(row), plain, row, options.bits, nearest);
    rounding_errors(row_of(row), nearest, plain, row, errors);
  });
  losses.weight_norm = total([&](int64_t row, std::span<double> errors) {
    const std::span<const float> weights = row_of(row);
    for (size_t k = 0; k < columns; ++k) errors[k] = weights[k];
  });
  if (!std::isfinite(losses.loss)) {
    throw NumericError(std::string(problem.module) +
                       ": the loss is not finite; weights or the Hessian are out of range");
  }
  return losses;
}

}  // namespace assay
