#include "verify/locate.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/verify/fake_executor.h"

namespace assay {
namespace {

const std::vector<int32_t> kPrompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};

Location locate(const test::FakeFaults& faults, int64_t max_batch_tokens = 512) {
  const auto good = test::make_fake_executor({.max_batch_tokens = max_batch_tokens});
  const auto bad = test::make_fake_executor({.max_batch_tokens = max_batch_tokens}, faults);
  return locate_first_difference(*good, *bad, kPrompt);
}

TEST(LocateFirstDifference, NamesOpLayerModulePositionAndIndex) {
  const Location found = locate({.op = "layers.1.mlp.up_proj", .position = 4, .index = 5});

  ASSERT_TRUE(found.difference.has_value()) << found.reason;
  const OpDifference& difference = *found.difference;
  EXPECT_EQ(difference.op, "layers.1.mlp.up_proj");
  EXPECT_EQ(difference.kind, "linear");
  EXPECT_EQ(difference.layer, 1);
  EXPECT_EQ(difference.module, "model.layers.1.mlp.up_proj");
  EXPECT_EQ(difference.value, "up");
  EXPECT_EQ(difference.position, 4);
  EXPECT_EQ(difference.index, 5);
  EXPECT_EQ(difference.n_different, 1u);
  EXPECT_NE(difference.a, difference.b);
}

TEST(LocateFirstDifference, FindsThePositionInALaterCall) {
  const Location found = locate({.op = "layers.0.mlp.residual", .position = 7, .index = 2}, 3);

  ASSERT_TRUE(found.difference.has_value()) << found.reason;
  EXPECT_EQ(found.difference->position, 7);
  EXPECT_EQ(found.difference->op, "layers.0.mlp.residual");
  EXPECT_TRUE(found.difference->module.empty());
}

TEST(LocateFirstDifference, KnowsThatTheHeadSeesOnlyTheLastPosition) {
  const Location found = locate({.op = "lm_head", .position = 8, .index = 17}, 4);

  ASSERT_TRUE(found.difference.has_value()) << found.reason;
  EXPECT_EQ(found.difference->position, 8);
  EXPECT_EQ(found.difference->index, 17);
  EXPECT_EQ(found.difference->layer, -1);
}

TEST(LocateFirstDifference, SaysThatNothingDiffers) {
  const Location found = locate({});

  EXPECT_FALSE(found.difference.has_value());
  EXPECT_EQ(found.reason, "no op differs");
}

TEST(LocateFirstDifference, SaysThatProgramsWithOtherCallsCannotBeCompared) {
  const auto a = test::make_fake_executor({.max_batch_tokens = 4});
  const auto b = test::make_fake_executor({.max_batch_tokens = 9});

  const Location found = locate_first_difference(*a, *b, kPrompt);

  EXPECT_FALSE(found.difference.has_value());
  EXPECT_NE(found.reason.find("programs differ"), std::string::npos);
}

}  // namespace
}  // namespace assay
