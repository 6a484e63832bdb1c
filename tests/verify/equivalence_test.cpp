#include "verify/equivalence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/json.h"
#include "convert/safetensors.h"
#include "tests/support/temporary_directory.h"
#include "tests/verify/fake_executor.h"
#include "tests/verify/markup.h"
#include "verify/equivalence_output.h"
#include "verify/write_reference.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::ThrowsMessage;

Side fake_side(const test::FakeFaults& faults = {}, int n_sequences = 4) {
  return Side::from_executor("fake",
                             test::make_fake_executor({.n_sequences = n_sequences}, faults));
}

const Check& find(const EquivalenceReport& report, std::string_view name) {
  for (const Check& check : report.checks) {
    if (check.name == name) return check;
  }
  throw std::runtime_error("no check " + std::string(name));
}

EquivalenceReport compare(const test::FakeFaults& faults, EquivalenceOptions options = {}) {
  Side a = fake_side(), b = fake_side(faults);
  return verify_equivalence(a, b, options);
}

/// A list of ids in a file, as --token-ids takes it.
std::string ids_file(const test::TemporaryDirectory& folder, int n) {
  std::string text = "[0";
  for (int i = 1; i < n; ++i) text += "," + std::to_string(i * 11 % 40);
  return folder.write("ids.json", text + "]");
}

/// A bundle that a fake model wrote.
std::string bundle(const test::TemporaryDirectory& folder, const std::string& name,
                   const test::FakeFaults& faults = {}) {
  WriteReferenceOptions options;
  options.folder = folder.file(name);
  options.model = "fake";
  ReferencePrompt shorter, longer;
  shorter.id = "len0005";
  shorter.kind = "length";
  shorter.token_ids = {0, 3, 9, 27, 1};
  longer.id = "all0012";
  longer.kind = "all_positions";
  longer.token_ids = {0, 7, 14, 21, 28, 35, 2, 9, 16, 23, 30, 37};
  options.prompts.prompts = {shorter, longer};
  options.prompts.bos_id = 0;
  options.greedy_ids = {"len0005"};
  options.n_new_tokens = 6;
  options.windows = cut_windows(std::vector<int32_t>(64, 5), 32, 0, 0);
  write_reference(*test::make_fake_executor({}, faults), options);
  return options.folder;
}

EquivalenceReport compare_bundle(const std::string& path, const test::FakeFaults& faults = {},
                                 EquivalenceOptions options = {}) {
  Side a = Side::open(path), b = fake_side(faults);
  return verify_equivalence(a, b, options);
}

TEST(VerifyEquivalence, FindsASoundModelEqualToItself) {
  const test::TemporaryDirectory folder;
  EquivalenceOptions options;
  options.tokens.token_ids_file = ids_file(folder, 200);
  options.tokens.window_length = 64;

  const EquivalenceReport report = compare({}, options);

  EXPECT_TRUE(report.equal());
  EXPECT_TRUE(report.policy.bitwise);
  for (const Check& check : report.checks) {
    EXPECT_EQ(check.outcome, Outcome::kEqual) << check.name << ": " << check.summary;
  }
  EXPECT_THAT(report.windows, HasSubstr("3 windows of 64 tokens"));
  EXPECT_THAT(to_text(report), HasSubstr("EQUAL, bit for bit"));
}

TEST(VerifyEquivalence, LocatesOneFlippedBitInOneOp) {
  const EquivalenceReport report =
      compare({.op = "layers.1.mlp.up_proj", .position = 0, .index = 5});

  EXPECT_FALSE(report.equal());
  const Check& logits = find(report, "logits");
  EXPECT_EQ(logits.outcome, Outcome::kDifferent);
  const Json& location = logits.data.at("location");
  EXPECT_EQ(location.at("op").as_string(), "layers.1.mlp.up_proj");
  EXPECT_EQ(location.at("module").as_string(), "model.layers.1.mlp.up_proj");
  EXPECT_EQ(location.at("layer").as_integer(), 1);
  EXPECT_EQ(location.at("position").as_integer(), 0);
  EXPECT_EQ(location.at("index").as_integer(), 5);
  EXPECT_THAT(to_text(report),
              AllOf(HasSubstr("first differing op: layers.1.mlp.up_proj"), HasSubstr("DIFFERENT")));
}

