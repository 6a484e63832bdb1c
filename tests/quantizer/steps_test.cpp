#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>

#include "convert/cli/option_table.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "quantizer/commands.h"
#include "quantizer/descent.h"
#include "quantizer/factor.h"
#include "quantizer/grid.h"
#include "quantizer/quantize_linear.h"
#include "quantizer/recipe.h"
#include "quantizer/refine.h"
#include "quantizer/refit.h"
#include "quantizer/regrid.h"
#include "quantizer/solver_kernels.h"
#include "quantizer/target.h"
#include "tests/calibrate/every_isa.h"
#include "tests/quantizer/problems.h"
#include "tests/quantizer/reference.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::bits_equal;
using test::make_problem;
using test::Random;
using test::ReferenceFactor;
using test::ReferenceGrid;
using test::SmallProblem;
using test::with_every_isa;

// A problem with two streams: D is some matrix times H, so that W D (H + λI)^-1 is of the size of
// W.
struct TwoStreams {
  SmallProblem problem;
  CrossProduct drift;
  CrossProduct residual_drift;
  HessianFactor factor;

  TwoStreams(int64_t rows, int64_t columns, uint64_t seed, const QuantizeOptions& options)
      : problem(make_problem(rows, columns, 2 * columns, seed)) {
    const Random random(seed + 77);
    drift.n_rows = drift.n_columns = columns;
    for (int64_t i = 0; i < columns; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const auto k = static_cast<size_t>(i * columns + j);
        drift.values.push_back(0.05 * random.bell_at(k) * problem.hessian.values[k]);
      }
    }
    residual_drift.n_rows = rows;
    residual_drift.n_columns = columns;
    for (int64_t i = 0; i < rows * columns; ++i) {
      const double h = problem.hessian.values[static_cast<size_t>(i % (columns * columns))];
      residual_drift.values.push_back(0.002 * random.bell_at(static_cast<uint64_t>(i) + 5000) * h);
    }
    factor = factor_hessian(problem.hessian, options, "m");
  }

  LayerProblem view() const {
    LayerProblem view = problem.view();
    view.factor = &factor;
    view.drift = &drift;
    view.residual_drift = &residual_drift;
    return view;
  }
};

QuantizeOptions all_steps(int64_t group_size) {
  return {.group_size = group_size,
          .target_alpha = 0.5,
          .residual_alpha = 0.25,
          .refit_rounds = 3,
          .descent_passes = 1,
          .regrid_rounds = 2};
}

/// All steps in plain loops.
struct PlainLoops {
  std::vector<float> target;
  ReferenceGrid chosen;  // before the refit and new groups change it
  ReferenceGrid grid;
  std::vector<uint8_t> codes;

  PlainLoops(const TwoStreams& streams, const QuantizeOptions& options) {
    const ReferenceFactor factor = test::reference_factor(streams.problem.hessian, options);
    target = test::reference_target(streams.view(), options, factor);
    chosen = test::reference_grid(aim(streams), options);
    grid = chosen;
    codes = test::reference_gptq(aim(streams), options, grid, factor);
    test::reference_refine(streams.view(), options, factor, target, grid, codes);
  }

  /// The problem with the target as its weights.
  LayerProblem aim(const TwoStreams& streams) const {
    LayerProblem view = streams.view();
    view.weights = target;
    return view;
  }
};

class StepShapes : public testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(StepShapes, TargetEqualsPlainLoopsBitForBit) {
  const auto [rows, columns, group_size] = GetParam();
  const QuantizeOptions options = all_steps(group_size);
  const TwoStreams streams(rows, columns, 41, options);
  const auto expected = test::reference_target(
      streams.view(), options, test::reference_factor(streams.problem.hessian, options));

  with_every_isa(
      [&] { EXPECT_TRUE(bits_equal(two_stream_target(streams.view(), 0.5, 0.25), expected)); });
}

