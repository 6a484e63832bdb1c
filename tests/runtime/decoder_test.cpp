#include "runtime/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/core/error.h"
#include "runtime/cpu_executor.h"
#include "tests/support/random.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using ::testing::HasSubstr;

class Decoder : public testing::Test {
 protected:
  void load(int64_t context, int64_t batch = 512) {
    executor_ =
        make_cpu_device()->load(checkpoint_, {.context = context, .max_batch_tokens = batch});
  }

  Generation run(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                 const std::function<bool(int32_t)>& on_token = nullptr) {
    executor_->reset(0);
    return generate(*executor_, 0, prompt, options, on_token);
  }

  test::TemporaryDirectory folder_;
  std::shared_ptr<const Checkpoint> checkpoint_ =
      Checkpoint::open(test::make_tiny_model().write(folder_.file("m")));
  std::unique_ptr<Executor> executor_;
};

TEST_F(Decoder, GivesTheAskedNumberOfTokensAndReportsEachOnce) {
  load(64);
  std::vector<int32_t> seen;

  const Generation run_result = run({1, 2, 3}, {.max_new_tokens = 10}, [&](int32_t id) {
    seen.push_back(id);
    return true;
  });

  EXPECT_EQ(run_result.token_ids.size(), 10u);
  EXPECT_EQ(seen, run_result.token_ids);
  EXPECT_EQ(run_result.stop_reason, StopReason::kLength);
  EXPECT_EQ(executor_->length(0), 12);  // the last new token was not fed
  EXPECT_GE(run_result.elapsed_s, run_result.first_token_s);
}

TEST_F(Decoder, OfNoNewTokensRunsNothing) {
  load(64);

  EXPECT_TRUE(run({1, 2, 3}, {.max_new_tokens = 0}).token_ids.empty());
  EXPECT_EQ(executor_->length(0), 0);
}

TEST_F(Decoder, Case_B54_EndsAtAnyIdOfTheStopSetWhichIsTheLastNewToken) {
  load(64);
  const auto ids = run({1, 2, 3}, {.max_new_tokens = 20}).token_ids;
  const int32_t stop = ids[7];
  const auto first = static_cast<size_t>(std::find(ids.begin(), ids.end(), stop) - ids.begin());

  const Generation stopped = run({1, 2, 3}, {.max_new_tokens = 20, .stop_ids = {0, stop}});

  EXPECT_EQ(stopped.stop_reason, StopReason::kStopToken);
  EXPECT_EQ(stopped.token_ids, std::vector<int32_t>(ids.begin(), ids.begin() + first + 1));
}

TEST_F(Decoder, EndsWhenTheCallerSaysSo) {
  load(64);
  int left = 3;

  const Generation stopped = run({1}, {.max_new_tokens = 20}, [&](int32_t) { return --left > 0; });

  EXPECT_EQ(stopped.stop_reason, StopReason::kInterrupted);
  EXPECT_EQ(stopped.token_ids.size(), 3u);
}

TEST_F(Decoder, DrawsTheSameTokensForTheSameSeedInAnyBatching) {
  const GenerateOptions options{.max_new_tokens = 30,
                                .sampling = {.temperature = 1.5f, .top_p = 0.95f, .seed = 3}};
  const std::vector<int32_t> prompt = {5, 6, 7, 8, 9, 10, 11};
  load(64);
  const auto whole = run(prompt, options).token_ids;
  load(128, 2);
  const auto cut = run(prompt, options).token_ids;
  GenerateOptions other = options;
  other.sampling.seed = 4;

  EXPECT_EQ(cut, whole);
  EXPECT_NE(run(prompt, other).token_ids, whole);
}

TEST_F(Decoder, Case_B67_PromptAndNewTokensMustFitTheContext) {
  load(16);
  for (const size_t n_prompt : {15u, 16u, 17u}) {
    for (const int64_t n_new : {0, 1, 2}) {
      const std::vector<int32_t> prompt(n_prompt, 1);
      const bool fits = static_cast<int64_t>(n_prompt) + n_new <= 16;
      if (fits) {
        EXPECT_EQ(run(prompt, {.max_new_tokens = n_new}).token_ids.size(),
                  static_cast<size_t>(n_new));
        continue;
      }
      try {
        run(prompt, {.max_new_tokens = n_new});
        ADD_FAILURE() << n_prompt << " + " << n_new << " accepted";
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), HasSubstr("context of 16 tokens"));
        EXPECT_THAT(error.what(), HasSubstr("prompt has " + std::to_string(n_prompt)));
      }
      EXPECT_EQ(executor_->length(0), 0);
    }
  }
}

TEST_F(Decoder, RefusesAnEmptyPrompt) {
  load(16);

  EXPECT_THROW(run({}, {}), UsageError);
}

TEST(Generation, MeanTimePerTokenLeavesTheFirstOut) {
  EXPECT_DOUBLE_EQ((Generation{.token_ids = {1, 2, 3}, .first_token_s = 1.0, .elapsed_s = 1.5})
                       .seconds_per_token(),
                   0.25);
  EXPECT_DOUBLE_EQ(
      (Generation{.token_ids = {1}, .first_token_s = 1.0, .elapsed_s = 1.0}).seconds_per_token(),
      0.0);
}

}  // namespace
}  // namespace assay
