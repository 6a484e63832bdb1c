#pragma once

// The kernels of gradient_kernels.h over lanes.h; included by one file per instruction set.

#include <algorithm>

#include "calibrate/gradient_kernels.h"
#include "calibrate/lanes.h"

namespace assay {
namespace {

constexpr int64_t kFloats = 16;      // of one vector
constexpr int64_t kInnerTile = 256;  // rows of b that stay in the first cache with a tile's columns
constexpr int kTileVectors = kWideTile == 4 ? 2 : 1;
constexpr int kTileRows = 6;

struct Product {
  const float* a;
  int64_t a_row, a_column;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
};

template <int kRows, int kVectors>
inline void multiply_tile(const Product& p, int64_t i, int64_t k0, int64_t k1, int64_t j) {
  Floats sums[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[r][v] = load(p.c + (i + r) * p.c_row + j + kFloats * v);
  }
  for (int64_t k = k0; k < k1; ++k) {
    Floats row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row[v] = load(p.b + k * p.b_row + j + kFloats * v);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Floats left = all(p.a[(i + r) * p.a_row + k * p.a_column]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(left, row[v], sums[r][v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store(p.c + (i + r) * p.c_row + j + kFloats * v, sums[r][v]);
  }
}

template <int kVectors>
inline void multiply_columns(const Product& p, int64_t rows, int64_t k0, int64_t k1, int64_t j) {
  int64_t i = 0;
  for (; i + kTileRows <= rows; i += kTileRows) {
    multiply_tile<kTileRows, kVectors>(p, i, k0, k1, j);
  }
  for (; i < rows; ++i) multiply_tile<1, kVectors>(p, i, k0, k1, j);
}

void multiply(const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,
              int64_t rows, int64_t inner, int64_t columns, float* c, int64_t c_row) {
  const Product p{a, a_row, a_column, b, b_row, c, c_row};
  for (int64_t k0 = 0; k0 < inner; k0 += kInnerTile) {
    const int64_t k1 = std::min(inner, k0 + kInnerTile);
    int64_t j = 0;
    for (; j + kFloats * kTileVectors <= columns; j += kFloats * kTileVectors) {
      multiply_columns<kTileVectors>(p, rows, k0, k1, j);
    }
    for (; j + kFloats <= columns; j += kFloats) multiply_columns<1>(p, rows, k0, k1, j);
    for (; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) {
        float sum = c[i * c_row + j];
        for (int64_t k = k0; k < k1; ++k) {
          sum = __builtin_fmaf(a[i * a_row + k * a_column], b[k * b_row + j], sum);
        }
        c[i * c_row + j] = sum;
      }
    }
  }
}

constexpr GradientKernels kKernels{.multiply = multiply};

}  // namespace
}  // namespace assay
