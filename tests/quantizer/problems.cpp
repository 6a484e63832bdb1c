#include "tests/quantizer/problems.h"

#include <cmath>

#include "tests/support/random.h"

namespace assay::test {

Hessian hessian_of(const std::vector<double>& x, int64_t n) {
  Hessian hessian;
  hessian.n = n;
  hessian.n_tokens = static_cast<int64_t>(x.size()) / n;
  hessian.values.assign(static_cast<size_t>(n * n), 0.0);
  for (int64_t t = 0; t < hessian.n_tokens; ++t) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        hessian.values[static_cast<size_t>(i * n + j)] +=
            x[static_cast<size_t>(t * n + i)] * x[static_cast<size_t>(t * n + j)];
      }
    }
  }
  return hessian;
}

SmallProblem make_problem(int64_t rows, int64_t columns, int64_t n_tokens, uint64_t seed,
                          const std::vector<int64_t>& dead) {
  SmallProblem problem;
  problem.rows = rows;
  problem.columns = columns;
  const Random random(seed);
  for (int64_t i = 0; i < rows * columns; ++i) {
    problem.weights.push_back(0.05f * random.bell_at(static_cast<uint64_t>(i)));
  }
  const Random inputs(seed + 1000);
  std::vector<double> x;
  for (int64_t t = 0; t < n_tokens; ++t) {
    const double common = inputs.bell_at(static_cast<uint64_t>(t * (columns + 1)));
    for (int64_t j = 0; j < columns; ++j) {
      const double own = inputs.bell_at(static_cast<uint64_t>(t * (columns + 1) + j + 1));
      x.push_back((own + common) * (1.0 + static_cast<double>(j % 9)));
    }
  }
  for (const int64_t j : dead) {
    for (int64_t t = 0; t < n_tokens; ++t) x[static_cast<size_t>(t * columns + j)] = 0.0;
  }
  problem.hessian = hessian_of(x, columns);
  return problem;
}

}  // namespace assay::test
