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

class SweepWith : public testing::TestWithParam<SweepInputs> {};

INSTANTIATE_TEST_SUITE_P(Inputs, SweepWith, testing::Values(SweepInputs::kAuto, SweepInputs::kOwn),
                         [](const auto& inputs) {
                           return std::string(kSweepInputsWords.name(inputs.param));
                         });

TEST_P(SweepWith, KeepsTheCandidateOfSmallestDivergence) {
  const QuantizeRun fixture;
  RunOptions options = options_of(fixture);
  options.quantize.target_alpha = options.quantize.residual_alpha = 0.0;
  const auto candidates = candidates_of(
      R"({"candidates": [{"name": "rough", "scales": "min-max", "refit_rounds": 0},
                         {"name": "as given"},
                         {"name": "down", "modules": ["*down_proj"], "damp_percent": 0.3}]})");

  const SweepResult result = run_sweep(options, candidates, GetParam(), {});

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

  EXPECT_THROW(run_sweep(options, candidates_of(R"({"candidates": [{"name": "a"}]})"),
                         SweepInputs::kAuto, {}),
               UsageError);
}

TEST(Sweep, ACandidateBesideARunOfItsValuesHasTheFiguresOfThatRun) {
  const QuantizeRun fixture;
  RunOptions options = options_of(fixture);
  const ModuleValues nothing{.modules = {}, .values = Json::object()};
  options.beside = {std::vector<ModuleValues>{}, std::vector<ModuleValues>{nothing}};

  const RunResult result = fixture.run(options);

  ASSERT_EQ(result.beside.size(), 2u);
  const Json& own = result.layers.back().held_out;
  EXPECT_EQ(result.beside[0].held_out, own);
  EXPECT_EQ(result.beside[1].held_out, own);
}

// The last linear of the last layer has the same inputs whatever it becomes.
TEST(Sweep, ACandidateOfTheLastLinearHasTheFiguresOfItsOwnRun) {
  const QuantizeRun fixture({.n_layers = 1});
  RunOptions options = options_of(fixture);
  options.quantize.target_alpha = options.quantize.residual_alpha = 0.0;
  Json values = Json::object();
  values.set("scales", "min-max").set("refit_rounds", 0);
  const std::vector<ModuleValues> last = {{.modules = {"*down_proj"}, .values = values}};
  options.beside = {last};

  const RunResult shared = fixture.run(options);

  options.beside.clear();
  options.overrides = last;
  options.force = true;
  const RunResult alone = fixture.run(options);
  EXPECT_EQ(shared.beside.front().held_out, alone.layers.back().held_out);
}

// A target makes good what a candidate's own linears changed.
TEST(Sweep, CandidatesWithATargetHaveInputsOfTheirOwn) {
  const QuantizeRun fixture;
  const RunOptions two_streams = options_of(fixture);
  RunOptions one_stream = two_streams;
  one_stream.quantize.target_alpha = one_stream.quantize.residual_alpha = 0.0;
  const auto plain = candidates_of(
      R"({"candidates": [{"name": "a", "target_alpha": 0}, {"name": "b", "target_alpha": 0,
                          "damp_percent": 0.02}]})");
  const auto with_target = candidates_of(
      R"({"candidates": [{"name": "a"}, {"name": "b", "modules": ["*o_proj"],
                          "target_alpha": 0.5}]})");

  EXPECT_TRUE(shares_inputs(one_stream, plain, SweepInputs::kAuto));
  EXPECT_TRUE(shares_inputs(two_streams, plain, SweepInputs::kAuto));
  EXPECT_FALSE(shares_inputs(one_stream, plain, SweepInputs::kOwn));
  EXPECT_FALSE(shares_inputs(one_stream, with_target, SweepInputs::kAuto));
  EXPECT_FALSE(shares_inputs(two_streams, with_target, SweepInputs::kAuto));
  one_stream.per_module = PerModule::kDamp;
  EXPECT_FALSE(shares_inputs(one_stream, plain, SweepInputs::kAuto));
}

}  // namespace
}  // namespace assay
