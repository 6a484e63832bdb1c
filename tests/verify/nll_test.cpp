#include "verify/nll.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "convert/core/error.h"
#include "runtime/ops/nll.h"
#include "tests/verify/fake_executor.h"
#include "verify/row_statistics.h"

namespace assay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> counting(int32_t n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) ids[static_cast<size_t>(i)] = i % 37;
  return ids;
}

/// One window with the same NLL in every row.
PairedWindowScores flat_window(size_t n_rows, float a, float b, double kld) {
  PairedWindowScores scores;
  scores.a = {std::vector<float>(n_rows, a), std::vector<int32_t>(n_rows, 1),
              std::vector<float>(n_rows, 0.5f)};
  scores.b = {std::vector<float>(n_rows, b), std::vector<int32_t>(n_rows, 1),
              std::vector<float>(n_rows, 0.5f)};
  scores.kld.assign(n_rows, kld);
  return scores;
}

TEST(NllComparer, TakesNotANumberForTheLargestWindowDifference) {
  NllComparer comparer;
  comparer.add(flat_window(4, 1.0f, 1.5f, 0.0));
  comparer.add(flat_window(4, 1.0f, std::nanf(""), 0.0));
  comparer.add(flat_window(4, 1.0f, 3.0f, 0.0));

  const auto [size, window] = comparer.finish().worst_window();

  EXPECT_TRUE(std::isnan(size));
  EXPECT_EQ(window, 1);
}

TEST(CutWindows, CutsWithoutOverlapAndLeavesTheRest) {
  const EvaluationWindows windows = cut_windows(counting(200), 64, 0, std::nullopt);

  EXPECT_EQ(windows.windows.size(), 3u);
  EXPECT_EQ(windows.windows[1].front(), 64 % 37);
  EXPECT_EQ(windows.n_unused_tokens, 8);
  EXPECT_EQ(windows.n_scored(), 3 * 63);
}

TEST(CutWindows, OverwritesTheFirstIdByBos) {
  const EvaluationWindows windows = cut_windows(counting(10), 5, 0, 36);

  EXPECT_THAT(windows.windows[0], ElementsAre(36, 1, 2, 3, 4));
  EXPECT_THAT(windows.windows[1], ElementsAre(36, 6, 7, 8, 9));
}

TEST(CutWindows, TakesAShortTextAsOneShortWindow) {
  const EvaluationWindows windows = cut_windows(counting(5), 64, 0, std::nullopt);

  ASSERT_EQ(windows.windows.size(), 1u);
  EXPECT_EQ(windows.windows[0].size(), 5u);
  EXPECT_EQ(windows.n_unused_tokens, 0);
}

TEST(CutWindows, StopsAfterTheAskedNumber) {
  const EvaluationWindows windows = cut_windows(counting(200), 64, 2, std::nullopt);

  EXPECT_EQ(windows.windows.size(), 2u);
  EXPECT_EQ(windows.n_unused_tokens, 200 - 128);
}

TEST(CutWindows, Case_B79_RefusesATextOfFewerThanTwoTokens) {
  EXPECT_THROW(cut_windows(counting(1), 64, 0, std::nullopt), UsageError);
  EXPECT_THROW(cut_windows(counting(0), 64, 0, std::nullopt), UsageError);
  EXPECT_THROW(cut_windows(counting(64), 1, 0, std::nullopt), UsageError);
}

TEST(CutWindows, Case_B79_StatesWindowStrideFirstPositionCountAndBos) {
  const EvaluationWindows windows = cut_windows(counting(200), 64, 0, 36);

  const Json json = windows.to_json();

  EXPECT_EQ(json.at("window_length").as_integer(), 64);
  EXPECT_EQ(json.at("stride").as_integer(), 64);
  EXPECT_EQ(json.at("first_scored_position").as_integer(), 1);
  EXPECT_EQ(json.at("n_scored").as_integer(), 189);
  EXPECT_EQ(json.at("n_unused_tokens").as_integer(), 8);
  EXPECT_EQ(json.at("bos_id").as_integer(), 36);
  EXPECT_THAT(windows.describe(), HasSubstr("BOS 36 overwrites the first id of each window"));
}

TEST(ScoreWindow, GivesTheNllOfEachNextToken) {
  const auto executor = test::make_fake_executor();
  const std::vector<int32_t> window = counting(12);

  const WindowScores scores = score_window(*executor, window);

  ASSERT_EQ(scores.nll.size(), 11u);
  std::vector<float> logits;
  executor->reset(0);
  const BatchItem item{0, std::span(window).first(4), LogitRows::kLast};
  executor->forward({&item, 1}, logits);
  EXPECT_EQ(scores.nll[3], nll(logits, window[4]));
  EXPECT_EQ(scores.argmax[3], argmax(logits));
}

TEST(ScoreWindow, DoesNotDependOnTheSizeOfCalls) {
  const auto small = test::make_fake_executor({.max_batch_tokens = 5});
  const auto large = test::make_fake_executor();
  const std::vector<int32_t> window = counting(33);

  EXPECT_EQ(score_window(*small, window).nll, score_window(*large, window).nll);
}

