#include "quantizer/q4_k_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "convert/core/dtype.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/formats/format.h"
#include "quantizer/factor.h"
#include "quantizer/grid.h"
#include "quantizer/quantize_linear.h"
#include "quantizer/refit.h"
#include "tests/calibrate/every_isa.h"
#include "tests/quantizer/problems.h"
#include "tests/support/bits_equal.h"

namespace assay {
namespace {

using test::bits_equal;
using test::make_problem;
using test::SmallProblem;
using test::with_every_isa;

QuantizeOptions all_steps(int64_t group_size, bool symmetric = false) {
  return {.group_size = group_size,
          .symmetric = symmetric,
          .grid = GridKind::kQ4K,
          .refit_rounds = 3,
          .descent_passes = 1,
          .regrid_rounds = 2};
}

LayerResult run(const SmallProblem& problem, const QuantizeOptions& options) {
  const HessianFactor factor = factor_hessian(problem.hessian, options, "m");
  LayerProblem view = problem.view();
  view.factor = &factor;
  return quantize_linear(view, options);
}

// What is in the way of moving the codes into Q4_K; empty if nothing is.
std::string obstacle_of(const SmallProblem& problem, const LayerResult& result,
                        int64_t group_size) {
  const auto n_together = static_cast<size_t>(256 / group_size);
  for (size_t g = 0; g < result.scales.size(); g += n_together) {
    const std::vector<int32_t> zeros(
        result.zero_points.begin() + static_cast<std::ptrdiff_t>(g),
        result.zero_points.begin() + static_cast<std::ptrdiff_t>(g + n_together));
    const auto obstacle = find_format("Q4_K")->block_obstacle(
        4, std::span(result.scales).subspan(g, n_together), zeros);
    if (obstacle) return std::string(problem.view().module) + ": " + obstacle->reason;
  }
  return {};
}

TEST(Q4KGrid, CodesMoveIntoSuperBlocksAfterAllSteps) {
  SmallProblem problem = make_problem(5, 512, 300, 61);
  for (size_t j = 0; j < 300; ++j) problem.weights[j] = 0.0f;  // a super-block and a group
  for (size_t j = 512; j < 1024; ++j) problem.weights[j] *= 1e-5f;
  for (size_t j = 1024; j < 1280; j += 7) problem.weights[j] *= 30.0f;
  for (const int64_t group_size : {32, 64, 128, 256}) {
    for (const bool symmetric : {false, true}) {
      const QuantizeOptions options = all_steps(group_size, symmetric);

      const LayerResult result = run(problem, options);

      EXPECT_EQ(obstacle_of(problem, result, group_size), "") << group_size << symmetric;
      for (const float scale : result.scales) {
        EXPECT_GT(scale, 0.0f);
        EXPECT_EQ(bf16_to_f32(f32_to_bf16(scale)), scale);
      }
      EXPECT_GT(result.steps->refit + result.steps->regrid, 0.0);
    }
  }
}

TEST(Q4KGrid, CostsLittleAgainstScalesThatAreFree) {
  const SmallProblem problem = make_problem(40, 256, 500, 62);
  QuantizeOptions options = all_steps(32);
  const double on_grid = run(problem, options).loss;
  options.grid = GridKind::kFree;

  EXPECT_LT(on_grid, 1.1 * run(problem, options).loss);
}

TEST(Q4KGrid, IsTheSameForEveryIsaAndAnyNumberOfThreads) {
  const SmallProblem problem = make_problem(50, 512, 600, 63);
  const QuantizeOptions options = all_steps(32);
  const LayerResult expected = run(problem, options);
  const int threads_before = n_threads();
  with_every_isa([&] {
    for (const int threads : {1, 4}) {
      set_n_threads(threads);
      const LayerResult actual = run(problem, options);

      EXPECT_TRUE(bits_equal(actual.codes, expected.codes));
      EXPECT_TRUE(bits_equal(actual.scales, expected.scales));
      EXPECT_TRUE(bits_equal(actual.zero_points, expected.zero_points));
    }
  });
  set_n_threads(threads_before);
}

TEST(Q4KGrid, MultiplesKeepScaleAndMinimumInSixBits) {
  for (int ratio = 1; ratio <= 15; ++ratio) {
    for (int zero = 0; zero <= 15; ++zero) {
      const Multiples multiples = multiples_of(ratio, zero);

      EXPECT_GE(multiples.last, multiples.step);
      EXPECT_EQ(multiples.last % multiples.step, 0);
      EXPECT_LE(multiples.last, 63);
      EXPECT_EQ(multiples.step * zero % ratio, 0);
      EXPECT_LE(multiples.last * zero / ratio, 63);
    }
  }
}

TEST(Q4KGrid, NearestScaleIsTheNearestMultiple) {
  const QuantizeOptions options{.grid = GridKind::kQ4K};
  const SharedScale shared{0.5f, 8};

  EXPECT_EQ(nearest_scale(10.2, 8, shared, options), 10.0f);   // any multiple of 0.5
  EXPECT_EQ(nearest_scale(10.3, 4, shared, options), 10.0f);   // of 1
  EXPECT_EQ(nearest_scale(10.3, 7, shared, options), 12.0f);   // of 4
  EXPECT_EQ(nearest_scale(100.0, 8, shared, options), 31.5f);  // at most 63
  EXPECT_EQ(nearest_scale(-3.0, 7, shared, options), 4.0f);    // never 0
}

TEST(Q4KGrid, ChoiceIsTheBestOfItsLattice) {
  const SmallProblem problem = make_problem(16, 32, 100, 64);
  const std::vector<double> panels =
      block_panels(problem.hessian.values.data(), 32, 0, 32, nullptr);
  std::vector<float> weights(32 * 16);
  for (size_t r = 0; r < 16; ++r) {
    for (size_t i = 0; i < 32; ++i) weights[i * 16 + r] = problem.weights[r * 32 + i];
  }
  const QuantizeOptions options{.group_size = 32, .grid = GridKind::kQ4K};
  LatticeSearch search(32, panels);
  search.load(weights.data(), options);
  LatticeSearch::Shared shared;
  for (size_t r = 0; r < 16; ++r) shared[r] = {search.best_scale(static_cast<int64_t>(r)) / 20, 8};

  const LatticeSearch::Choices choices = search.choose(shared);

  const auto loss = [&](size_t row, float scale, int zero) {
    std::vector<double> e;
    for (size_t i = 0; i < 32; ++i) {
      const float w = problem.weights[row * 32 + i];
      const int code = nearest_code(w, scale, static_cast<uint8_t>(zero), 4);
      e.push_back(w - scale * static_cast<float>(code - zero));
    }
    double sum = 0.0;
    for (size_t i = 0; i < 32; ++i) {
      for (size_t j = 0; j < 32; ++j) sum += e[i] * problem.hessian.values[i * 32 + j] * e[j];
    }
    return sum;
  };
  int n_best = 0;
  for (size_t r = 0; r < 16; ++r) {
    const double chosen = loss(r, choices[r].scale, choices[r].zero);
    double best = chosen;
    for (int zero = 0; zero < 16; ++zero) {
      const Multiples multiples = multiples_of(8, zero);
      for (int k = multiples.step; k <= multiples.last; k += multiples.step) {
        best = std::min(best, loss(r, shared[r].unit * static_cast<float>(k), zero));
      }
    }
    EXPECT_LE(chosen, 1.25 * best);
    n_best += chosen <= best * (1.0 + 1e-9) ? 1 : 0;
  }
  EXPECT_GE(n_best, 8);  // the search looks at 20 of some 300
}

TEST(Q4KGrid, ScalesBeyondF16AreAnError) {
  SmallProblem problem = make_problem(2, 256, 300, 65);
  problem.weights[256 + 40] = 3e30f;
  try {
    q4_k_grid(problem.view(), {.group_size = 32, .grid = GridKind::kQ4K});
    FAIL() << "expected NumericError";
  } catch (const NumericError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("test.module: row 1, group"));
    EXPECT_THAT(error.what(), testing::HasSubstr("--grid free"));
  }
}

}  // namespace
}  // namespace assay
