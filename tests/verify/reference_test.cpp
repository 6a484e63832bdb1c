#include "verify/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/sha256.h"
#include "convert/safetensors.h"
#include "runtime/ops/nll.h"
#include "tests/support/bits_equal.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/verify/fake_executor.h"
#include "verify/run_model.h"
#include "verify/write_reference.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

ReferencePrompt prompt(std::string id, std::string kind, std::vector<int32_t> ids) {
  ReferencePrompt result;
  result.id = std::move(id);
  result.kind = std::move(kind);
  result.source = "test";
  result.token_ids = std::move(ids);
  return result;
}

WriteReferenceOptions write_options(const std::string& folder) {
  WriteReferenceOptions options;
  options.folder = folder;
  options.model = "fake";
  options.prompts.prompts = {prompt("len0003", "length", {0, 5, 6}),
                             prompt("all0006", "all_positions", {0, 1, 2, 3, 4, 5})};
  options.prompts.bos_id = 0;
  options.greedy_ids = {"len0003"};
  options.n_new_tokens = 4;
  EvaluationWindows windows = cut_windows(std::vector<int32_t>(20, 7), 10, 0, 0);
  options.windows = windows;
  return options;
}

/// A bundle of a fake model in a folder of its own.
class Bundle : public ::testing::Test {
 protected:
  Bundle() {
    const auto executor = test::make_fake_executor();
    write_reference(*executor, write_options(path()));
  }
  std::string path() const { return folder_.file("bundle"); }
  std::string file(std::string_view name) const { return path() + "/" + std::string(name); }

  /// Replaces the first occurrence of a text in a file.
  void edit(std::string_view name, const std::string& from, const std::string& to) const {
    std::string text = read_text_file(file(name));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    write_text_file(file(name), text);
  }
  /// Writes a tensor file again after `change` saw its tensors by name.
  void change(const std::string& name,
              const std::function<void(std::map<std::string, Tensor>&)>& change) const {
    std::map<std::string, Tensor> tensors;
    const SafetensorsFile before = SafetensorsFile::open(file(name));
    for (const SafetensorsEntry& entry : before.tensors()) {
      tensors[entry.name] = {
          entry.view.dtype, entry.view.shape, {entry.view.bytes.begin(), entry.view.bytes.end()}};
    }
    change(tensors);
    std::vector<TensorSource> sources;
    for (const auto& [key, tensor] : tensors) sources.push_back(source_of(key, tensor.view()));
    write_safetensors(file(name), std::move(sources));
  }
  /// Puts a float in place of another.
  void poke(const std::string& name, const std::string& tensor, size_t index, float value) const {
    change(name,
           [&](auto& tensors) { std::memcpy(&tensors.at(tensor).bytes.at(index * 4), &value, 4); });
  }
  std::string error() const {
    try {
      ReferenceBundle::open(path());
    } catch (const FormatError& e) {
      return e.what();
    }
    return "no error";
  }

  test::TemporaryDirectory folder_;
};

TEST_F(Bundle, GivesBackWhatTheExecutorComputed) {
  const auto executor = test::make_fake_executor();

  const ReferenceBundle bundle = ReferenceBundle::open(path());

  ASSERT_EQ(bundle.prompts().size(), 2u);
  EXPECT_EQ(bundle.vocab_size(), test::kFakeVocab);
  const auto& ids = bundle.prompts()[0].token_ids;
  EXPECT_TRUE(
      test::bits_equal(*bundle.final_logits("len0003"), logits_of_last_position(*executor, ids)));
  EXPECT_TRUE(test::bits_equal(bundle.all_logits("all0006")->values,
                               logits_of_all_positions(*executor, bundle.prompts()[1].token_ids)));
  EXPECT_EQ(bundle.greedy()[0].run.token_ids, run_greedy(*executor, ids, 4).token_ids);
  EXPECT_TRUE(test::bits_equal(bundle.window_scores(1).nll,
                               score_window(*executor, bundle.windows()->windows[1]).nll));
}

TEST_F(Bundle, StatesArithmeticKvTypeAndBos) {
  const ReferenceBundle bundle = ReferenceBundle::open(path());

  EXPECT_EQ(bundle.header().arithmetic, "canonical-1");
  EXPECT_EQ(bundle.header().kv_type, "f16");
  EXPECT_EQ(bundle.header().bos_id, 0);
  EXPECT_EQ(bundle.windows()->windows[0].front(), 0);
}

TEST_F(Bundle, NamesHiddenStatesInOrderOfDepth) {
  const ReferenceBundle bundle = ReferenceBundle::open(path());

  EXPECT_EQ(bundle.hidden_names(), (std::vector<std::string>{"embeddings", "layer.0.output",
                                                             "layer.1.output", "final_norm"}));
  EXPECT_EQ(bundle.hidden("layer.1.output").size(), 6u * test::kFakeHidden);
}