TEST(VerifyEquivalence, ReportsAModelThatDiffersFromItselfInOtherChunks) {
  const EquivalenceReport report = compare({.depends_on_chunks = true});

  EXPECT_EQ(find(report, "self-equality A").outcome, Outcome::kEqual);
  EXPECT_EQ(find(report, "self-equality B").outcome, Outcome::kDifferent);
}

TEST(VerifyEquivalence, Case_B79_GivesExactlyZeroDeltaForAModelWithItself) {
  const test::TemporaryDirectory folder;
  EquivalenceOptions options;
  options.tokens.token_ids_file = ids_file(folder, 200);
  options.tokens.window_length = 64;

  const Json data = find(compare({}, options), "nll").data;

  EXPECT_EQ(data.at("delta_nll").as_number(), 0.0);
  EXPECT_EQ(data.at("kld").as_number(), 0.0);
  EXPECT_EQ(data.at("n_scored").as_integer(), 3 * 63);
  EXPECT_EQ(data.at("n_unused_tokens").as_integer(), 8);
  EXPECT_EQ(data.at("first_scored_position").as_integer(), 1);
}

TEST(VerifyEquivalence, NamesTheWindowOfADifferenceAmongWindowsOfOtherLengths) {
  const test::TemporaryDirectory folder;
  EquivalenceOptions options;
  options.tokens.token_ids_file = folder.write("ids.json", "[[0, 3], [0, 7, 14, 21, 28]]");

  const Check nll = find(compare({.op = "lm_head", .position = 3}, options), "nll");

  EXPECT_THAT(nll.details.front(), HasSubstr("window 1, position 3"));
}

TEST(VerifyEquivalence, Case_B79_RefusesATextOfOneToken) {
  const test::TemporaryDirectory folder;
  EquivalenceOptions options;
  options.tokens.token_ids_file = ids_file(folder, 1);

  EXPECT_THROW(compare({}, options), UsageError);
}

TEST(VerifyEquivalence, RefusesTokenIdsOutsideTheVocabulary) {
  const test::TemporaryDirectory folder;
  EquivalenceOptions options;
  // The last two are 1 in 32 bits.
  for (const char* ids : {"[0, 1, 40]", "[0, -1]", "[0, 4294967297]", "[[0, 4294967297]]"}) {
    options.tokens.token_ids_file = folder.write("ids.json", ids);

    EXPECT_THROW(compare({}, options), FormatError) << ids;
  }
  const std::vector<int32_t> negative = {0, -1};
  options.tokens.token_ids_file = folder.file("ids.safetensors");
  write_safetensors(
      options.tokens.token_ids_file,
      {source_of("token_ids", {DType::kI32, {1, 2}, std::as_bytes(std::span(negative))})});
  EXPECT_THROW(compare({}, options), FormatError);
}

TEST(VerifyEquivalence, HoldsDifferencesAgainstTheUsersLimit) {
  EquivalenceOptions wide, narrow;
  wide.policy.max_logit_difference = 0.5;
  narrow.policy.max_logit_difference = 0.1;
  const test::FakeFaults faults = {.position = 0, .logit_shift = 0.25f};

  EXPECT_EQ(find(compare(faults, wide), "logits").outcome, Outcome::kWithin);
  EXPECT_EQ(find(compare(faults, narrow), "logits").outcome, Outcome::kDifferent);
}

/// Options of two windows of text with these limits; only the logits and the NLL are compared.
EquivalenceOptions with_limits(const test::TemporaryDirectory& folder,
                               const PolicyRequest& limits) {
  EquivalenceOptions options;
  options.tokens.token_ids_file = ids_file(folder, 64);
  options.tokens.window_length = 32;
  options.policy = limits;
  options.greedy = options.self_equality = false;
  return options;
}

