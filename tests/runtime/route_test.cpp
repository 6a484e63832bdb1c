#include "runtime/ops/route.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

#include "convert/core/isa.h"
#include "runtime/math.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

struct Routes {
  std::vector<float> ids, weights;
};

Routes routes_of(const std::vector<float>& logits, int top_k, bool normalize = true,
                 const float* scales = nullptr) {
  Routes routes{std::vector<float>(static_cast<size_t>(top_k)),
                std::vector<float>(static_cast<size_t>(top_k))};
  const RouteOptions options{static_cast<int>(logits.size()), top_k, normalize};
  EXPECT_EQ(route(logits.data(), options, scales, routes.ids.data(), routes.weights.data()), -1);
  return routes;
}

TEST(Route, ChoosesTheLargestAndNamesThemInAscendingOrder) {
  const Routes routes = routes_of({0.0f, 3.0f, -1.0f, 2.0f, 1.0f}, 3);

  EXPECT_EQ(routes.ids, (std::vector<float>{1, 3, 4}));
  EXPECT_GT(routes.weights[0], routes.weights[1]);
  EXPECT_GT(routes.weights[1], routes.weights[2]);
}

TEST(Route, TiesGoToTheLowestId) {
  EXPECT_EQ(routes_of({1.0f, 2.0f, 2.0f, 2.0f}, 2).ids, (std::vector<float>{1, 2}));
  EXPECT_EQ(routes_of(std::vector<float>(9, -4.0f), 4).ids, (std::vector<float>{0, 1, 2, 3}));
}

TEST(Route, WeightsAreTheSoftmaxAndSumToOneWhereNormalized) {
  const std::vector<float> logits = {0.5f, -0.25f, 2.0f, 0.0f};
  const float all =
      (exp_canonical(-1.5f) + exp_canonical(0.0f)) + (exp_canonical(-2.25f) + exp_canonical(-2.0f));

  const Routes plain = routes_of(logits, 2, false);
  const Routes normalized = routes_of(logits, 2, true);

  EXPECT_FLOAT_EQ(plain.weights[0], exp_canonical(-1.5f) / all);
  EXPECT_FLOAT_EQ(plain.weights[1], exp_canonical(0.0f) / all);
  EXPECT_FLOAT_EQ(normalized.weights[0] + normalized.weights[1], 1.0f);
  EXPECT_FLOAT_EQ(normalized.weights[0] / normalized.weights[1],
                  plain.weights[0] / plain.weights[1]);
}

TEST(Route, ScalesMultiplyTheWeightsOfTheirExperts) {
  const std::vector<float> logits = {0.5f, -0.25f, 2.0f, 0.0f};
  const std::array<float, 4> scales = {3.0f, 5.0f, 0.5f, 7.0f};
  const Routes plain = routes_of(logits, 2);

  const Routes scaled = routes_of(logits, 2, true, scales.data());

  EXPECT_EQ(scaled.weights[0], plain.weights[0] * 3.0f);
  EXPECT_EQ(scaled.weights[1], plain.weights[1] * 0.5f);
}

TEST(Route, OneExpertOfOneGetsEverything) {
  const Routes routes = routes_of({-1e9f}, 1);

  EXPECT_EQ(routes.ids, (std::vector<float>{0}));
  EXPECT_EQ(routes.weights, (std::vector<float>{1}));
}

TEST(Route, NamesALogitThatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> logits = {0.0f, bad, 1.0f};
    float ids[1], weights[1];

    EXPECT_EQ(route(logits.data(), {3, 1, true}, nullptr, ids, weights), 1);
  }
}

TEST(Route, GivesTheSameBitsOnEveryInstructionSet) {
  test::Random random(3);
  std::vector<float> logits(129);
  for (float& logit : logits) logit = 4.0f * random.bell();
  force_isa(Isa::kScalar);
  const Routes expected = routes_of(logits, 8);
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    force_isa(isa);
    const Routes actual = routes_of(logits, 8);
    EXPECT_EQ(actual.ids, expected.ids);
    EXPECT_TRUE(test::bits_equal(actual.weights, expected.weights));
  }
  force_isa(best_isa());
}

TEST(WeightedSum, AddsInTheOrderOfTheSlotsWithEachProductRounded) {
  const float big = 1e8f;
  const std::vector<float> weights = {1.0f, 1.0f, 1.0f};
  const std::vector<float> x = {big, 1.0f, 1.0f, 2.0f, -big, 4.0f};  // (3, 2)
  float out[2];

  weighted_sum(weights.data(), x.data(), 3, 2, out);

  EXPECT_EQ(out[0], (big + 1.0f) - big);
  EXPECT_EQ(out[1], 7.0f);
}

}  // namespace
}  // namespace assay
