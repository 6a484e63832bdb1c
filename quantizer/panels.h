#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quantizer/solver_kernels.h"

namespace assay {

// What the blocked fp64 kernels read and write: rows of weights in packs of kQuadraticLanes,
// columns of matrices in panels of kQuadraticPanel.

/// Rows [first, first + 24) of a matrix (rows, columns) as (columns, 24); rows past the last are 0.
void load_pack(std::span<const float> matrix, int64_t rows, int64_t columns, int64_t first,
               double* pack);

/// Columns [j0, j0 + 8) of a row-major matrix (n_rows, n_columns) as (n_rows, 8), zeros past the
/// last.
void load_panel(const double* matrix, int64_t n_rows, int64_t n_columns, int64_t j0, double* panel);

}  // namespace assay
