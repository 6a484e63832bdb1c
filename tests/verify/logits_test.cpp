#include "verify/logits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "convert/core/error.h"

namespace assay {
namespace {

std::vector<float> ramp(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = 0.25f * static_cast<float>(i) - 1.0f;
  return values;
}

TEST(CompareLogits, FindsNothingInEqualArrays) {
  const std::vector<float> values = ramp(12);

  const LogitsComparison found = compare_logits(values, values, 4);

  EXPECT_TRUE(found.equal());
  EXPECT_EQ(found.n_rows, 3);
  EXPECT_FALSE(found.first.has_value());
  EXPECT_EQ(found.max_abs_difference, 0.0);
  EXPECT_EQ(found.sha256_a, found.sha256_b);
}

TEST(CompareLogits, NamesRowIndexAndBothBitPatternsOfOneFlippedBit) {
  const std::vector<float> a = ramp(12);
  std::vector<float> b = a;
  b[6] = std::nextafter(b[6], 10.0f);  // 0.5

  const LogitsComparison found = compare_logits(a, b, 4);

  EXPECT_EQ(found.n_different, 1u);
  EXPECT_EQ(found.first_difference(),
            "row 1, index 2: 0.5 (0x3f000000) against 0.50000006 (0x3f000001)");
  EXPECT_NE(found.sha256_a, found.sha256_b);
}

TEST(CompareLogits, CountsTheSignOfZero) {
  const std::vector<float> a = {0.0f, 1.0f}, b = {-0.0f, 1.0f};

  const LogitsComparison found = compare_logits(a, b, 2);

  EXPECT_EQ(found.n_different, 1u);
  EXPECT_EQ(found.max_abs_difference, 0.0);
}

TEST(CompareLogits, TakesNotANumberOnOneSideAsInfinitelyFar) {
  const std::vector<float> a = {0.0f, 1.0f};
  const std::vector<float> b = {0.0f, std::numeric_limits<float>::quiet_NaN()};

  const LogitsComparison found = compare_logits(a, b, 2);

  EXPECT_TRUE(std::isinf(found.max_abs_difference));
  EXPECT_TRUE(found.to_json().at("max_abs_difference").is_null());
}

TEST(CompareLogits, GivesLargestAndRootMeanSquareDifference) {
  const std::vector<float> a = {0.0f, 0.0f, 0.0f, 0.0f}, b = {0.0f, 3.0f, -4.0f, 0.0f};

  const LogitsComparison found = compare_logits(a, b, 2);

  EXPECT_EQ(found.max_abs_difference, 4.0);
  EXPECT_EQ(found.rms_difference, 2.5);
  EXPECT_EQ(found.worst->row, 1);
  EXPECT_EQ(found.worst->column, 0);
  EXPECT_EQ(found.n_argmax_different, 2u);
}

TEST(CompareLogits, GivesTheSameFiguresHoweverRowsAreDealt) {
  const std::vector<float> a = ramp(40);
  std::vector<float> b = a;
  for (size_t i = 0; i < b.size(); i += 3) b[i] += 0.001f * static_cast<float>(i);

  LogitsComparer comparer(4);
  for (size_t row = 0; row < 10; ++row) {
    comparer.add(std::span(a).subspan(row * 4, 4), std::span(b).subspan(row * 4, 4));
  }
  const LogitsComparison split = comparer.finish(), whole = compare_logits(a, b, 4);

  EXPECT_EQ(split.to_json().dump(), whole.to_json().dump());
}

TEST(CompareLogits, RefusesArraysOfOtherSizes) {
  const std::vector<float> a = ramp(8), b = ramp(4), c = ramp(6);

  EXPECT_THROW(compare_logits(a, b, 4), ShapeError);
  EXPECT_THROW(compare_logits(c, c, 4), ShapeError);
}

TEST(MarginOf, TakesTheLowestIndexOfTies) {
  const std::vector<float> values = {1.0f, 5.0f, 5.0f, 4.0f};

  const Margin margin = margin_of(values);

  EXPECT_EQ(margin.best, 1);
  EXPECT_EQ(margin.runner_up, 2);
  EXPECT_EQ(margin.margin, 0.0f);
}

TEST(MarginOf, FindsTheSecondBestBeforeTheBest) {
  const std::vector<float> values = {4.5f, 1.0f, 6.0f};

  const Margin margin = margin_of(values);

  EXPECT_EQ(margin.best, 2);
  EXPECT_EQ(margin.runner_up, 0);
  EXPECT_EQ(margin.margin, 1.5f);
}

}  // namespace
}  // namespace assay
