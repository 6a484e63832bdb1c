#include "quantizer/coupled_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "calibrate/sensitivity.h"
#include "convert/core/parallel.h"
#include "quantizer/factor.h"
#include "quantizer/quantize_linear.h"
#include "tests/calibrate/every_isa.h"
#include "tests/quantizer/problems.h"
#include "tests/quantizer/reference.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::bits_equal;
using test::make_problem;
using test::ReferenceFactor;
using test::ReferenceGrid;
using test::SmallProblem;
using test::with_every_isa;

QuantizeOptions make_options(GridKind grid = GridKind::kFree) {
  return {.group_size = 32,
          .grid = grid,
          .refit_rounds = 2,
          .descent_passes = 1,
          .regrid_rounds = 1,
          .sensitivity_windows = 1};
}

// A linear with the sensitivities of its outputs: few directions, so that rows act together.
struct Coupled {
  SmallProblem problem;
  HessianFactor factor;
  std::vector<float> sensitivity;

  Coupled(int64_t rows, int64_t columns, const QuantizeOptions& options)
      : problem(make_problem(rows, columns, 2 * columns, 7)),
        factor(factor_hessian(problem.hessian, options, "m")) {
    const RowChains chains(rows);
    for (int64_t c = 0; c < chains.n_chains; ++c) {
      const int64_t length = chains.end(c) - chains.begin(c);
      const int64_t n_directions = std::max<int64_t>(1, length / 3);
      const std::vector<float> g =
          test::random_floats(static_cast<size_t>(length * n_directions), 30 + c);
      for (int64_t i = 0; i < length; ++i) {
        for (int64_t j = 0; j < length; ++j) {
          float sum = 0.0f;
          for (int64_t k = 0; k < n_directions; ++k) {
            sum += g[static_cast<size_t>(k * length + i)] * g[static_cast<size_t>(k * length + j)];
          }
          sensitivity.push_back(sum);
        }
      }
    }
  }

  LayerProblem view() const {
    LayerProblem view = problem.view();
    view.factor = &factor;
    view.sensitivity = sensitivity;
    return view;
  }
};

struct Result {
  std::vector<float> scales;
  std::vector<uint8_t> codes;
  std::vector<int> zeros;
};

// The rows of the definition, a few of each chain at a time, in plain loops.
Result plain_loops(const Coupled& coupled, const QuantizeOptions& options, int64_t at_once) {
  const LayerProblem view = coupled.view();
  const int64_t n = view.in_features;
  const int64_t n_groups = n / options.group_size;
  const auto n_values = static_cast<size_t>(view.out_features * n);
  Result out{std::vector<float>(static_cast<size_t>(view.out_features * n_groups)),
             std::vector<uint8_t>(n_values),
             std::vector<int>(static_cast<size_t>(view.out_features * n_groups))};
  const ReferenceFactor columns = test::reference_factor(coupled.problem.hessian, options);
  const RowChains chains(view.out_features);
  for (int64_t c = 0; c < chains.n_chains; ++c) {
    const int64_t length = chains.end(c) - chains.begin(c);
    Hessian g;
    g.n = length;
    const auto first = coupled.sensitivity.begin() + chains.first_value(c);
    g.values.assign(first, first + length * length);
    QuantizeOptions factoring;
    factoring.damp_percent = 0.1;
    const ReferenceFactor rows = test::reference_factor(g, factoring);
    std::vector<float> errors(static_cast<size_t>(length * n));  // by position
    for (int64_t p0 = 0; p0 < length; p0 += at_once) {
      for (int64_t p = p0; p < std::min(length, p0 + at_once); ++p) {
        const int64_t row = chains.begin(c) + rows.order[static_cast<size_t>(p)];
        std::vector<float> aim(view.weights.begin() + row * n,
                               view.weights.begin() + (row + 1) * n);
        for (int64_t k = 0; k < p0; ++k) {
          for (int64_t j = 0; j < n; ++j) {
            aim[static_cast<size_t>(j)] =
                std::fma(rows.ratios[static_cast<size_t>(k * length + p)],
                         errors[static_cast<size_t>(k * n + j)], aim[static_cast<size_t>(j)]);
          }
        }
        LayerProblem one = view;
        one.out_features = 1;
        one.weights = aim;
        ReferenceGrid grid = test::reference_grid(one, options);
        std::vector<uint8_t> codes = test::reference_gptq(one, options, grid, columns);
        test::reference_refine(one, options, columns, aim, grid, codes);
        for (int64_t j = 0; j < n; ++j) {
          const auto group = static_cast<size_t>(j / options.group_size);
          const float rounded =
              grid.scales[group] *
              static_cast<float>(codes[static_cast<size_t>(j)] - grid.zero_points[group]);
          errors[static_cast<size_t>(p * n + j)] =
              view.weights[static_cast<size_t>(row * n + j)] - rounded;
        }
        std::copy(codes.begin(), codes.end(), out.codes.begin() + row * n);
        std::copy(grid.scales.begin(), grid.scales.end(), out.scales.begin() + row * n_groups);
        std::copy(grid.zero_points.begin(), grid.zero_points.end(),
                  out.zeros.begin() + row * n_groups);
      }
    }
  }
  return out;
}