// Every limit holds what is equal to it and not what is above, whichever side is the better one.
TEST(VerifyEquivalence, HoldsEachFigureAgainstItsOwnLimit) {
  const test::TemporaryDirectory folder;
  const test::FakeFaults faults = {.position = 6, .index = 7, .one_logit_shift = 0.5f};
  for (const bool swapped : {false, true}) {
    const auto outcome_of = [&](const char* check, const PolicyRequest& limits) {
      Side sound = fake_side(), faulty = fake_side(faults);
      const EquivalenceOptions options = with_limits(folder, limits);
      return find(swapped ? verify_equivalence(faulty, sound, options)
                          : verify_equivalence(sound, faulty, options),
                  check);
    };
    const Json nll = outcome_of("nll", {.bitwise = false}).data;
    const Json logits = outcome_of("logits", {.bitwise = false}).data;
    double window = 0.0;
    for (const Json& delta : nll.at("window_delta_nll").as_array()) {
      window = std::max(window, std::fabs(delta.as_number()));
    }
    const double delta = std::fabs(nll.at("delta_nll").as_number()),
                 kld = nll.at("kld").as_number(),
                 logit = logits.at("max_abs_difference").as_number();
    ASSERT_TRUE(window > delta && delta > 0.0 && kld > 0.0 && logit > 0.0);
    const auto expect_limit = [&](const char* check, std::optional<double> PolicyRequest::*limit,
                                  double size) {
      PolicyRequest just_enough, too_tight;
      just_enough.*limit = size;
      too_tight.*limit = std::nextafter(size, 0.0);

      EXPECT_EQ(outcome_of(check, just_enough).outcome, Outcome::kWithin) << check << size;
      EXPECT_EQ(outcome_of(check, too_tight).outcome, Outcome::kDifferent) << check << size;
    };

    expect_limit("nll", &PolicyRequest::max_window_nll_difference, window);
    expect_limit("nll", &PolicyRequest::max_delta_nll, delta);
    expect_limit("nll", &PolicyRequest::max_kld, kld);
    expect_limit("logits", &PolicyRequest::max_logit_difference, logit);
  }
}

// Another best token is a difference where the reference's lead was larger than the limit.
TEST(VerifyEquivalence, FindsBestTokensThatNoLimitExplains) {
  const test::TemporaryDirectory folder;
  const test::FakeFaults faults = {.position = 5, .index = 7, .one_logit_shift = 64.0f};

  const Check nll = find(
      compare(faults, with_limits(folder, {.max_logit_difference = 1e-6, .max_kld = 1e6})), "nll");

  EXPECT_EQ(nll.outcome, Outcome::kDifferent);
  EXPECT_EQ(nll.data.at("n_argmax_different_beyond_limit").as_integer(), 1);
  EXPECT_THAT(nll.details, Contains(HasSubstr("window 1, row 5: best token")));
}

// A limit that is not used would let any model pass.
TEST(VerifyEquivalence, RefusesALimitThatNoFigureIsHeldAgainst) {
  const test::TemporaryDirectory folder;
  const auto expect_refused = [](const EquivalenceOptions& options, const std::string& words) {
    EXPECT_THAT([&] { compare({}, options); }, ThrowsMessage<UsageError>(HasSubstr(words)));
  };
  EquivalenceOptions no_text, no_logits, no_nll;
  no_text.policy.max_kld = 0.05;
  no_logits.policy.max_logit_difference = 0.5;
  no_logits.logits = false;
  no_nll.policy.max_delta_nll = 0.05;
  no_nll.tokens.token_ids_file = ids_file(folder, 200);
  no_nll.tokens.window_length = 64;
  no_nll.nll = false;

  expect_refused(no_text, "--max-kld is a limit over windows of text, and there are none: add");
  expect_refused(no_logits, "leave out --skip logits");
  expect_refused(no_nll, "leave out --skip nll");
  EXPECT_THAT([&] { compare_bundle(bundle(folder, "good"), {}, no_text); },
              ThrowsMessage<UsageError>(HasSubstr("--max-kld needs the distributions")));
}

TEST(VerifyEquivalence, RefusesToRunNoCheckAtAll) {
  EquivalenceOptions options;
  options.weights = options.logits = options.greedy = options.self_equality = false;

  EXPECT_THAT([&] { compare({}, options); },
              ThrowsMessage<UsageError>(HasSubstr("no check is left to run")));
}

TEST(VerifyEquivalence, OnlyReportsWhereNoLimitIsGiven) {
  EquivalenceOptions options;
  options.policy.bitwise = false;
  options.self_equality = false;
  options.greedy = false;

  const EquivalenceReport report = compare({.position = 0, .logit_shift = 0.25f}, options);

  EXPECT_TRUE(report.equal());
  EXPECT_FALSE(report.judged());
  EXPECT_THAT(to_text(report), HasSubstr("NOT JUDGED: no limit was given for logits"));
}

TEST(VerifyEquivalence, SelfEqualityAloneJudgesNothing) {
  EquivalenceOptions options;
  options.policy.bitwise = false;
  options.greedy = false;

  const EquivalenceReport report = compare({.position = 0, .logit_shift = 0.25f}, options);

  EXPECT_EQ(find(report, "self-equality A").outcome, Outcome::kEqual);
  EXPECT_FALSE(report.judged());
  EXPECT_THAT(to_text(report), AllOf(HasSubstr("NOT JUDGED"), Not(HasSubstr("WITHIN LIMITS"))));
  EXPECT_FALSE(to_json(report).at("judged").as_bool());
}

