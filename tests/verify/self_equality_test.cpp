#include "verify/self_equality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/verify/fake_executor.h"

namespace assay {
namespace {

/// The 70-token prompt of case B72.
std::vector<int32_t> prompt() {
  std::vector<int32_t> ids(70);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 40);
  return ids;
}

SelfEquality check(const test::FakeFaults& faults, int64_t max_batch_tokens = 512) {
  const auto executor = test::make_fake_executor(
      {.n_sequences = kSelfEqualitySequences, .max_batch_tokens = max_batch_tokens}, faults);
  return check_self_equality(*executor, prompt());
}

std::vector<std::string> different_modes(const SelfEquality& found) {
  std::vector<std::string> names;
  for (const ServingMode& mode : found.modes) {
    if (!mode.equal()) names.push_back(mode.name);
  }
  return names;
}

TEST(SelfEquality, Case_B72_HoldsForChunksResetsAndSequencesOfASoundModel) {
  const SelfEquality found = check({});

  EXPECT_TRUE(found.equal());
  EXPECT_EQ(found.modes.size(), 8u);
}

TEST(SelfEquality, FindsAModelWhoseBitsDependOnTheChunk) {
  const SelfEquality found = check({.depends_on_chunks = true});

  EXPECT_FALSE(found.equal());
  EXPECT_EQ(different_modes(found).front(), "chunks of 1");
}

TEST(SelfEquality, FindsAModelWhoseBitsDependOnTheBatch) {
  const SelfEquality found = check({.depends_on_batch = true});

  EXPECT_EQ(different_modes(found),
            (std::vector<std::string>{"2 sequences together", "3 sequences together",
                                      "4 sequences together"}));
}

TEST(SelfEquality, FindsAModelThatRemembersWhatWasReset) {
  const SelfEquality found = check({.forgets_reset = true});

  EXPECT_FALSE(found.equal());
}

TEST(SelfEquality, RunsFewerSequencesTogetherWhereACallTakesFewTokens) {
  const SelfEquality found = check({}, /*max_batch_tokens=*/130);

  EXPECT_TRUE(found.equal());
  const auto together = std::count_if(found.modes.begin(), found.modes.end(), [](const auto& mode) {
    return mode.name.ends_with("together");
  });
  EXPECT_EQ(together, 1);
}

}  // namespace
}  // namespace assay
