#pragma once

#include <cstdint>
#include <vector>

#include "quantizer/quantize.h"

namespace assay::test {

/// Weights and the Hessian of correlated random inputs.
struct SmallProblem {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<float> weights;  // (rows, columns)
  Hessian hessian;

  LayerProblem view() const {
    return {.module = "test.module",
            .out_features = rows,
            .in_features = columns,
            .weights = weights,
            .hessian = &hessian};
  }
};

/// Depends on the arguments alone. Columns that `dead` names get no input.
SmallProblem make_problem(int64_t rows, int64_t columns, int64_t n_tokens, uint64_t seed,
                          const std::vector<int64_t>& dead = {});

/// H = X^T X in fp64, ascending tokens; x (n_tokens, n).
Hessian hessian_of(const std::vector<double>& x, int64_t n);

}  // namespace assay::test