TEST(VerifyEquivalence, SaysThatTheSidesWereNotCompared) {
  EquivalenceOptions options;
  options.weights = options.logits = options.greedy = false;

  EXPECT_THAT(to_text(compare({}, options)),
              HasSubstr("NOT JUDGED: no check compared the numbers of one side"));
}

// A model that takes the same tokens by luck is not within limits that nobody stated.
TEST(VerifyEquivalence, EqualGreedyIdsJudgeNothingWithoutALimit) {
  EquivalenceOptions options;
  options.policy.bitwise = false;

  const EquivalenceReport report = compare({.position = 0, .logit_shift = 0.25f}, options);

  EXPECT_EQ(find(report, "greedy").outcome, Outcome::kEqual);
  EXPECT_FALSE(report.judged());
  EXPECT_THAT(to_text(report), HasSubstr("NOT JUDGED: no limit was given for logits"));
}

TEST(VerifyEquivalence, NamesWhatWasNotJudgedBesideALimit) {
  EquivalenceOptions options;
  options.policy.max_logit_difference = 0.5;

  EquivalenceReport report = compare({.position = 0, .logit_shift = 0.25f}, options);
  for (Check& check : report.checks) {
    if (check.name == "greedy") check.outcome = Outcome::kReported;
  }

  EXPECT_TRUE(report.judged());
  EXPECT_THAT(to_text(report), HasSubstr("WITHIN LIMITS; not judged: greedy"));
}

TEST(VerifyEquivalence, FindsItsOwnBundleEqualBitForBit) {
  const test::TemporaryDirectory folder;

  const EquivalenceReport report = compare_bundle(bundle(folder, "good"));

  EXPECT_TRUE(report.policy.bitwise);
  for (const Check& check : report.checks) {
    EXPECT_EQ(check.outcome, Outcome::kEqual) << check.name << ": " << check.summary;
  }
  EXPECT_EQ(find(report, "hidden states").outcome, Outcome::kEqual);
  EXPECT_EQ(find(report, "nll").data.at("n_windows").as_integer(), 2);
}

TEST(VerifyEquivalence, AllowsABundleOfAnotherKvTypeItsTolerance) {
  const test::TemporaryDirectory folder;
  EquivalenceOptions options;
  options.kv_type = KvType::kF32;

  const EquivalenceReport report = compare_bundle(bundle(folder, "f16"), {}, options);

  EXPECT_FALSE(report.policy.bitwise);
  EXPECT_EQ(report.kv_type, "f32");
}

TEST(VerifyEquivalence, Case_B80_FindsADifferenceFromAWrongReference) {
  const test::TemporaryDirectory folder;

  const EquivalenceReport report =
      compare_bundle(bundle(folder, "good"), {.op = "layers.0.mlp.up_proj", .position = 2});

  EXPECT_FALSE(report.equal());
  EXPECT_THAT(find(report, "hidden states").details.front(), HasSubstr("layer.0.output: row 2"));
}

TEST(VerifyEquivalence, ComparesTwoBundles) {
  const test::TemporaryDirectory folder;
  const std::string good = bundle(folder, "good"),
                    bad = bundle(folder, "bad", {.op = "lm_head", .position = 4, .index = 9});
  Side a = Side::open(good), b = Side::open(bad), again = Side::open(good);

  EXPECT_TRUE(verify_equivalence(a, again, {}).equal());
  const EquivalenceReport report = verify_equivalence(a, b, {});

  EXPECT_FALSE(report.equal());
  EXPECT_THAT(find(report, "logits").details.front(), HasSubstr("\"len0005\" (last position)"));
}

TEST(VerifyEquivalence, NotesWhatOnlyOneOfTwoBundlesHolds) {
  const test::TemporaryDirectory folder;
  const std::string whole = bundle(folder, "whole");
  std::filesystem::copy(whole, folder.file("part"));
  for (const char* name : {"nll.safetensors", "nll.json", "greedy.json", "hidden.safetensors"}) {
    std::filesystem::remove(folder.file("part/") + name);
  }
  Side a = Side::open(whole), b = Side::open(folder.file("part"));

  const EquivalenceReport report = verify_equivalence(a, b, {});

  EXPECT_THAT(report.notes,
              IsSupersetOf({"greedy run of len0005 is only in A: not compared",
                            "window 1 is only in A: not compared",
                            "hidden state layer.0.output is only in A: not compared"}));
  ASSERT_EQ(report.checks.size(), 1u);
  EXPECT_EQ(report.checks[0].name, "logits");
}

