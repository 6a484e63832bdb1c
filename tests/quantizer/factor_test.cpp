#include "quantizer/factor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "tests/calibrate/every_isa.h"
#include "tests/quantizer/problems.h"
#include "tests/quantizer/reference.h"
#include "tests/support/bits_equal.h"

namespace assay {
namespace {

using test::bits_equal;
using test::make_problem;
using test::SmallProblem;
using test::with_every_isa;

void expect_equals_reference(const Hessian& hessian, const QuantizeOptions& options) {
  const test::ReferenceFactor expected = test::reference_factor(hessian, options);
  ASSERT_FALSE(expected.failed);

  const HessianFactor actual = factor_hessian(hessian, options, "m");

  EXPECT_EQ(actual.order, expected.order);
  EXPECT_TRUE(bits_equal(actual.ratios, expected.ratios));
  EXPECT_TRUE(bits_equal(actual.pivots, expected.pivots));
  EXPECT_EQ(actual.lambda, expected.lambda);
}

class FactorSizes : public testing::TestWithParam<int64_t> {};

TEST_P(FactorSizes, EqualsPlainLoopsBitForBit) {
  const SmallProblem problem = make_problem(1, GetParam(), 2 * GetParam(), 5);
  with_every_isa([&] {
    for (const ActOrder order : {ActOrder::kNone, ActOrder::kStatic}) {
      for (const DampBasis basis : {DampBasis::kMeanDiagonal, DampBasis::kMaxDiagonal}) {
        expect_equals_reference(problem.hessian, {.damp_basis = basis, .act_order = order});
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Awkward, FactorSizes,
                         testing::Values(1, 2, 7, 8, 9, 63, 64, 65, 67, 130, 200, 257));

TEST(Factor, DoesNotDependOnThreads) {
  const SmallProblem problem = make_problem(1, 300, 500, 6);
  const int threads_before = n_threads();
  for (const int threads : {1, 2, 4}) {
    set_n_threads(threads);
    expect_equals_reference(problem.hessian, {});
  }
  set_n_threads(threads_before);
}

TEST(Factor, RTimesItsTransposeIsTheDampedHessian) {
  const SmallProblem problem = make_problem(1, 20, 64, 8);

  const HessianFactor factor = factor_hessian(problem.hessian, {}, "m");

  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t j = i; j < 20; ++j) {
      double sum = 0.0;
      for (int64_t k = j; k < 20; ++k) {
        const auto r = [&](int64_t row) {
          const double pivot = factor.pivots[static_cast<size_t>(k)];
          return row == k
                     ? pivot
                     : pivot *
                           static_cast<double>(factor.ratios[static_cast<size_t>(row * 20 + k)]);
        };
        sum += r(i) * r(j);
      }
      const double h = problem.hessian.values[static_cast<size_t>(
          factor.order[static_cast<size_t>(i)] * 20 + factor.order[static_cast<size_t>(j)])];
      const double expected = i == j ? h + factor.lambda : h;
      EXPECT_NEAR(sum, expected, 1e-5 * factor.pivots[0] * factor.pivots[0]);
    }
  }
}

// Two tokens for 16 columns: rank 2.
TEST(Factor, Case_B30_TooFewTokensFailWithoutDampingAndPassWithIt) {
  const SmallProblem problem = make_problem(1, 16, 2, 9);

  EXPECT_THROW(factor_hessian(problem.hessian, {.damp_percent = 0.0}, "layers.3.q_proj"),
               NumericError);
  const HessianFactor factor = factor_hessian(problem.hessian, {.damp_percent = 0.01}, "m");

  EXPECT_EQ(factor.damp_percent, 0.01);
}

TEST(Factor, Case_B30_RetriesOnlyAsTheOptionsSayAndReportsTheDampingUsed) {
  const SmallProblem problem = make_problem(1, 16, 2, 9);
  const QuantizeOptions options{.damp_percent = 0.0, .damp_retries = {0.0, 0.05, 0.1}};

  const HessianFactor factor = factor_hessian(problem.hessian, options, "m");

  EXPECT_EQ(factor.damp_percent, 0.05);
}

TEST(Factor, Case_B30_FailureNamesModuleAndEveryDampingTried) {
  const SmallProblem problem = make_problem(1, 16, 2, 9);
  const QuantizeOptions options{.damp_percent = 0.0, .damp_retries = {1e-30}};
  try {
    factor_hessian(problem.hessian, options, "layers.3.q_proj");
    FAIL() << "expected NumericError";
  } catch (const NumericError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("layers.3.q_proj"));
    EXPECT_THAT(error.what(), testing::HasSubstr("0.0, 1e-30"));
  }
}

TEST(Factor, Case_B33_DeadColumnsAreCountedAndStayFinite) {
  const SmallProblem problem = make_problem(1, 24, 60, 10, {3, 4, 20});
  expect_equals_reference(problem.hessian, {});

  const HessianFactor factor = factor_hessian(problem.hessian, {}, "m");

  EXPECT_EQ(factor.n_dead, 3);
  for (const float ratio : factor.ratios) EXPECT_TRUE(std::isfinite(ratio));
}

TEST(Factor, Case_B33_AllColumnsDeadGivesTheIdentity) {
  Hessian hessian;
  hessian.n = 5;
  hessian.values.assign(25, 0.0);

  const HessianFactor factor = factor_hessian(hessian, {}, "m");

  EXPECT_EQ(factor.n_dead, 5);
  EXPECT_EQ(factor.pivots, std::vector<double>(5, 1.0));
  EXPECT_EQ(factor.ratios, std::vector<float>(25, 0.0f));
}

TEST(Factor, RefusesDiagonalsThatAreNotFiniteOrNegative) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1.0}) {
    SmallProblem problem = make_problem(1, 6, 20, 11);
    problem.hessian.values[14] = bad;

    EXPECT_THROW(factor_hessian(problem.hessian, {}, "m"), NumericError);
  }
}

TEST(Factor, StaticOrderIsByDiagonalDescendingAndStable) {
  Hessian hessian;
  hessian.n = 4;
  hessian.values = {2, 0, 0, 0, 0, 5, 0, 0, 0, 0, 2, 0, 0, 0, 0, 5};

  const HessianFactor factor = factor_hessian(hessian, {.act_order = ActOrder::kStatic}, "m");

  EXPECT_EQ(factor.order, (std::vector<int64_t>{1, 3, 0, 2}));
}

}  // namespace
}  // namespace assay
