#pragma once

#include <cstdint>
#include <vector>

namespace assay {

/// H = X^T X of one linear's inputs, fp64 from exact integer sums (arithmetic.md §9), without
/// factor 2/n.
struct Hessian {
  int64_t n = 0;
  std::vector<double> values;  // (n, n) row-major, symmetric
  int64_t n_tokens = 0;
};

/// X^T Y of two streams that walk the same tokens, fp64 from exact integer sums.
struct CrossProduct {
  int64_t n_rows = 0;
  int64_t n_columns = 0;
  std::vector<double> values;  // (n_rows, n_columns) row-major
};

}  // namespace assay
