#pragma once

// The kernels of solver_kernels.h over lanes.h; included by one file per instruction set.

#include "calibrate/lanes.h"
#include "quantizer/solver_kernels.h"

namespace assay {
namespace {

inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

int64_t cholesky_diagonal(double* u, int64_t ld, int64_t k0, int64_t k1, const double* floors) {
  for (int64_t a = k0; a < k1; ++a) {
    double* row = u + a * ld;
    for (int64_t k = k0; k < a; ++k) {
      const double factor = -u[k * ld + a];
      for (int64_t b = a; b < k1; ++b) row[b] = fused(factor, u[k * ld + b], row[b]);
    }
    // Written so that NaN and infinity fail, too.
    if (!(row[a] > floors[a] && row[a] <= 0x1.fffffffffffffp+1023)) return a;
    const double pivot = __builtin_sqrt(row[a]);
    row[a] = pivot;
    for (int64_t b = a + 1; b < k1; ++b) row[b] = row[b] / pivot;
  }
  return -1;
}

void cholesky_rows(double* u, int64_t ld, int64_t k0, int64_t k1, int64_t b0, int64_t b1) {
  for (int64_t b = b0; b < b1; b += 8) {
    for (int64_t a = k0; a < k1; ++a) {
      Doubles sum = load(u + a * ld + b);
      for (int64_t k = k0; k < a; ++k) sum = fnma(all(u[k * ld + a]), load(u + k * ld + b), sum);
      store(u + a * ld + b, div(sum, all(u[a * ld + a])));
    }
  }
}

template <int kVectors>
inline void update_tile(double* u, int64_t ld, int64_t k0, int64_t k1, int64_t a0, int64_t b) {
  Doubles sums[4][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = load(u + (a0 + r) * ld + b + 8 * v);
  }
  for (int64_t k = k0; k < k1; ++k) {
    const double* row = u + k * ld;
    Doubles top[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) top[v] = load(row + b + 8 * v);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const Doubles left = all(row[a0 + r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fnma(left, top[v], sums[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(u + (a0 + r) * ld + b + 8 * v, sums[r][v]);
  }
}

void cholesky_update(double* u, int64_t ld, int64_t k0, int64_t k1, int64_t a0, int64_t b0,
                     int64_t b1) {
  int64_t b = b0;
  for (; b + 8 * kWideTile <= b1; b += 8 * kWideTile) update_tile<kWideTile>(u, ld, k0, k1, a0, b);
  for (; b < b1; b += 8) update_tile<1>(u, ld, k0, k1, a0, b);
}

template <int kColumns>
inline void quadratic_tile(const double* e, int64_t n, const double* panel, int64_t j0,
                           int64_t n_columns, double* sums) {
  Doubles products[kColumns][3];
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) products[j][0] = products[j][1] = products[j][2] = all(0.0);
  for (int64_t i = 0; i < n; ++i) {
    const double* row = e + i * kQuadraticLanes;
    const Doubles e0 = load(row);
    const Doubles e1 = load(row + 8);
    const Doubles e2 = load(row + 16);
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      const Doubles h = all(panel[i * kQuadraticPanel + j]);
      products[j][0] = fma(e0, h, products[j][0]);
      products[j][1] = fma(e1, h, products[j][1]);
      products[j][2] = fma(e2, h, products[j][2]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) {
    if (j >= n_columns) break;
    const double* row = e + (j0 + j) * kQuadraticLanes;
#pragma GCC unroll 3
    for (int v = 0; v < 3; ++v) {
      store(sums + 8 * v, fma(products[j][v], load(row + 8 * v), load(sums + 8 * v)));
    }
  }
}

void quadratic_panel(const double* e, int64_t n, const double* panel, int64_t j0, int64_t n_columns,
                     double* sums) {
  constexpr int kColumns = kWideTile == 4 ? 8 : 2;  // what the registers hold
  for (int64_t j = 0; j < n_columns; j += kColumns) {
    quadratic_tile<kColumns>(e, n, panel + j, j0 + j, n_columns - j, sums);
  }
}

template <int kColumns>
inline void product_tile(const double* x, const double* panel, int64_t i0, int64_t i1,
                         double* out) {
  Doubles sums[kColumns][3];
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) sums[j][0] = sums[j][1] = sums[j][2] = all(0.0);
  for (int64_t i = i0; i < i1; ++i) {
    const double* row = x + i * kQuadraticLanes;
    const Doubles x0 = load(row);
    const Doubles x1 = load(row + 8);
    const Doubles x2 = load(row + 16);
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      const Doubles h = all(panel[i * kQuadraticPanel + j]);
      sums[j][0] = fma(x0, h, sums[j][0]);
      sums[j][1] = fma(x1, h, sums[j][1]);
      sums[j][2] = fma(x2, h, sums[j][2]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) {
#pragma GCC unroll 3
    for (int v = 0; v < 3; ++v) store(out + j * kQuadraticLanes + 8 * v, sums[j][v]);
  }
}

void product_panel(const double* x, const double* panel, int64_t i0, int64_t i1, double* out) {
  constexpr int kColumns = kWideTile == 4 ? 8 : 2;  // what the registers hold
  for (int64_t j = 0; j < kQuadraticPanel; j += kColumns) {
    product_tile<kColumns>(x, panel + j, i0, i1, out + j * kQuadraticLanes);
  }
}

// Subtracts what positions [0, q0) bring to the columns j … j + kColumns of a panel.
template <int kColumns>
inline void substitute_tile(double* values, int64_t stride, const double* panel, int64_t q0,
                            int64_t j) {
  Doubles sums[kColumns][3];
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 3
    for (int v = 0; v < 3; ++v) sums[c][v] = load(values + (q0 + j + c) * stride + 8 * v);
  }
  for (int64_t p = 0; p < q0; ++p) {
    const double* row = values + p * stride;
    const Doubles x0 = load(row);
    const Doubles x1 = load(row + 8);
    const Doubles x2 = load(row + 16);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const Doubles u = all(panel[p * kQuadraticPanel + j + c]);
      sums[c][0] = fnma(x0, u, sums[c][0]);
      sums[c][1] = fnma(x1, u, sums[c][1]);
      sums[c][2] = fnma(x2, u, sums[c][2]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 3
    for (int v = 0; v < 3; ++v) store(values + (q0 + j + c) * stride + 8 * v, sums[c][v]);
  }
}

void substitute_panel(double* values, int64_t stride, const double* panel, int64_t q0,
                      int64_t n_columns) {
  constexpr int kColumns = kWideTile == 4 ? 8 : 2;
  int64_t j = 0;
  for (; j + kColumns <= n_columns; j += kColumns) {
    substitute_tile<kColumns>(values, stride, panel, q0, j);
  }
  for (; j < n_columns; ++j) substitute_tile<1>(values, stride, panel, q0, j);
  for (int64_t q = q0; q < q0 + n_columns; ++q) {
    for (int v = 0; v < 24; v += 8) {
      Doubles sum = load(values + q * stride + v);
      for (int64_t p = q0; p < q; ++p) {
        const Doubles u = all(panel[p * kQuadraticPanel + q - q0]);
        sum = fnma(load(values + p * stride + v), u, sum);
      }
      store(values + q * stride + v, div(sum, all(panel[q * kQuadraticPanel + q - q0])));
    }
  }
}

void add_scaled(double factor, const double* x, double* y, int64_t n) {
  const Doubles f = all(factor);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store(y + i, fma(f, load(x + i), load(y + i)));
  for (; i < n; ++i) y[i] = fused(factor, x[i], y[i]);
}

double dot(const double* x, const double* y, int64_t n) {
  Doubles sum = all(0.0);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) sum = fma(load(x + i), load(y + i), sum);
  double lanes[8];
  store(lanes, sum);
  for (int l = 0; i < n; ++i, ++l) lanes[l] = fused(x[i], y[i], lanes[l]);
  for (int m = 4; m > 0; m /= 2) {
    for (int l = 0; l < m; ++l) lanes[l] = lanes[l] + lanes[l + m];
  }
  return lanes[0];
}

// Cuts a quotient to where rounding to nearest even by adding 1.5·2^23 is exact; codes at such
// distances are clamped to the ends of the grid anyway.
inline Floats cut(Floats x) { return smaller(larger(x, all(-1024.0f)), all(1024.0f)); }
inline Floats round_even(Floats x) {
  const Floats magic = all(12582912.0f);
  return sub(add(x, magic), magic);
}

void grid_errors(const float* weights, int64_t n, const float* scales, const float* zeros,
                 float largest_code, double* low, double* high) {
  const Floats scale = load(scales);
  const Floats zero = load(zeros);
  const Floats first = sub(all(0.0f), zero);
  const Floats last = sub(all(largest_code), zero);
  for (int64_t i = 0; i < n; ++i) {
    const Floats w = load(weights + i * kGridRows);
    const Floats steps = smaller(larger(round_even(cut(div(w, scale))), first), last);
    const Floats rounded = mul(scale, steps);
    store(low + i * kQuadraticLanes, sub(low_half(w), low_half(rounded)));
    store(high + i * kQuadraticLanes, sub(high_half(w), high_half(rounded)));
  }
}

void solve_block(const ColumnLoop& loop, int64_t i0, int64_t i1) {
  for (int64_t i = i0; i < i1; ++i) {
    const int64_t group = loop.groups[i] * kSolverRows;
    Floats error[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const int64_t lane = 16 * v;
      const Floats scale = load(loop.scales + group + lane);
      const Floats zero = load(loop.zeros + group + lane);
      const Floats w = load(loop.weights + i * kSolverRows + lane);
      const Floats wanted = round_even(cut(div(w, scale)));
      const Floats steps =
          smaller(larger(wanted, sub(all(0.0f), zero)), sub(all(loop.largest_code), zero));
      error[v] = sub(load(loop.originals + i * kSolverRows + lane), mul(scale, steps));
      store(loop.errors + i * kSolverRows + lane, error[v]);
      store_bytes(loop.codes + i * kSolverRows + lane, add(steps, zero));
      // 1 where the wanted step was cut: its distance is an integer.
      const Floats distance = sub(wanted, steps);
      const Floats cut_here = smaller(larger(distance, sub(all(0.0f), distance)), all(1.0f));
      store(loop.clipped + lane, add(load(loop.clipped + lane), cut_here));
    }
    const float* ratios = loop.ratios + i * loop.n;
    for (int64_t j = i + 1; j < i1; ++j) {
      float* w = loop.weights + j * kSolverRows;
      const Floats ratio = all(ratios[j]);
      store(w, fma(error[0], ratio, load(w)));
      store(w + 16, fma(error[1], ratio, load(w + 16)));
    }
  }
}

template <int kColumns>
inline void apply_tile(const ColumnLoop& loop, int64_t i0, int64_t i1, int64_t j) {
  Floats sums[kColumns][2];
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) {
    sums[c][0] = load(loop.weights + (j + c) * kSolverRows);
    sums[c][1] = load(loop.weights + (j + c) * kSolverRows + 16);
  }
  for (int64_t i = i0; i < i1; ++i) {
    const float* ratios = loop.ratios + i * loop.n + j;
    const Floats e0 = load(loop.errors + i * kSolverRows);
    const Floats e1 = load(loop.errors + i * kSolverRows + 16);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const Floats ratio = all(ratios[c]);
      sums[c][0] = fma(e0, ratio, sums[c][0]);
      sums[c][1] = fma(e1, ratio, sums[c][1]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) {
    store(loop.weights + (j + c) * kSolverRows, sums[c][0]);
    store(loop.weights + (j + c) * kSolverRows + 16, sums[c][1]);
  }
}

void apply_block(const ColumnLoop& loop, int64_t i0, int64_t i1, int64_t j0) {
  constexpr int kColumns = kWideTile == 4 ? 8 : 2;
  int64_t j = j0;
  for (; j + kColumns <= loop.n; j += kColumns) apply_tile<kColumns>(loop, i0, i1, j);
  for (; j < loop.n; ++j) apply_tile<1>(loop, i0, i1, j);
}

constexpr SolverKernels kKernels{
    .cholesky_diagonal = cholesky_diagonal,
    .cholesky_rows = cholesky_rows,
    .cholesky_update = cholesky_update,
    .quadratic_panel = quadratic_panel,
    .product_panel = product_panel,
    .substitute_panel = substitute_panel,
    .add_scaled = add_scaled,
    .dot = dot,
    .grid_errors = grid_errors,
    .solve_block = solve_block,
    .apply_block = apply_block,
};

}  // namespace
}  // namespace assay