void expect_equals_plain_loops(const Coupled& coupled, const QuantizeOptions& options,
                               int64_t at_once) {
  const Result expected = plain_loops(coupled, options, at_once);
  for (const int threads : {1, 3}) {
    set_n_threads(threads);
    with_every_isa([&] {
      const LayerResult actual = quantize_linear(coupled.view(), options);
      EXPECT_TRUE(bits_equal(actual.codes, expected.codes));
      EXPECT_TRUE(bits_equal(actual.scales, expected.scales));
      EXPECT_EQ(std::vector<int>(actual.zero_points.begin(), actual.zero_points.end()),
                expected.zeros);
    });
  }
  set_n_threads(0);
}

TEST(CoupledRows, EqualPlainLoopsBitForBit) {
  const QuantizeOptions options = make_options();
  expect_equals_plain_loops(Coupled(37, 64, options), options, 8);
}

TEST(CoupledRows, SeveralChainsEqualPlainLoopsBitForBit) {
  QuantizeOptions options = make_options();
  options.refit_rounds = options.regrid_rounds = options.descent_passes = 0;
  expect_equals_plain_loops(Coupled(kChainRows + 9, 32, options), options, 8);
  expect_equals_plain_loops(Coupled(8 * kChainRows, 32, options), options, 8);
  expect_equals_plain_loops(Coupled(8 * kChainRows + 1, 32, options), options, 16);
}

TEST(CoupledRows, KeepTheLatticeOfQ4K) {
  const QuantizeOptions options = make_options(GridKind::kQ4K);
  const Coupled coupled(11, 256, options);

  const LayerResult result = quantize_linear(coupled.view(), options);

  const Result expected = plain_loops(coupled, options, 8);
  EXPECT_TRUE(bits_equal(result.scales, expected.scales));
  EXPECT_TRUE(bits_equal(result.codes, expected.codes));
}

TEST(CoupledRows, OfOutputsThatDoNotActTogetherAreIndependent) {
  const QuantizeOptions options = make_options();
  Coupled coupled(19, 64, options);
  std::fill(coupled.sensitivity.begin(), coupled.sensitivity.end(), 0.0f);
  for (size_t i = 0; i < 19; ++i) coupled.sensitivity[i * 19 + i] = 1.0f + static_cast<float>(i);
  LayerProblem independent = coupled.view();
  independent.sensitivity = {};

  const LayerResult actual = quantize_linear(coupled.view(), options);
  const LayerResult expected = quantize_linear(independent, options);

  EXPECT_TRUE(bits_equal(actual.codes, expected.codes));
  EXPECT_TRUE(bits_equal(actual.scales, expected.scales));
}

double loss_in_plain_loops(const Coupled& coupled, const std::vector<float>& e) {
  const int64_t n = coupled.problem.columns;
  const int64_t rows = coupled.problem.rows;
  double loss = 0.0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < rows; ++k) {
      const double g = coupled.sensitivity[static_cast<size_t>(i * rows + k)];
      for (int64_t a = 0; a < n; ++a) {
        for (int64_t b = 0; b < n; ++b) {
          loss += g * static_cast<double>(e[static_cast<size_t>(i * n + a)]) *
                  coupled.problem.hessian.values[static_cast<size_t>(a * n + b)] *
                  static_cast<double>(e[static_cast<size_t>(k * n + b)]);
        }
      }
    }
  }
  return loss;
}

TEST(CoupledRows, LoseLessThanIndependentOnesWhereOutputsActTogether) {
  const QuantizeOptions options = make_options();
  const Coupled coupled(50, 64, options);
  LayerProblem independent = coupled.view();
  independent.sensitivity = {};
  const auto loss_of = [&](const LayerResult& result) {
    std::vector<float> e(coupled.problem.weights);
    for (size_t i = 0; i < e.size(); ++i) {
      const size_t g = i / 32;
      e[i] -= result.scales[g] * static_cast<float>(result.codes[i] - result.zero_points[g]);
    }
    return loss_in_plain_loops(coupled, e);
  };

  const LayerResult result = quantize_linear(coupled.view(), options);

  const double loss = loss_of(result);
  EXPECT_LT(loss, 0.8 * loss_of(quantize_linear(independent, options)));
  ASSERT_TRUE(result.coupled_loss && result.rtn_coupled_loss);
  EXPECT_NEAR(*result.coupled_loss, loss, 1e-4 * loss);
  EXPECT_LT(loss, *result.rtn_coupled_loss);
}

}  // namespace
}  // namespace assay
