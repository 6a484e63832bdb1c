#include "quantizer/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "tests/quantizer/run_fixture.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

using test::QuantizeRun;
using testing::HasSubstr;

std::vector<SweepCandidate> candidates_of(const std::string& json) {
  const test::TemporaryDirectory folder;
  folder.write("sweep.json", json);
  return read_sweep(folder.file("sweep.json"));
}

std::string error_of(const std::string& json) {
  try {
    candidates_of(json);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

RunOptions options_of(const QuantizeRun& fixture) {
  RunOptions options = fixture.best_options();
  options.held_out_windows = 2;
  options.report = fixture.path("report.json");
  return options;
}

TEST(Sweep, ReadsCandidatesWithTheirModulesAndValues) {
  const auto candidates = candidates_of(
      R"({"candidates": [{"name": "a", "target_alpha": 0.5},
                         {"modules": ["*down_proj", "*o_proj"], "damp_percent": 0.03}]})");

  ASSERT_EQ(candidates.size(), 2u);
  EXPECT_EQ(candidates[0].name, "a");
  EXPECT_TRUE(candidates[0].overrides[0].modules.empty());
  EXPECT_EQ(candidates[1].name, R"({"damp_percent":0.03})");
  EXPECT_EQ(candidates[1].overrides[0].modules.size(), 2u);
}

TEST(Sweep, FaultsNameTheCandidate) {
  EXPECT_THAT(error_of("{}"), HasSubstr("expected {\"candidates\""));
  EXPECT_THAT(error_of(R"({"candidates": []})"), HasSubstr("expected {\"candidates\""));
  EXPECT_THAT(
      error_of(R"({"candidates": [{"target_alpha": 0.5}, {"alpha": 1}]})"),
      testing::AllOf(HasSubstr("candidate 2"), HasSubstr("\"alpha\""), HasSubstr("target_alpha")));
  EXPECT_THAT(error_of(R"({"candidates": [{"damp_percent": "much"}]})"), HasSubstr("candidate 1"));
  EXPECT_THAT(error_of(R"({"candidates": [{"name": "x"}, {"name": "x", "refit_rounds": 1}]})"),
              HasSubstr("second one with the name \"x\""));
}

TEST(Sweep, KeepsTheCandidateOfSmallestDivergence) {
  const QuantizeRun fixture;
  const RunOptions options = options_of(fixture);
  const auto candidates = candidates_of(
      R"({"candidates": [{"name": "rough", "scales": "min-max", "target_alpha": 0,
                          "refit_rounds": 0},
                         {"name": "as given"},
                         {"name": "down", "modules": ["*down_proj"], "damp_percent": 0.3}]})");

  const SweepResult result = run_sweep(options, candidates, {});

  ASSERT_EQ(result.ranking.size(), 3u);
  EXPECT_TRUE(std::is_sorted(
      result.ranking.begin(), result.ranking.end(),
      [](const SweepEntry& a, const SweepEntry& b) { return a.kld.mean < b.kld.mean; }));
  EXPECT_EQ(result.ranking.front().kld_difference.mean, 0.0);
  EXPECT_GT(result.ranking.back().kld_difference.mean, 0.0);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_FALSE(file_exists(fixture.path("out.sweep-" + std::to_string(i))));
  }
  const Json report = read_json_file(options.report);
  EXPECT_EQ(report.at("sweep").as_array().size(), 3u);

  // The folder is the one of a run with these values.
  RunOptions alone = options;
  alone.out = fixture.path("alone");
  alone.overrides = result.options.overrides;
  fixture.run(alone);
  EXPECT_EQ(QuantizeRun::contents(options.out), QuantizeRun::contents(alone.out));
}

TEST(Sweep, NeedsWindowsToRankOn) {
  const QuantizeRun fixture;
  RunOptions options = options_of(fixture);
  options.held_out_windows = 0;

  EXPECT_THROW(run_sweep(options, candidates_of(R"({"candidates": [{"name": "a"}]})"), {}),
               UsageError);
}

}  // namespace
}  // namespace assay