TEST_P(StepShapes, AllStepsEqualPlainLoopsBitForBit) {
  const auto [rows, columns, group_size] = GetParam();
  for (const bool symmetric : {false, true}) {
    QuantizeOptions options = all_steps(group_size);
    options.symmetric = symmetric;
    options.descent_passes = symmetric ? 2 : 1;
    const TwoStreams streams(rows, columns, 42, options);
    const PlainLoops expected(streams, options);

    with_every_isa([&] {
      const LayerResult actual = quantize_linear(streams.view(), options);

      EXPECT_TRUE(bits_equal(actual.scales, expected.grid.scales));
      EXPECT_TRUE(bits_equal(actual.codes, expected.codes));
      EXPECT_EQ(actual.loss,
                test::reference_loss(streams.view(), options, expected.grid, expected.codes));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Awkward, StepShapes,
                         testing::Values(std::tuple{1, 1, 1}, std::tuple{23, 33, 11},
                                         std::tuple{25, 64, -1}, std::tuple{49, 130, 65},
                                         std::tuple{3, 72, 32}));

// The lattice of Q4_K, chosen in plain loops, with all steps on it.
TEST(Q4KGridSteps, EqualPlainLoopsBitForBit) {
  for (const auto& [rows, columns, group_size, symmetric] :
       {std::tuple{5, 256, 32, false}, std::tuple{27, 256, 64, false},
        std::tuple{2, 512, 128, false}, std::tuple{3, 256, 32, true},
        std::tuple{1, 256, 256, false}}) {
    SCOPED_TRACE(testing::Message() << rows << " × " << columns << ", groups of " << group_size);
    QuantizeOptions options = all_steps(group_size);
    options.grid = GridKind::kQ4K;
    options.symmetric = symmetric;
    const TwoStreams streams(rows, columns, 47, options);
    const PlainLoops expected(streams, options);
    const Grid chosen = make_grid(expected.aim(streams), options);
    EXPECT_TRUE(bits_equal(chosen.scales, expected.chosen.scales));
    for (size_t g = 0; g < expected.chosen.lattices.size(); ++g) {
      EXPECT_EQ(chosen.zero_points[g], expected.chosen.zero_points[g]) << g;
      EXPECT_EQ(chosen.shared[g].unit, expected.chosen.lattices[g].unit) << g;
      EXPECT_EQ(chosen.shared[g].ratio, expected.chosen.lattices[g].ratio) << g;
    }

    with_every_isa([&] {
      const LayerResult actual = quantize_linear(streams.view(), options);

      EXPECT_TRUE(bits_equal(actual.scales, expected.grid.scales));
      EXPECT_TRUE(bits_equal(actual.codes, expected.codes));
    });
  }
}

// (X − X̃) = X̃·M makes W* = W + W·M the exact answer for α = 1, but for the damping.
TEST(Target, FindsTheWeightsThatMakeTheDriftGood) {
  QuantizeOptions options = all_steps(8);
  options.damp_percent = 1e-12;
  TwoStreams streams(2, 8, 43, options);
  const auto& h = streams.problem.hessian.values;
  for (size_t i = 0; i < 8; ++i) {
    for (size_t j = 0; j < 8; ++j) {  // M = 0.1 where j = i + 1: D = M^T H
      streams.drift.values[i * 8 + j] = i == 0 ? 0.0 : 0.1 * h[(i - 1) * 8 + j];
    }
  }

  LayerProblem view = streams.view();
  view.residual_drift = nullptr;
  const std::vector<float> target = two_stream_target(view, 1.0, 1.0);

  for (size_t row = 0; row < 2; ++row) {
    for (size_t j = 0; j < 8; ++j) {
      const auto w = [&](size_t k) { return streams.problem.weights[row * 8 + k]; };
      const float expected = w(j) + (j + 1 < 8 ? 0.1f * w(j + 1) : 0.0f);
      EXPECT_NEAR(target[row * 8 + j], expected, 1e-6);
    }
  }
}

TEST(Target, OfNoDriftIsTheWeights) {
  const QuantizeOptions options = all_steps(8);
  TwoStreams streams(3, 16, 44, options);
  std::fill(streams.drift.values.begin(), streams.drift.values.end(), 0.0);

  std::fill(streams.residual_drift.values.begin(), streams.residual_drift.values.end(), 0.0);

  EXPECT_TRUE(bits_equal(two_stream_target(streams.view(), 0.5, 0.5), streams.problem.weights));
}

TEST(Target, OutputDistanceIsThatOfTheDefinition) {
  const QuantizeOptions options = all_steps(8);
  const TwoStreams streams(30, 16, 45, options);
  std::vector<float> quantized = streams.problem.weights;
  for (size_t i = 0; i < quantized.size(); ++i) quantized[i] *= i % 3 == 0 ? 0.9f : 1.05f;
  double loss = 0.0;
  double expected = 0.0;
  for (size_t row = 0; row < 30; ++row) {
    for (size_t i = 0; i < 16; ++i) {
      const double e_i = streams.problem.weights[row * 16 + i] - quantized[row * 16 + i];
      for (size_t j = 0; j < 16; ++j) {
        const double e_j = streams.problem.weights[row * 16 + j] - quantized[row * 16 + j];
        loss += e_i * streams.problem.hessian.values[i * 16 + j] * e_j;
        expected +=
            2.0 * streams.problem.weights[row * 16 + i] * streams.drift.values[i * 16 + j] * e_j;
      }
    }
  }
  for (size_t i = 0; i < quantized.size(); ++i) {
    const double e = streams.problem.weights[i] - quantized[i];
    expected += 2.0 * streams.residual_drift.values[i] * e;
  }
  expected += loss;

  EXPECT_NEAR(output_distance(streams.view(), quantized, loss), expected,
              1e-6 * std::fabs(expected));
}

// Rows of a problem whose codes come from round-to-nearest: there is something to gain.
struct Rows {
  QuantizeOptions options{.group_size = 16};
  SmallProblem problem;
  HessianFactor factor;
  LayerProblem view;
  Grid grid;
  std::vector<uint8_t> codes;

  explicit Rows(uint64_t seed) : problem(make_problem(20, 64, 200, seed)) {
    factor = factor_hessian(problem.hessian, options, "m");
    view = problem.view();
    view.factor = &factor;
    grid = min_max_grid(view, options);
    codes.resize(problem.weights.size());
    for (int64_t row = 0; row < 20; ++row) {
      nearest_codes(view.weights.subspan(static_cast<size_t>(row * 64), 64), grid, row, 4,
                    std::span(codes).subspan(static_cast<size_t>(row * 64), 64));
    }
  }
};

TEST(Refit, LowersTheLossOfRowsByWhatItSays) {
  const Rows rows(46);
  RowQuadraticPack pack(rows.view, rows.grid);
  pack.load(rows.view.weights, rows.codes, 0);
  double total = 0.0;
  for (int64_t r = 0; r < 20; ++r) {
    RowQuadratic& row = pack.row(r);
    row.sum_groups();
    const double before = row.loss(row.scales);

    const double gain = refit_scales(row, rows.options);

    EXPECT_NEAR(row.loss(row.scales), before - gain, 1e-9 * before);
    EXPECT_GE(gain, 0.0);
    for (const float scale : row.scales) EXPECT_EQ(store_scale(scale, rows.options), scale);
    total += gain;
  }
  EXPECT_GT(total, 0.0);
}

TEST(Descent, NeverRaisesTheLossAndEndsWhereNoSingleCodeHelps) {
  const Rows rows(47);
  RowQuadraticPack pack(rows.view, rows.grid);
  pack.load(rows.view.weights, rows.codes, 0);
  std::vector<double> residual(64);
  for (int64_t r = 0; r < 20; ++r) {
    RowQuadratic& row = pack.row(r);
    row.sum_groups();
    double loss = row.loss(row.scales);
    int64_t n_moved = 0;
    for (int pass = 0; pass < 100; ++pass) {
      const int64_t n = descend_codes(row, 4, residual);
      row.sum_groups();
      const double now = row.loss(row.scales);
      EXPECT_LE(now, loss * (1.0 + 1e-12));
      loss = now;
      n_moved += n;
      if (n == 0) break;
    }

    EXPECT_GT(n_moved, 0);
    for (int64_t j = 0; j < 64; ++j) {
      for (const double step : {-1.0, 1.0}) {
        const double code =
            row.steps[static_cast<size_t>(j)] + row.zeros[static_cast<size_t>(j / 16)];
        if (code + step < 0.0 || code + step > 15.0) continue;
        RowQuadratic other = row;
        other.move(j, step);
        other.sum_groups();
        EXPECT_GE(other.loss(other.scales), loss * (1.0 - 1e-12));
      }
    }
  }
}

// S − S̃ = X̃·M makes W + M^T the exact answer for β = 1 where D is nothing.
TEST(Target, FindsTheWeightsThatMakeTheResidualGood) {
  QuantizeOptions options = all_steps(8);
  options.damp_percent = 1e-12;
  TwoStreams streams(3, 8, 50, options);
  std::fill(streams.drift.values.begin(), streams.drift.values.end(), 0.0);
  const auto& h = streams.problem.hessian.values;
  for (size_t row = 0; row < 3; ++row) {  // M = 0.1 at (input `row`, output `row`): E = M^T H
    for (size_t j = 0; j < 8; ++j) {
      streams.residual_drift.values[row * 8 + j] = 0.1 * h[row * 8 + j];
    }
  }

  const std::vector<float> target = two_stream_target(streams.view(), 1.0, 1.0);

  for (size_t row = 0; row < 3; ++row) {
    for (size_t j = 0; j < 8; ++j) {
      const float expected = streams.problem.weights[row * 8 + j] + (row == j ? 0.1f : 0.0f);
      EXPECT_NEAR(target[row * 8 + j], expected, 1e-6);
    }
  }
}

TEST(Regrid, LowersTheLossOfRowsByWhatItSays) {
  const Rows rows(51);
  RowQuadraticPack pack(rows.view, rows.grid);
  pack.load(rows.view.weights, rows.codes, 0);
  std::vector<double> before;
  for (int64_t r = 0; r < 20; ++r) {
    pack.row(r).sum_groups();
    before.push_back(pack.row(r).loss(pack.row(r).scales));
  }
  double gains[kQuadraticLanes] = {};

  regrid_groups(pack, group_blocks(rows.view, rows.options), rows.options, gains);

  double total = 0.0;
  for (int64_t r = 0; r < 20; ++r) {
    pack.row(r).sum_groups();
    const auto i = static_cast<size_t>(r);
    EXPECT_NEAR(pack.row(r).loss(pack.row(r).scales), before[i] - gains[r], 1e-9 * before[i]);
    EXPECT_GE(gains[r], 0.0);
    total += gains[r];
  }
  EXPECT_GT(total, 0.0);
}

TEST(Refine, LossesOfStepsAddUpToThatOfTheResult) {
  Rows rows(48);
  rows.options.refit_rounds = 3;
  rows.options.descent_passes = 1;
  rows.options.regrid_rounds = 1;

  const StepLosses steps =
      Refiner(rows.view, rows.options).run(rows.view, rows.view.weights, rows.grid, rows.codes);

  RowQuadraticPack pack(rows.view, rows.grid);
  pack.load(rows.view.weights, rows.codes, 0);
  double total = 0.0;
  for (int64_t r = 0; r < 20; ++r) {
    pack.row(r).sum_groups();
    total += pack.row(r).loss(pack.row(r).scales);
  }
  EXPECT_NEAR(steps.column_loop - steps.refit - steps.descent - steps.regrid, total,
              1e-9 * steps.column_loop);
  EXPECT_GT(steps.refit, 0.0);
  EXPECT_GT(steps.descent, 0.0);
  EXPECT_GT(steps.regrid, 0.0);
}

TEST(Refine, DoesNotDependOnThreads) {
  const QuantizeOptions options = all_steps(32);
  const TwoStreams streams(70, 96, 49, options);
  const LayerResult expected = quantize_linear(streams.view(), options);
  const int threads_before = n_threads();
  for (const int threads : {1, 4}) {
    set_n_threads(threads);
    const LayerResult actual = quantize_linear(streams.view(), options);

    EXPECT_TRUE(bits_equal(actual.codes, expected.codes));
    EXPECT_TRUE(bits_equal(actual.scales, expected.scales));
    EXPECT_EQ(actual.steps->refit, expected.steps->refit);
    EXPECT_EQ(actual.output_distance, expected.output_distance);
  }
  set_n_threads(threads_before);
}

TEST(Recipe, GivesEachRunTheStepsThatItCanHave) {
  QuantizeOptions options;
  apply_recipe(find_recipe("best"), true, options);
  EXPECT_GT(options.target_alpha, 0.0);
  EXPECT_GT(options.refit_rounds, 0);
  check_recipe_values(options, true);

  options.propagate = false;
  EXPECT_THROW(check_recipe_values(options, true), UsageError);
  apply_recipe(find_recipe("best"), true, options);
  EXPECT_EQ(options.target_alpha, 0.0);
  EXPECT_GT(options.refit_rounds, 0);
  check_recipe_values(options, true);

  options.algorithm = "rtn";
  EXPECT_THROW(check_recipe_values(options, true), UsageError);
  apply_recipe(find_recipe("best"), false, options);
  EXPECT_EQ(options.scale_search, ScaleSearch::kMinMax);
  check_recipe_values(options, false);
}

TEST(Recipe, EveryValueIsAnOptionAndAMemberOfSweepsAndReports) {
  const cli::OptionTable options(cli::quantize_command());
  for (const RecipeValue& value : recipe_values()) {
    SCOPED_TRACE(value.name);
    QuantizeOptions one, other;
    for (const Json& setting : {value.best, value.off}) {
      if (setting.is_null()) continue;
      value.access.set(one, setting);
      EXPECT_EQ(value.get(one), setting);
    }
    EXPECT_NE(options.find(value.option.name), nullptr);
    EXPECT_EQ(recipe_json(one).find(value.name) != nullptr, value.in_recipe_json);

    const Json change = Json::object().set(value.name, value.get(one));
    if (value.per_module) {
      set_module_values(change, "test", other);
      EXPECT_EQ(value.get(other), value.get(one));
    } else {
      EXPECT_THROW(set_module_values(change, "test", other), FormatError);
    }
  }
}

TEST(Recipe, ValuesOutOfTheirRangeAreRefusedByTheirOption) {
  for (const RecipeValue& value : recipe_values()) {
    QuantizeOptions options;
    if (!value.get(options).is_number()) continue;
    value.access.set(options, -1);
    try {
      check_recipe_values(options, true);
      ADD_FAILURE() << value.name << ": expected UsageError";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("--" + value.option.name + ": found -1"));
    }
  }
}

TEST(Recipe, UnknownNamesListTheKnown) {
  try {
    find_recipe("better");
    FAIL() << "expected UsageError";
  } catch (const UsageError& error) {
    for (const Recipe& recipe : all_recipes()) {
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string(recipe.name)));
    }
  }
}

}  // namespace
}  // namespace assay