TEST(KldOfRows, EqualsTheExactValue) {
  const std::vector<float> a = {0.5f, -1.25f, 3.0f, 2.0f, 0.0f};
  const std::vector<float> b = {0.4f, -1.0f, 2.5f, 2.25f, 0.125f};

  // 40-digit decimal arithmetic on the fp32 values.
  EXPECT_NEAR(kld_of_rows(a, b), 0.05899964185381351277608942, 1e-15);
}

TEST(KldOfRows, KeepsDigitsOfVerySmallDivergences) {
  const std::vector<float> a = {0.5f, -1.25f, 3.0f, 2.0f, 0.0f};
  const std::vector<float> b = {0x1.ffcb92p-2f, -0x1.40068ep+0f, 0x1.8p+1f, 0x1.000346p+1f,
                                0x1.a36e2ep-13f};

  EXPECT_NEAR(kld_of_rows(a, b), 2.819828918896315588779983e-9, 2e-15);
}

TEST(KldOfRows, IsExactlyZeroForEqualRows) {
  std::vector<float> a(1000);
  for (size_t i = 0; i < a.size(); ++i) a[i] = std::ldexp(static_cast<float>(i % 97), -4);

  EXPECT_EQ(kld_of_rows(a, a), 0.0);
}

TEST(KldOfRows, HandlesLogitsFarApart) {
  const std::vector<float> a = {2000.0f, -2000.0f}, b = {1999.0f, -2000.0f};

  EXPECT_NEAR(kld_of_rows(a, b), 0.0, 1e-12);
  EXPECT_NEAR(log_sum_exp_fp64(a), 2000.0, 1e-9);
}

TEST(Perplexity, EqualsTheReferenceFigure) {
  EXPECT_NEAR(perplexity(3.1158991498580213), 22.55370039573488, 1e-12);
}

TEST(IntervalMean, GivesStudentsInterval) {
  const std::vector<double> values = {1.0, 2.0, 3.0, 4.0};  // s = 1.29099, s/√4 = 0.645497

  const IntervalMean found = interval_mean(values);

  EXPECT_EQ(found.mean, 2.5);
  ASSERT_TRUE(found.half_width.has_value());
  EXPECT_NEAR(*found.half_width, 3.1824 * 0.6454972243679028, 1e-9);
}

TEST(IntervalMean, HasNoWidthForOneValue) {
  const std::vector<double> one = {0.25};

  EXPECT_FALSE(interval_mean(one).half_width.has_value());
}

TEST(IntervalMean, PassesSmoothlyFromTheTableToTheExpansion) {
  std::vector<double> values(32);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 2);
  // t(31, 0.975) = 2.039513; s of 16 zeros and 16 ones = 0.5080005
  EXPECT_NEAR(*interval_mean(values).half_width, 2.039513 * 0.5080005 / std::sqrt(32.0), 1e-5);
}

TEST(NllComparer, Case_B79_DeltaOfAModelWithItselfIsExactlyZero) {
  const auto executor = test::make_fake_executor();
  NllComparer comparer;
  for (int i = 0; i < 3; ++i) {
    const WindowScores scores = score_window(*executor, counting(20 + i));
    comparer.add({scores, scores, {}});
  }

  const NllComparison found = comparer.finish();

  EXPECT_EQ(found.delta, 0.0);
  EXPECT_EQ(found.n_rows_different, 0u);
  EXPECT_EQ(found.top1_agreement, 1.0);
  EXPECT_FALSE(found.kld.has_value());
}

TEST(NllComparer, DealsRowsToTheBucketsOfTheBundles) {
  NllComparer comparer;
  comparer.add(flat_window(1023, 2.0f, 2.5f, 0.125));
  comparer.add(flat_window(1023, 1.0f, 1.25f, 0.125));

  const NllComparison found = comparer.finish();

  ASSERT_EQ(found.buckets.size(), 5u);
  EXPECT_EQ(found.buckets[0].name(), "0-64");
  EXPECT_EQ(found.buckets[1].name(), "64-128");
  EXPECT_EQ(found.buckets[4].name(), "512-1024");
  EXPECT_EQ(found.buckets[0].n_scored, 128);
  EXPECT_EQ(found.buckets[4].n_scored, 2 * 511);
  EXPECT_EQ(found.buckets[4].delta, 0.375);
  EXPECT_EQ(found.buckets[4].kld, 0.125);
  EXPECT_EQ(found.delta, 0.375);
  EXPECT_EQ(found.kld, 0.125);
}

TEST(NllComparer, NamesTheWindowThatIsFarthestOff) {
  NllComparer comparer;
  comparer.add(flat_window(10, 2.0f, 2.25f, 0.0));
  comparer.add(flat_window(10, 2.0f, 1.5f, 0.0));

  const auto [size, window] = comparer.finish().worst_window();

  EXPECT_EQ(size, 0.5);
  EXPECT_EQ(window, 1);
}

TEST(NllComparer, RefusesSidesOfOtherLengths) {
  PairedWindowScores scores = flat_window(5, 1.0f, 1.0f, 0.0);
  scores.b.nll.pop_back();
  NllComparer comparer;

  EXPECT_THROW(comparer.add(scores), ShapeError);
}

}  // namespace
}  // namespace assay
