#include "quantizer/panels.h"

#include <algorithm>
#include <cstring>

namespace assay {

void load_pack(std::span<const float> matrix, int64_t rows, int64_t columns, int64_t first,
               double* pack) {
  for (int64_t r = 0; r < kQuadraticLanes; ++r) {
    const bool inside = first + r < rows;
    const float* row = inside ? matrix.data() + (first + r) * columns : nullptr;
    for (int64_t i = 0; i < columns; ++i) {
      pack[i * kQuadraticLanes + r] = inside ? static_cast<double>(row[i]) : 0.0;
    }
  }
}

void load_panel(const double* matrix, int64_t n_rows, int64_t n_columns, int64_t j0,
                double* panel) {
  const int64_t n = std::min(kQuadraticPanel, n_columns - j0);
  for (int64_t i = 0; i < n_rows; ++i) {
    double* out = panel + i * kQuadraticPanel;
    std::memcpy(out, matrix + i * n_columns + j0, static_cast<size_t>(n) * sizeof(double));
    for (int64_t c = n; c < kQuadraticPanel; ++c) out[c] = 0.0;
  }
}

void solve_packs(const HessianFactor& factor, double* packs, int64_t n_packs,
                 std::vector<double>& panel) {
  const int64_t n = factor.n;
  const int64_t size = n * kQuadraticLanes;
  // z·U = m: positions ascend.
  for (int64_t q = 0; q < n; q += kQuadraticPanel) {
    const int64_t end = std::min(n, q + kQuadraticPanel);
    load_panel(factor.upper.data(), end, factor.upper_stride, q, panel.data());
    for (int64_t p = 0; p < n_packs; ++p) {
      solver_kernels().substitute_panel(packs + p * size, kQuadraticLanes, panel.data(), q,
                                        end - q);
    }
  }
  // x·U^T = z: positions descend, which is the solve order.
  for (int64_t q = 0; q < n; q += kQuadraticPanel) {
    const int64_t end = std::min(n, q + kQuadraticPanel);
    for (int64_t c = 0; c < end - q; ++c) {
      const double* row = factor.upper.data() + (n - 1 - q - c) * factor.upper_stride;
      for (int64_t p = 0; p < end; ++p) {
        panel[static_cast<size_t>(p * kQuadraticPanel + c)] = row[n - 1 - p];
      }
    }
    for (int64_t p = 0; p < n_packs; ++p) {
      solver_kernels().substitute_panel(packs + p * size + (n - 1) * kQuadraticLanes,
                                        -kQuadraticLanes, panel.data(), q, end - q);
    }
  }
}

}  // namespace assay
