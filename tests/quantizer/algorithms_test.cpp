#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "quantizer/factor.h"
#include "quantizer/grid.h"
#include "quantizer/quantize_linear.h"
#include "tests/calibrate/every_isa.h"
#include "tests/quantizer/problems.h"
#include "tests/quantizer/reference.h"
#include "tests/support/bits_equal.h"

namespace assay {
namespace {

using test::bits_equal;
using test::make_problem;
using test::ReferenceFactor;
using test::ReferenceGrid;
using test::SmallProblem;
using test::with_every_isa;

LayerResult run(const SmallProblem& problem, const QuantizeOptions& options) {
  const HessianFactor factor = factor_hessian(problem.hessian, options, "m");
  LayerProblem view = problem.view();
  view.factor = &factor;
  return quantize_linear(view, options);
}

using Reference = std::vector<uint8_t> (*)(const LayerProblem& problem,
                                           const QuantizeOptions& options,
                                           const ReferenceGrid& grid);

std::vector<uint8_t> reference_gptq(const LayerProblem& problem, const QuantizeOptions& options,
                                    const ReferenceGrid& grid) {
  return test::reference_gptq(problem, options, grid,
                              test::reference_factor(*problem.hessian, options));
}

// Algorithms whose codes plain loops give, too (reference.h).
const std::map<std::string, Reference> kReferences = {{"gptq", reference_gptq},
                                                      {"rtn", test::reference_rtn}};

void expect_equals_reference(const SmallProblem& problem, const QuantizeOptions& options) {
  const LayerProblem view = problem.view();
  const ReferenceGrid grid = test::reference_grid(view, options);
  const std::vector<uint8_t> codes = kReferences.at(options.algorithm)(view, options, grid);
  QuantizeOptions plain = options;
  plain.scale_search = ScaleSearch::kMinMax;
  const ReferenceGrid plain_grid = test::reference_grid(view, plain);

  const LayerResult actual = run(problem, options);

  EXPECT_TRUE(bits_equal(actual.scales, grid.scales));
  EXPECT_EQ(std::vector<int>(actual.zero_points.begin(), actual.zero_points.end()),
            grid.zero_points);
  EXPECT_TRUE(bits_equal(actual.codes, codes));
  EXPECT_EQ(actual.loss, test::reference_loss(view, options, grid, codes));
  EXPECT_EQ(actual.rtn_loss, test::reference_loss(view, options, plain_grid,
                                                  test::reference_rtn(view, plain, plain_grid)));
}

std::vector<QuantizeOptions> every_option() {
  std::vector<QuantizeOptions> all;
  for (const Algorithm& algorithm : all_algorithms()) {
    for (const int bits : {3, 4, 8}) {
      for (const bool symmetric : {false, true}) {
        for (const ScaleSearch search : {ScaleSearch::kMinMax, ScaleSearch::kHessianGrid}) {
          QuantizeOptions options{.algorithm = std::string(algorithm.name),
                                  .bits = bits,
                                  .group_size = 16,
                                  .symmetric = symmetric,
                                  .scale_search = search};
          options.act_order = symmetric ? ActOrder::kNone : ActOrder::kStatic;
          options.scale_dtype = bits == 8 ? DType::kF16 : DType::kBF16;
          all.push_back(options);
        }
      }
    }
  }
  return all;
}

TEST(Algorithms, EqualPlainLoopsBitForBitForEveryOption) {
  const SmallProblem problem = make_problem(19, 80, 100, 21);
  with_every_isa([&] {
    for (const QuantizeOptions& options : every_option()) {
      if (!kReferences.contains(options.algorithm)) continue;
      SCOPED_TRACE(options.algorithm + " bits " + std::to_string(options.bits));
      expect_equals_reference(problem, options);
    }
  });
}

// What e·H·e^T of these codes is, in any order of additions.
double loss_of(const SmallProblem& problem, const QuantizeOptions& options,
               const LayerResult& result) {
  const auto columns = static_cast<size_t>(problem.columns);
  const size_t n_groups = result.scales.size() / static_cast<size_t>(problem.rows);
  double loss = 0.0;
  for (size_t row = 0; row < static_cast<size_t>(problem.rows); ++row) {
    std::vector<double> e;
    for (size_t j = 0; j < columns; ++j) {
      const size_t i = row * columns + j;
      const size_t g = row * n_groups + j / static_cast<size_t>(options.group_size);
      const float decoded =
          result.scales[g] * static_cast<float>(result.codes[i] - result.zero_points[g]);
      e.push_back(static_cast<double>(problem.weights[i]) - static_cast<double>(decoded));
    }
    for (size_t i = 0; i < columns; ++i) {
      for (size_t j = 0; j < columns; ++j) {
        loss += e[i] * problem.hessian.values[i * columns + j] * e[j];
      }
    }
  }
  return loss;
}

// The bound of a result is its own loss, and no algorithm is worse than all weights zero.
TEST(Algorithms, ResultsDecodeToWithinTheirOwnBound) {
  const SmallProblem problem = make_problem(7, 48, 100, 32);
  for (const QuantizeOptions& options : every_option()) {
    SCOPED_TRACE(options.algorithm + " bits " + std::to_string(options.bits));

    const LayerResult result = run(problem, options);

    const int largest_code = (1 << options.bits) - 1;
    for (const uint8_t code : result.codes) ASSERT_LE(code, largest_code);
    for (const uint8_t zero : result.zero_points) ASSERT_LE(zero, largest_code);
    for (const float scale : result.scales) {
      ASSERT_TRUE(std::isfinite(scale) && scale > 0.0f);
      ASSERT_EQ(store_scale(scale, options), scale);
    }
    EXPECT_NEAR(loss_of(problem, options, result), result.loss, 1e-9 * result.loss);
    EXPECT_LT(result.loss, result.weight_norm);
  }
}

TEST(Algorithms, TwoRunsGiveEqualBytes) {
  const SmallProblem problem = make_problem(33, 48, 100, 33);
  for (const QuantizeOptions& options : every_option()) {
    SCOPED_TRACE(options.algorithm + " bits " + std::to_string(options.bits));

    const LayerResult first = run(problem, options), second = run(problem, options);

    EXPECT_TRUE(bits_equal(first.codes, second.codes));
    EXPECT_TRUE(bits_equal(first.scales, second.scales));
    EXPECT_TRUE(bits_equal(first.zero_points, second.zero_points));
    EXPECT_EQ(first.loss, second.loss);
  }
}

class GptqShapes : public testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(GptqShapes, EqualsPlainLoopsBitForBit) {
  const auto [rows, columns, group_size] = GetParam();
  const SmallProblem problem = make_problem(rows, columns, 2 * columns, 22);
  with_every_isa([&, group_size = group_size] {
    expect_equals_reference(problem, {.group_size = group_size});
  });
}

INSTANTIATE_TEST_SUITE_P(Awkward, GptqShapes,
                         testing::Values(std::tuple{1, 1, 1}, std::tuple{1, 32, 32},
                                         std::tuple{31, 33, 11}, std::tuple{33, 64, -1},
                                         std::tuple{64, 130, 65}, std::tuple{3, 257, 128}));

TEST(Gptq, BlockSizeAndThreadsChangeSpeedOnly) {
  const SmallProblem problem = make_problem(70, 160, 200, 23);
  const LayerResult expected = run(problem, {.group_size = 32, .solve_block_size = 1});

  const int threads_before = n_threads();
  for (const int threads : {1, 4}) {
    set_n_threads(threads);
    for (const int64_t block : {1, 7, 32, 128, 160, 100000}) {
      const LayerResult actual = run(problem, {.group_size = 32, .solve_block_size = block});

      EXPECT_TRUE(bits_equal(actual.codes, expected.codes));
      EXPECT_EQ(actual.loss, expected.loss);
      EXPECT_EQ(actual.clipped_share, expected.clipped_share);
    }
  }
  set_n_threads(threads_before);
}

// The property that makes error feedback worth its time, and that a broken Hessian destroys.
TEST(Gptq, Case_B32_LossIsBelowRoundToNearest) {
  for (const uint64_t seed : {1, 2, 3}) {
    const SmallProblem problem = make_problem(40, 128, 300, seed);
    for (const bool symmetric : {false, true}) {
      const LayerResult result = run(problem, {.group_size = 32, .symmetric = symmetric});

      EXPECT_LT(result.loss, result.rtn_loss);
      EXPECT_LT(result.rtn_loss, result.weight_norm);
    }
  }
}

// Weights of columns that no token reaches are kept and rounded like any other.
TEST(Gptq, Case_B33_DeadColumnsAreRoundedToNearest) {
  const SmallProblem problem = make_problem(4, 8, 40, 25, {3});
  QuantizeOptions options{.group_size = 8};
  options.scale_search = ScaleSearch::kMinMax;
  expect_equals_reference(problem, options);

  const LayerResult result = run(problem, options);

  for (int64_t row = 0; row < 4; ++row) {
    const auto g = static_cast<size_t>(row);
    EXPECT_EQ(result.codes[static_cast<size_t>(row * 8 + 3)],
              nearest_code(problem.weights[static_cast<size_t>(row * 8 + 3)], result.scales[g],
                           result.zero_points[g], 4));
  }
}

TEST(Gptq, Case_B33_AllInputsZeroIsRoundToNearest) {
  SmallProblem problem = make_problem(5, 16, 4, 26);
  problem.hessian.values.assign(256, 0.0);
  const LayerResult gptq = run(problem, {.group_size = 8});
  const LayerResult rtn = run(problem, {.algorithm = "rtn", .group_size = 8});

  EXPECT_TRUE(bits_equal(gptq.codes, rtn.codes));
  EXPECT_EQ(gptq.loss, 0.0);
}

TEST(Algorithms, Case_B34_GroupsOfZerosGetScaleOneAndDecodeToZero) {
  SmallProblem problem = make_problem(2, 32, 60, 27);
  for (size_t j = 0; j < 16; ++j) problem.weights[j] = 0.0f;   // one group
  for (size_t j = 32; j < 64; ++j) problem.weights[j] = 0.0f;  // one row
  problem.weights[40] = 1e-30f;                                // one tiny value in a group
  for (const Algorithm& algorithm : all_algorithms()) {
    for (const bool symmetric : {false, true}) {
      const LayerResult result = run(problem, {.algorithm = std::string(algorithm.name),
                                               .group_size = 16,
                                               .symmetric = symmetric,
                                               .act_order = ActOrder::kNone});

      EXPECT_EQ(result.scales[0], 1.0f);
      EXPECT_EQ(result.scales[3], 1.0f);
      for (const size_t g : {size_t{0}, size_t{3}}) EXPECT_EQ(result.zero_points[g], 8);
      for (size_t j = 0; j < 16; ++j) EXPECT_EQ(result.codes[j], 8);
      for (const float scale : result.scales) EXPECT_TRUE(std::isfinite(scale) && scale > 0.0f);
    }
  }
}

TEST(Grid, ScalesAreValuesOfTheStoredType) {
  const SmallProblem problem = make_problem(8, 64, 100, 28);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const QuantizeOptions options{.group_size = 16, .scale_dtype = dtype};
    const Grid grid = min_max_grid(problem.view(), options);

    for (const float scale : grid.scales) EXPECT_EQ(store_scale(scale, options), scale);
  }
}

TEST(Grid, ScalesThatDoNotFitTheirTypeAreAnError) {
  SmallProblem problem = make_problem(2, 16, 40, 29);
  problem.weights[20] = 3e38f;
  try {
    min_max_grid(problem.view(), {.group_size = 16, .scale_dtype = DType::kF16});
    FAIL() << "expected NumericError";
  } catch (const NumericError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("test.module: row 1, group 0"));
  }
}