TEST_F(Bundle, IsWrittenWithTheSameBytesTwice) {
  const auto executor = test::make_fake_executor();

  write_reference(*executor, write_options(folder_.file("again")));

  for (const char* name : {"prompts.json", "logits.safetensors", "hidden.safetensors",
                           "greedy.json", "nll.json", "nll.safetensors"}) {
    EXPECT_EQ(sha256_of_file(file(name)), sha256_of_file(folder_.file("again/") + name)) << name;
  }
}

TEST_F(Bundle, LeavesNothingWhenWritingFails) {
  const auto executor = test::make_fake_executor();
  const auto stop = [](std::string_view) { throw StoppedError("stopped"); };

  EXPECT_THROW(write_reference(*executor, write_options(folder_.file("stopped")), stop),
               StoppedError);
  EXPECT_FALSE(file_exists(folder_.file("stopped")));
  EXPECT_FALSE(file_exists(folder_.file("stopped.partial/prompts.json")));
}

TEST_F(Bundle, RefusesAPromptWithOneChangedId) {
  edit("prompts.json", "5,", "9,");

  EXPECT_THAT(error(), AllOf(HasSubstr("prompts.json"), HasSubstr("len0003"), HasSubstr("hash")));
}

TEST_F(Bundle, RefusesAGreedyRunWithOneChangedId) {
  const int32_t id = ReferenceBundle::open(path()).greedy()[0].run.token_ids[0];
  edit("greedy.json", std::to_string(id) + ",", std::to_string((id + 1) % 40) + ",");

  EXPECT_THAT(error(), AllOf(HasSubstr("greedy.json"), HasSubstr("len0003"), HasSubstr("hash")));
}

TEST_F(Bundle, RefusesGreedyRunsThatAreNotThoseOfAllSha256) {
  edit("greedy.json", "\"all_sha256\": \"", "\"all_sha256\": \"0");

  EXPECT_THAT(error(), AllOf(HasSubstr("greedy.json"), HasSubstr("all_sha256 is 0")));
}

TEST_F(Bundle, RefusesWindowsThatAreNotThoseOfNllJson) {
  edit("nll.json", "\"window_token_ids_sha256\": \"", "\"window_token_ids_sha256\": \"0");

  EXPECT_THAT(error(), AllOf(HasSubstr("nll.json"), HasSubstr("window_token_ids_sha256")));
}

TEST_F(Bundle, RefusesAWrongTokenCount) {
  edit("prompts.json", "\"n_tokens\": 3", "\"n_tokens\": 4");

  EXPECT_THAT(error(), HasSubstr("n_tokens is 4, found 3"));
}

TEST_F(Bundle, RefusesLogitsThatBelongToNoPrompt) {
  edit("prompts.json", "\"len0003\"", "\"len0004\"");

  EXPECT_THAT(error(), AllOf(HasSubstr("final.len0003"), HasSubstr("no prompt")));
}

TEST_F(Bundle, RefusesATruncatedTensorFile) {
  const std::string bytes = read_text_file(file("logits.safetensors"));
  write_text_file(file("logits.safetensors"), bytes.substr(0, bytes.size() - 1));

  EXPECT_THAT(error(), HasSubstr("logits.safetensors"));
}

// With a NaN on a side no difference is larger than a limit.
TEST_F(Bundle, RefusesValuesThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  poke("logits.safetensors", "final.len0003", 7, nan);
  poke("logits.safetensors", "all.all0006", 3, std::numeric_limits<float>::infinity());
  poke("hidden.safetensors", "layer.1.output", 1, nan);
  poke("nll.safetensors", "nll", 9 + 4, nan);  // row 4 of window 1

  const ReferenceBundle bundle = ReferenceBundle::open(path());

  const auto expect_refused = [](const auto& read, const std::string& words) {
    EXPECT_THAT(read, ThrowsMessage<FormatError>(HasSubstr(words)));
  };
  expect_refused([&] { bundle.final_logits("len0003"); }, "\"final.len0003\"[7] is nan");
  expect_refused([&] { bundle.all_logits("all0006"); }, "\"all.all0006\"[3] is inf");
  expect_refused([&] { bundle.hidden("layer.1.output"); }, "\"layer.1.output\"[1] is nan");
  expect_refused([&] { bundle.window_scores(1); }, "\"nll\", window 1[4] is nan");
  EXPECT_NO_THROW(bundle.window_scores(0));
}

TEST_F(Bundle, RefusesAPromptWithoutLogits) {
  change("logits.safetensors", [](auto& tensors) { tensors.erase("final.len0003"); });

  EXPECT_THAT(error(), AllOf(HasSubstr("logits.safetensors"), HasSubstr("\"len0003\""),
                             HasSubstr("neither \"final.len0003\" nor")));
}

