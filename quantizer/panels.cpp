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

}  // namespace assay