TEST(Grid, TiesKeepTheFirstCandidate) {
  SmallProblem problem = make_problem(1, 16, 40, 30);
  problem.hessian.values.assign(256, 0.0);  // every candidate has objective 0

  const Grid searched = hessian_grid(problem.view(), {.group_size = 16});

  EXPECT_EQ(searched.scales, min_max_grid(problem.view(), {.group_size = 16}).scales);
}

TEST(Algorithms, CountsCodesThatWereCutToTheGrid) {
  SmallProblem problem = make_problem(1, 16, 40, 31);
  for (size_t j = 0; j < 16; ++j) problem.weights[j] = j == 0 ? 1.0f : 0.05f;
  problem.hessian.values.assign(256, 0.0);
  for (size_t j = 1; j < 16; ++j) problem.hessian.values[j * 16 + j] = 1.0;  // column 0 is free

  const LayerResult result = run(problem, {.algorithm = "rtn", .group_size = 16});

  EXPECT_EQ(result.clipped_share, 1.0 / 16.0);
}

TEST(AlgorithmRegistry, NamesAreUniqueAndUnknownOnesListThem) {
  try {
    find_algorithm("awq");
    FAIL() << "expected UsageError";
  } catch (const UsageError& error) {
    for (const Algorithm& algorithm : all_algorithms()) {
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string(algorithm.name)));
      EXPECT_EQ(&find_algorithm(algorithm.name), &algorithm);
    }
  }
}

}  // namespace
}  // namespace assay
