#include "quantizer/refit.h"

#include <cmath>
#include <optional>

namespace assay {
namespace {

// Solves (A + εI)·x = b in place of b; false if A is not positive definite.
bool solve_normal_equations(const RowQuadratic& row, std::vector<double>& x) {
  const auto n = static_cast<size_t>(row.n_groups);
  std::vector<double> l(row.gram);
  double trace = 0.0;
  for (size_t g = 0; g < n; ++g) trace += l[g * n + g];
  const double epsilon = 1e-9 * (trace / static_cast<double>(n));
  for (size_t g = 0; g < n; ++g) {
    for (size_t h = 0; h <= g; ++h) {
      double sum = l[g * n + h];
      if (h == g) sum += epsilon;
      for (size_t k = 0; k < h; ++k) sum = std::fma(-l[g * n + k], l[h * n + k], sum);
      if (h < g) {
        l[g * n + h] = sum / l[h * n + h];
        continue;
      }
      if (!(sum > 0.0)) return false;
      l[g * n + g] = std::sqrt(sum);
    }
  }
  x = row.linear;
  for (size_t g = 0; g < n; ++g) {
    for (size_t h = 0; h < g; ++h) x[g] = std::fma(-l[g * n + h], x[h], x[g]);
    x[g] = x[g] / l[g * n + g];
  }
  for (size_t g = n; g-- > 0;) {
    for (size_t h = n; h-- > g + 1;) x[g] = std::fma(-l[h * n + g], x[h], x[g]);
    x[g] = x[g] / l[g * n + g];
  }
  return true;
}

// With scales that are multiples of something: the nearest to each one's best value in turn.
std::vector<float> descend_scales(const RowQuadratic& row, const QuantizeOptions& options) {
  constexpr int kSweeps = 3;
  const auto n = static_cast<size_t>(row.n_groups);
  std::vector<float> scales = row.scales;
  const auto gram = [&](size_t g, size_t h) {
    return h <= g ? row.gram[g * n + h] : row.gram[h * n + g];
  };
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    bool moved = false;
    for (size_t g = 0; g < n; ++g) {
      const double curvature = gram(g, g);
      if (!(curvature > 0.0)) continue;
      double slope = row.linear[g];
      for (size_t h = 0; h < n; ++h) {
        if (h != g) slope = std::fma(-gram(g, h), static_cast<double>(scales[h]), slope);
      }
      const auto zero = static_cast<uint8_t>(row.zeros[g]);
      const float nearest = nearest_scale(slope / curvature, zero, row.shared[g], options);
      moved = moved || nearest != scales[g];
      scales[g] = nearest;
    }
    if (!moved) break;
  }
  return scales;
}

// The exact solution, each scale rounded to its type.
std::optional<std::vector<float>> solve_scales(const RowQuadratic& row,
                                               const QuantizeOptions& options) {
  std::vector<double> solution;
  if (!solve_normal_equations(row, solution)) return std::nullopt;
  std::vector<float> scales = row.scales;
  for (size_t g = 0; g < scales.size(); ++g) {
    const auto old = static_cast<double>(scales[g]);
    if (!(solution[g] > 0.3 * old && solution[g] < 3.0 * old)) continue;
    scales[g] = store_scale(static_cast<float>(solution[g]), options);
  }
  return scales;
}

}  // namespace

double refit_scales(RowQuadratic& row, const QuantizeOptions& options) {
  std::optional<std::vector<float>> scales =
      options.grid == GridKind::kFree ? solve_scales(row, options) : descend_scales(row, options);
  if (!scales) return 0.0;
  const double gain = row.loss(row.scales) - row.loss(*scales);
  if (!(gain > 0.0)) return 0.0;
  row.scales = std::move(*scales);
  return gain;
}

}  // namespace assay