TEST(VerifyEquivalence, DoesNotPassWhereNoLogitsWereCompared) {
  const test::TemporaryDirectory folder;
  const std::string whole = bundle(folder, "whole"), other = folder.file("other");
  std::filesystem::copy(whole, other);
  Json header = read_json_file(other + "/prompts.json");
  Json prompts = header.at("prompts");
  prompts.as_array().resize(1);
  write_text_file(other + "/prompts.json", header.set("prompts", prompts).dump());
  const std::vector<int64_t> position = {4};
  const SafetensorsFile file = SafetensorsFile::open(whole + "/logits.safetensors");
  const TensorView& row = file.find("final.len0005")->view;
  write_safetensors(
      other + "/logits.safetensors",
      {source_of("all.len0005", {row.dtype, {1, row.shape[0]}, row.bytes}),
       source_of("positions", {DType::kI64, {1}, std::as_bytes(std::span(position))})});
  Side a = Side::open(whole), b = Side::open(other);

  EXPECT_EQ(find(verify_equivalence(a, b, {}), "logits").outcome, Outcome::kDifferent);
}

TEST(VerifyEquivalence, TakesGreedyRunsOfOtherLengthsForDifferent) {
  const test::TemporaryDirectory folder;
  const std::string whole = bundle(folder, "whole");
  std::filesystem::copy(whole, folder.file("short"));
  const std::string path = folder.file("short/greedy.json");
  Json greedy = read_json_file(path);
  Json run = greedy.at("prompts").as_array().front();
  Json ids = run.at("token_ids");
  ids.as_array().pop_back();
  run.set("token_ids", ids).set("sha256", Json()).set("margin", Json()).set("runner_up", Json());
  greedy.set("prompts", Json::array()).set("all_sha256", Json());
  Json runs = Json::array();
  runs.push(run);
  greedy.set("prompts", runs);
  write_text_file(path, greedy.dump());
  for (const bool swapped : {false, true}) {
    Side a = Side::open(whole), b = Side::open(folder.file("short"));

    const EquivalenceReport report =
        swapped ? verify_equivalence(b, a, {}) : verify_equivalence(a, b, {});

    EXPECT_EQ(find(report, "greedy").outcome, Outcome::kDifferent) << swapped;
  }
}

TEST(VerifyEquivalence, TakesPromptsOfTheBundleOnly) {
  const test::TemporaryDirectory folder;
  EquivalenceOptions options;
  options.tokens.prompts_file = "prompts.json";

  EXPECT_THROW(compare_bundle(bundle(folder, "good"), {}, options), UsageError);
}

TEST(VerifyEquivalence, StopsWhereProgressThrows) {
  Side a = fake_side(), b = fake_side();
  const auto stop = [](double, std::string_view) { throw StoppedError("stopped"); };

  EXPECT_THROW(verify_equivalence(a, b, {}, stop), StoppedError);
}

TEST(EquivalenceOutput, HasOneJunitCaseACheckAndIsWellFormed) {
  const EquivalenceReport report = compare({.op = "lm_head", .position = 0, .index = 1});

  const std::string xml = to_junit(report);

  EXPECT_EQ(test::find_markup_fault(xml), "");
  EXPECT_THAT(xml, AllOf(HasSubstr("<failure message="), HasSubstr("name=\"self-equality B\"")));
}

TEST(EquivalenceOutput, SkipsTheJunitCaseOfWhatWasNotJudged) {
  EquivalenceOptions options;
  options.policy.bitwise = false;
  options.greedy = options.self_equality = false;

  const std::string xml = to_junit(compare({.position = 0, .logit_shift = 0.25f}, options));

  EXPECT_EQ(test::find_markup_fault(xml), "");
  EXPECT_THAT(xml, AllOf(HasSubstr("tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"1\""),
                         HasSubstr("<skipped message=")));
}

TEST(EquivalenceOutput, IsTheSameTextTwice) {
  EXPECT_EQ(to_json(compare({})).dump(), to_json(compare({})).dump());
}

}  // namespace
}  // namespace assay
