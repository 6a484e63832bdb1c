#pragma once

#include <cstdint>

namespace assay {

/// Inner loops of gradients. Every element of a result has a chain of its own (arithmetic.md §2),
/// so tiles, threads and instruction sets give the same bits.
struct GradientKernels {
  /// c_ij += Σ_k a_ik·b_kj: a chain of fma from c_ij on, k ascending.
  /// a  (rows, inner), element (i, k) at a[i·a_row + k·a_column]
  /// b  (inner, columns), rows b_row apart; c (rows, columns), rows c_row apart; fp32
  void (*multiply)(const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,
                   int64_t rows, int64_t inner, int64_t columns, float* c, int64_t c_row);
};

const GradientKernels& gradient_kernels_scalar();
const GradientKernels& gradient_kernels_avx2();
const GradientKernels& gradient_kernels_avx512();
/// Those of active_isa().
const GradientKernels& gradient_kernels();

}  // namespace assay
