// What is the same numbers to the weights and another model to whoever talks to it: tokenizers,
// chat templates, ends of text. Every difference must be found.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/tokenizer.h"
#include "tests/verify/models_fixture.h"

namespace assay {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class Texts : public test::Models {
 protected:
  static EquivalenceOptions options() {
    EquivalenceOptions options;
    options.logits = options.greedy = options.self_equality = false;
    return options;
  }
  /// What the check says of a model after `change`, on one line.
  std::string difference(const std::function<void(test::TinyModel&)>& change) {
    test::TinyModel model = test::make_tiny_model();
    change(model);
    const EquivalenceReport report = compare(good(), write(model, "changed"), options());
    EXPECT_FALSE(report.equal());
    EXPECT_EQ(find(report, "weights").outcome, Outcome::kEqual);
    return fmt::format("{}", fmt::join(find(report, "tokenizer").details, "; "));
  }
  static void edit_tokenizer(test::TinyModel& model, const std::string& from,
                             const std::string& to) {
    std::string& text = model.tokenizer_json;
    size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    for (; at != std::string::npos; at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
  }
};

TEST_F(Texts, ThatBecomeOtherIdsMakeModelsDifferent) {
  const Json tokenizer = parse_json(test::make_tiny_model().tokenizer_json, "tokenizer.json");
  const Json& bpe = tokenizer.at("model");

  const auto with_merges = [&](const std::function<void(Json::Array&)>& change) {
    return difference([&](test::TinyModel& model) {
      Json merges = bpe.at("merges");
      change(merges.as_array());
      model.tokenizer_json = Json(tokenizer).set("model", Json(bpe).set("merges", merges)).dump();
    });
  };

  EXPECT_THAT(with_merges([](auto& merges) { std::swap(merges[0], merges[1]); }),
              HasSubstr("merge 0: "));
  EXPECT_THAT(with_merges([](auto& merges) { merges.pop_back(); }), HasSubstr("against none"));
  EXPECT_THAT(difference([](auto& model) { edit_tokenizer(model, "<|pad|>", "<|pap|>"); }),
              HasSubstr("id 2: \"<|pad|>\" against \"<|pap|>\""));
  EXPECT_THAT(difference([](auto& model) {
                edit_tokenizer(model, "\"lstrip\": false", "\"lstrip\": true");
              }),
              HasSubstr("added tokens differ"));
  EXPECT_THAT(difference([](auto& model) { edit_tokenizer(model, "{1,3}", "{1,2}"); }),
              HasSubstr("split rule: llama-bpe against unnamed"));
}

TEST_F(Texts, ThatEndElsewhereMakeModelsDifferent) {
  EXPECT_THAT(difference([](auto& model) {
                model.generation_config = Json::object().set("eos_token_id", 2);
              }),
              HasSubstr("ids that end a text: 1 against 1 2"));
}

TEST_F(Texts, OfAnotherChatTemplateMakeModelsDifferent) {
  const std::string a = good(), b = write(test::make_tiny_model(), "copy");
  write_text_file(a + "/chat_template.jinja", "{{ messages[0]['content'] }} end");
  EXPECT_EQ(find(compare(a, b, options()), "tokenizer").details,
            std::vector<std::string>{"chat template: only in A"});

  write_text_file(b + "/chat_template.jinja", "{{ messages[0]['content'] }} enD");

  EXPECT_EQ(find(compare(a, b, options()), "tokenizer").details,
            std::vector<std::string>{"chat template: differs from byte 31 on"});
}

TEST_F(Texts, AreThoseOfTheFolderInItsGgufFile) {
  for (const std::string& family : test::family_models()) {
    test::TinyModel model = test::read_model(test::family_model_path(family));
    model.tokenizer_json = test::piece_tokenizer_json();
    const std::string a = write(model, family);
    write_text_file(a + "/chat_template.jinja", "{{ messages[0]['content'] }}");

    const Check check = find(compare(a, gguf(a, family + ".gguf"), options()), "tokenizer");

    EXPECT_EQ(check.outcome, Outcome::kEqual)
        << family << ": " << fmt::format("{}", fmt::join(check.details, "; "));
  }
  const std::string a = good();
  EXPECT_EQ(find(compare(a, gguf(a, "bytes.gguf"), options()), "tokenizer").outcome,
            Outcome::kEqual);
}

// One bit in any token or merge of a GGUF file is found, or the file is refused.
TEST_F(Texts, WithOneFlippedBitInAGgufFileAreFound) {
  const std::string folder = good(), a = gguf(folder, "good.gguf"),
                    b = folder_.file("flipped.gguf");
  const std::string bytes = read_text_file(a);
  const size_t begin = bytes.find("tokenizer.ggml.tokens"),
               end = bytes.find("tokenizer.ggml.bos_token_id");
  ASSERT_LT(begin, end);
  size_t n_found = 0;
  for (size_t at = begin + 40; at + 1 < end; at += 97) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    write_text_file(b, flipped);
    try {
      EXPECT_FALSE(compare(a, b, options()).equal()) << at;
      // What a folder has may be read otherwise where a type of the file is unknown.
      EXPECT_NE(find(compare(folder, b, options()), "tokenizer").outcome, Outcome::kEqual) << at;
      ++n_found;
    } catch (const FormatError&) {
    }
  }
  EXPECT_GT(n_found, 5u);
}

TEST_F(Texts, AreNotComparedWhereASideHasNoTokenizer) {
  test::TinyModel model = test::make_tiny_model();
  model.tokenizer_json.clear();

  const EquivalenceReport report = compare(good(), write(model, "bare"), options());

  EXPECT_TRUE(report.equal());
  EXPECT_THAT(report.notes, Contains("tokenizers are not compared: B has none"));
}

TEST_F(Texts, OfABundleMustBecomeItsIds) {
  const std::string a = good(), bundle = folder_.file("bundle");
  const std::vector<int32_t> ids = Tokenizer::from_folder(a).encode("the theory");
  const std::string prompts = folder_.write(
      "prompts.json",
      fmt::format(R"({{"prompts": [{{"id": "x", "text": "the theory", "token_ids": [{}]}}]}})",
                  fmt::join(ids, ",")));
  ASSERT_EQ(run({a, "--write-reference", bundle, "--prompts", prompts}).exit_code, 0);
  EXPECT_EQ(find(compare(a, bundle, {}), "tokenizer").outcome, Outcome::kEqual);
  Json file = read_json_file(bundle + "/prompts.json");
  Json list = file.at("prompts");
  list.as_array()[0].set("text", "then");
  write_text_file(bundle + "/prompts.json", file.set("prompts", list).dump());

  const EquivalenceReport report = compare(a, bundle, {});

  EXPECT_FALSE(report.equal());
  EXPECT_THAT(find(report, "tokenizer").details.front(), HasSubstr("text of prompt \"x\": id"));
}

}  // namespace
}  // namespace assay