TEST_F(Bundle, RefusesPositionsThatRepeatOrAreNone) {
  const auto expect_refused = [&](const std::function<void(Tensor&, Tensor&)>& edit) {
    change("logits.safetensors",
           [&](auto& tensors) { edit(tensors.at("positions"), tensors.at("all.all0006")); });
    EXPECT_THAT(error(), HasSubstr("expected ascending ones, at least one"));
  };

  expect_refused([](Tensor& positions, Tensor&) {
    std::memcpy(&positions.bytes[8], positions.bytes.data(), 8);
  });
  expect_refused([](Tensor& positions, Tensor& logits) {
    positions = {positions.dtype, {0}, {}};
    logits = {logits.dtype, {0, logits.shape[1]}, {}};
  });
}

TEST_F(Bundle, RefusesAPositionBehindThePrompt) {
  change("logits.safetensors",
         [](auto& tensors) { tensors.at("positions").bytes[5 * 8] = std::byte{99}; });

  const ReferenceBundle bundle = ReferenceBundle::open(path());

  EXPECT_THAT([&] { bundle.all_logits("all0006"); },
              ThrowsMessage<FormatError>(HasSubstr("is outside its 6 tokens")));
}

TEST_F(Bundle, RefusesWindowsOfWhichThereAreNone) {
  change("nll.safetensors", [](auto& tensors) {
    for (auto& [name, tensor] : tensors) tensor = {tensor.dtype, {0, tensor.shape[1]}, {}};
  });

  EXPECT_THAT(error(), HasSubstr("[windows ≥ 1, length ≥ 2]"));
}

TEST_F(Bundle, RefusesAHiddenStateThatNothingWouldBeComparedWith) {
  change("hidden.safetensors", [](auto& tensors) { tensors.erase("layer.0.output"); });

  EXPECT_THAT(error(), AllOf(HasSubstr("hidden.safetensors"), HasSubstr("layer.1.output")));
}

TEST_F(Bundle, RefusesTwoGreedyRunsOfOnePrompt) {
  Json greedy = read_json_file(file("greedy.json"));
  Json runs = greedy.at("prompts");
  runs.push(Json(runs.as_array().front()));
  greedy.set("prompts", runs);
  write_text_file(file("greedy.json"), greedy.dump());

  EXPECT_THAT(error(), HasSubstr("two runs have the id \"len0003\""));
}

TEST(ReadPrompts, TakesListsOfIds) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.write("ids.json", "[[1, 2, 3], [4]]");

  const PromptFile file = read_prompts(path);

  ASSERT_EQ(file.prompts.size(), 2u);
  EXPECT_EQ(file.prompts[1].token_ids, std::vector<int32_t>{4});
}

TEST(ReadPrompts, RefusesIdsThatAreNoTokens) {
  const test::TemporaryDirectory folder;

  EXPECT_THROW(read_prompts(folder.write("a.json", "[1, -2]")), FormatError);
  EXPECT_THROW(read_prompts(folder.write("b.json", "[1, 2147483648]")), FormatError);
  EXPECT_THROW(
      read_prompts(folder.write(
          "bos.json", R"({"bos_id": 4294967296, "prompts": [{"id": "a", "token_ids": [1]}]})")),
      FormatError);
  EXPECT_THROW(read_prompts(folder.write("c.json", "[1, \"x\"]")), FormatError);
  EXPECT_THROW(read_prompts(folder.write("d.json", "[]")), FormatError);
  EXPECT_THROW(read_prompts(folder.write("e.json", "{\"prompts\": [{\"id\": \"a\"}]}")),
               FormatError);
}

TEST(ReadPrompts, RefusesTwoPromptsOfOneName) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.write("p.json", R"({"prompts": [
      {"id": "x", "token_ids": [1]}, {"id": "x", "token_ids": [2]}]})");

  EXPECT_THROW(read_prompts(path), FormatError);
}

TEST(ReferenceBundle, ReadsTheBundlesOfOtherPrograms) {
  ASSAY_SHARED_OR_SKIP(path, "references/llama-tiny");

  const ReferenceBundle bundle = ReferenceBundle::open(path);

  EXPECT_EQ(bundle.prompts().size(), 21u);
  EXPECT_EQ(bundle.vocab_size(), 8192);
  EXPECT_EQ(bundle.greedy().size(), 8u);
  EXPECT_EQ(bundle.windows()->windows.size(), 40u);
  EXPECT_EQ(bundle.hidden_names().size(), 5u);
  // The mean of the stored scores is that of nll.json.
  NllComparer sums;
  for (int64_t i = 0; i < 40; ++i) {
    sums.add({bundle.window_scores(i), bundle.window_scores(i), {}});
  }
  const NllComparison found = sums.finish();
  EXPECT_NEAR(found.mean_a, 3.1158991498580213, 1e-7);
  EXPECT_NEAR(found.buckets[4].mean_a, 3.0416955487580246, 1e-7);
}

}  // namespace
}  // namespace assay
