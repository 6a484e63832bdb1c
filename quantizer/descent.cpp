#include "quantizer/descent.h"

#include <algorithm>

#include "quantizer/solver_kernels.h"

namespace assay {
namespace {

// Rounds to nearest even; |x| < 2^51.
double round_even(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

}  // namespace

int64_t descend_codes(RowQuadratic& row, int bits, std::span<double> residual) {
  row.residual(residual);
  const auto last = static_cast<double>((1 << bits) - 1);
  int64_t n_moved = 0;
  for (int64_t g = 0; g < row.n_groups; ++g) {
    const auto scale = static_cast<double>(row.scales[static_cast<size_t>(g)]);
    const double lowest = -row.zeros[static_cast<size_t>(g)];
    const double highest = last - row.zeros[static_cast<size_t>(g)];
    for (int64_t j = row.begin_of(g); j < row.end_of(g); ++j) {
      const double old = row.steps[static_cast<size_t>(j)];
      const double wanted = old + residual[static_cast<size_t>(j)] / (scale * row.curvature(j));
      const double step = round_even(std::clamp(wanted, lowest, highest));
      if (step == old) continue;
      row.move(j, step - old);
      // What lies before column j is not read again in this pass.
      solver_kernels().add_scaled(-scale * (step - old), row.hessian + j * row.n + j + 1,
                                  residual.data() + j + 1, row.n - j - 1);
      ++n_moved;
    }
  }
  return n_moved;
}

}  // namespace assay
