#include "verify/token_hash.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/ops/nll.h"
#include "tests/verify/fake_executor.h"
#include "verify/run_model.h"

namespace assay {
namespace {

TEST(RunGreedy, TakesTheLargestLogitOfEachStep) {
  const auto executor = test::make_fake_executor();
  const std::vector<int32_t> prompt = {3, 1, 4};

  const GreedyRun run = run_greedy(*executor, prompt, 5);

  ASSERT_EQ(run.token_ids.size(), 5u);
  EXPECT_EQ(run.margins.size(), 5u);
  std::vector<int32_t> ids = prompt;
  for (const int32_t id : run.token_ids) {
    const auto fresh = test::make_fake_executor();
    EXPECT_EQ(argmax(logits_of_last_position(*fresh, ids)), id);
    ids.push_back(id);
  }
}

TEST(RunGreedy, MakesNothingWhenNothingIsAsked) {
  const auto executor = test::make_fake_executor();
  const std::vector<int32_t> prompt = {3};

  EXPECT_TRUE(run_greedy(*executor, prompt, 0).token_ids.empty());
}

TEST(GreedyRun, HashesLittleEndian64BitIds) {
  const GreedyRun run{{202, 224, 274}, {}, {}};

  EXPECT_EQ(run.sha256(), "7b743d497b07a2de2006e76925ffd427e0c947a8ef0bce52a7a78bd378f8f37c");
}

TEST(FirstDivergence, NamesStepIdsAndMarginsOfBothSides) {
  const GreedyRun a{{5, 6, 7}, {1.0f, 0.25f, 1.0f}, {}}, b{{5, 9, 7}, {1.0f, 0.5f, 1.0f}, {}};

  const auto divergence = first_divergence(a, b);

  ASSERT_TRUE(divergence.has_value());
  EXPECT_EQ(divergence->describe(), "step 1: 6 (margin 0.25) against 9 (margin 0.5)");
}

TEST(FirstDivergence, ShowsAMissingTokenOfAShorterRun) {
  const GreedyRun a{{5, 6}, {}, {}}, b{{5}, {}, {}};

  const auto divergence = first_divergence(a, b);

  ASSERT_TRUE(divergence.has_value());
  EXPECT_EQ(divergence->step, 1);
  EXPECT_EQ(divergence->b, -1);
  EXPECT_EQ(divergence->describe(), "step 1: 6 against no token");
}

TEST(FirstDivergence, FindsNothingInEqualRuns) {
  const GreedyRun a{{5, 6}, {0.5f, 0.5f}, {}}, b{{5, 6}, {0.25f, 0.25f}, {}};

  EXPECT_FALSE(first_divergence(a, b).has_value());
}

}  // namespace
}  // namespace assay
