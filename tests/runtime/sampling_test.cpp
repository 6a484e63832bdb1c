#include "runtime/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "convert/core/error.h"
#include "tests/support/random.h"

namespace assay {
namespace {

/// Ids that 4,000 positions draw.
std::map<int32_t, int> draw(const std::vector<float>& logits, const SamplingOptions& options) {
  std::map<int32_t, int> counts;
  for (int64_t position = 0; position < 4000; ++position) {
    ++counts[sample(logits, options, position)];
  }
  return counts;
}

std::set<int32_t> ids(const std::map<int32_t, int>& counts) {
  std::set<int32_t> result;
  for (const auto& [id, count] : counts) result.insert(id);
  return result;
}

// Known answers of the authors' library (Random123, kat_vectors).
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(
      philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}),
      (std::array<uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(
      philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
      (std::array<uint32_t, 4>{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Sampling, TemperatureZeroIsGreedyAndTheLowestIdWinsATie) {
  EXPECT_EQ(sample(std::vector<float>{1.0f, 5.0f, 5.0f, 2.0f}, {}, 0), 1);
}

TEST(Sampling, FrequenciesFollowTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f};

  const auto counts = draw(logits, {.temperature = 2.0f, .seed = 9});

  double total = 0.0;
  for (const float l : logits) total += std::exp(l / 2.0);
  for (const auto& [id, count] : counts) {
    const double p = std::exp(logits[static_cast<size_t>(id)] / 2.0) / total;
    EXPECT_NEAR(count / 4000.0, p, 4.0 * std::sqrt(p * (1 - p) / 4000.0)) << id;
  }
}

TEST(Sampling, DependsOnSeedAndPositionAlone) {
  const std::vector<float> logits = test::Random(1).reals(1000, 2.0f);
  const SamplingOptions options = {.temperature = 1.0f, .seed = 5};

  const int32_t first = sample(logits, options, 17);
  const auto counts = draw(logits, options);

  EXPECT_EQ(sample(logits, options, 17), first);
  EXPECT_GT(counts.size(), 500u);
  int different = 0;
  for (int64_t position = 0; position < 100; ++position) {
    different += sample(logits, options, position) !=
                 sample(logits, {.temperature = 1.0f, .seed = 6}, position);
  }
  EXPECT_GT(different, 90);
}

TEST(Sampling, TopKKeepsTheLargestAndTiesGoToTheLowestId) {
  const std::vector<float> logits = {1.0f, 3.0f, 1.0f, 2.0f, 1.0f};

  EXPECT_EQ(ids(draw(logits, {.temperature = 5.0f, .top_k = 1})), (std::set<int32_t>{1}));
  EXPECT_EQ(ids(draw(logits, {.temperature = 5.0f, .top_k = 3})), (std::set<int32_t>{0, 1, 3}));
  EXPECT_EQ(ids(draw(logits, {.temperature = 5.0f, .top_k = 9})).size(), 5u);
}

TEST(Sampling, TopPKeepsTheShortestHeadThatReachesIt) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const float ln2 = 0.693147182f;
  const std::vector<float> logits = {0.0f, -2.0f * ln2, -ln2, -2.0f * ln2};

  EXPECT_EQ(ids(draw(logits, {.temperature = 1.0f, .top_p = 0.01f})), (std::set<int32_t>{0}));
  EXPECT_EQ(ids(draw(logits, {.temperature = 1.0f, .top_p = 0.6f})), (std::set<int32_t>{0, 2}));
  EXPECT_EQ(ids(draw(logits, {.temperature = 1.0f, .top_p = 0.8f})), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(ids(draw(logits, {.temperature = 1.0f, .top_p = 1.0f})).size(), 4u);
}

TEST(Sampling, MinPKeepsThoseCloseToTheBest) {
  const std::vector<float> logits = {0.0f, -1.0f, -2.0f, -3.0f};  // weights 1, 0.37, 0.14, 0.05

  EXPECT_EQ(ids(draw(logits, {.temperature = 1.0f, .min_p = 0.3f})), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(ids(draw(logits, {.temperature = 1.0f, .min_p = 1.0f})), (std::set<int32_t>{0}));
}

TEST(Sampling, RefusesOptionsOutsideTheirRange) {
  EXPECT_NO_THROW(check_sampling_options({}));
  EXPECT_THROW(check_sampling_options({.temperature = -1.0f}), UsageError);
  EXPECT_THROW(check_sampling_options({.temperature = NAN}), UsageError);
  EXPECT_THROW(check_sampling_options({.top_k = -1}), UsageError);
  EXPECT_THROW(check_sampling_options({.top_p = 0.0f}), UsageError);
  EXPECT_THROW(check_sampling_options({.min_p = 1.5f}), UsageError);
}

}  // namespace
}  // namespace assay
