#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quantizer/quantize.h"
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

/// x ← x·(H + λI)^-1 for packs (n_packs, n, 24) in reversed solve order, by two substitutions with
/// factor.upper: each unknown is found from those before it, in the order in which they are found.
/// `panel` (n, 8) is scratch.
void solve_packs(const HessianFactor& factor, double* packs, int64_t n_packs,
                 std::vector<double>& panel);

}  // namespace assay
