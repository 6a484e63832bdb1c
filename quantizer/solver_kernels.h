#pragma once

#include <cstdint>

namespace assay {

// The inner loops of the solver. Each lane is one matrix element or one row of weights with its own
// chain of operations (arithmetic.md §2), so lanes, tiles and instruction sets give the same bits.

inline constexpr int64_t kSolverRows = 32;  // rows of weights that the column loop takes at once
inline constexpr int64_t kQuadraticLanes = 24;  // vectors e of which quadratic forms are taken
inline constexpr int64_t kQuadraticPanel = 8;   // columns of H that stand side by side
inline constexpr int64_t kGridRows = 16;  // rows of weights whose grid errors are made at once

/// Codes of one layer's rows while its columns are decided, kSolverRows rows side by side.
struct ColumnLoop {
  int64_t n = 0;                     // columns
  float* weights = nullptr;          // (n, 32) current values, in solve order
  const float* originals = nullptr;  // (n, 32)
  const float* scales = nullptr;     // (n_groups, 32)
  const float* zeros = nullptr;      // (n_groups, 32)
  const int64_t* groups = nullptr;   // (n) group of each solve position
  const float* ratios = nullptr;     // (n, n) T
  float* errors = nullptr;           // (n, 32) d = original − quantized
  uint8_t* codes = nullptr;          // (n, 32)
  float* clipped = nullptr;          // (32) counts codes that were cut to [0, largest_code]
  float largest_code = 0.0f;
};

struct SolverKernels {
  /// Factors the square [k0, k1) of the upper triangle u (row stride ld): U^T U = M, k ascending.
  /// floors (k1): smallest pivot² that counts as positive. Returns the first row whose pivot² is
  /// not above its floor, or −1.
  int64_t (*cholesky_diagonal)(double* u, int64_t ld, int64_t k0, int64_t k1, const double* floors);
  /// Finishes rows [k0, k1) in columns [b0, b1), b0 and b1 multiples of 8 (within ld).
  void (*cholesky_rows)(double* u, int64_t ld, int64_t k0, int64_t k1, int64_t b0, int64_t b1);
  /// Subtracts the part of rows [k0, k1) from rows [a0, a0 + 4) in columns [b0, b1).
  void (*cholesky_update)(double* u, int64_t ld, int64_t k0, int64_t k1, int64_t a0, int64_t b0,
                          int64_t b1);
  /// For 24 vectors e (n, 24) and the columns [j0, j0 + n_columns) of a symmetric H, given as
  /// panel (n, 8): sums += Σ_j (Σ_i e_i·H_ij)·e_j, both chains ascending.
  void (*quadratic_panel)(const double* e, int64_t n, const double* panel, int64_t j0,
                          int64_t n_columns, double* sums);
  /// For 24 vectors x (n, 24) and a panel (n, 8) of eight columns of a matrix: out (8, 24) = the
  /// chains Σ_i x_i·panel_i over rows [i0, i1), ascending from +0.
  void (*product_panel)(const double* x, const double* panel, int64_t i0, int64_t i1, double* out);
  /// Substitution in 24 vectors at once: for positions q in [q0, q0 + n_columns), n_columns ≤ 8,
  /// v_q = (v_q − Σ_{p<q} v_p·panel_p[q − q0]) / panel_q[q − q0], p ascending. Position p of the
  /// vectors stands at values + p·stride, panel is (q0 + n_columns, 8).
  void (*substitute_panel)(double* values, int64_t stride, const double* panel, int64_t q0,
                           int64_t n_columns);
  /// y_i = fma(factor, x_i, y_i) for i in [0, n).
  void (*add_scaled)(double factor, const double* x, double* y, int64_t n);
  /// Σ x_i·y_i in eight chains, element i in chain i mod 8, folded with distance 4, 2, 1.
  double (*dot)(const double* x, const double* y, int64_t n);
  /// e = w − ŵ of 16 rows (n, 16) rounded to one grid per row (scales, zeros: 16). Column i of rows
  /// 0–7 goes to low[i · kQuadraticLanes …], of rows 8–15 to high[…].
  void (*grid_errors)(const float* weights, int64_t n, const float* scales, const float* zeros,
                      float largest_code, double* low, double* high);
  /// Decides columns [i0, i1) in order and applies their errors within the block.
  void (*solve_block)(const ColumnLoop& loop, int64_t i0, int64_t i1);
  /// Applies the errors of columns [i0, i1) to the columns [j0, n).
  void (*apply_block)(const ColumnLoop& loop, int64_t i0, int64_t i1, int64_t j0);
};

const SolverKernels& solver_kernels_scalar();
const SolverKernels& solver_kernels_avx2();
const SolverKernels& solver_kernels_avx512();
/// Those of active_isa().
const SolverKernels& solver_kernels();

}  // namespace assay
