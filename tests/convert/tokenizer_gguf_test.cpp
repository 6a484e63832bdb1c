#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/gguf.h"
#include "convert/tokenizer.h"
#include "small_tokenizer.h"
#include "tests/support/shared_data.h"

namespace assay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;
using Strings = std::vector<std::string>;

enum : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

/// The keys of a converted model (llama.cpp's convert_hf_to_gguf.py) with `n_tokens` ids.
GgufMetadata metadata_of(const Tokenizer& tokenizer, int32_t n_tokens) {
  Strings tokens, merges;
  std::vector<int32_t> types;
  for (int32_t id = 0; id < n_tokens; ++id) {
    const auto token = tokenizer.token(id);
    tokens.push_back(token.value_or("[PAD" + std::to_string(id) + "]"));
    types.push_back(token ? kNormal : kUnused);
  }
  for (const AddedToken& token : tokenizer.added_tokens()) {
    types[static_cast<size_t>(token.id)] = token.special ? kControl : kUserDefined;
  }
  for (const auto& [left, right] : tokenizer.merges()) merges.push_back(left + " " + right);
  GgufMetadata metadata;
  metadata.set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.set("tokenizer.ggml.pre", tokenizer.gguf_pre().value());
  metadata.set("tokenizer.ggml.tokens", GgufArray{tokens});
  metadata.set("tokenizer.ggml.token_type", GgufArray{types});
  metadata.set("tokenizer.ggml.merges", GgufArray{merges});
  if (const auto id = tokenizer.bos_id()) {
    metadata.set("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(*id));
  }
  if (const auto id = tokenizer.eos_id()) {
    metadata.set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(*id));
  }
  return metadata;
}

GgufMetadata small_metadata() {
  Json json = test::byte_level_json({{"a", "b"}});
  json.set(
      "added_tokens",
      Json::array().push(test::added_token(257, "<s>")).push(test::added_token(258, "<note>", "")));
  return metadata_of(test::make_tokenizer(json), 261);
}

template <class ErrorType>
std::string message_of(const GgufMetadata& metadata) {
  try {
    Tokenizer::from_gguf(metadata, "small.gguf");
  } catch (const ErrorType& error) {
    return error.what();
  }
  return "";
}

void expect_same(const Tokenizer& tokenizer, const Tokenizer& from_gguf, const Json& cases) {
  for (const Json& row : cases.as_array()) {
    const std::string& text = row.at("text").as_string();

    EXPECT_EQ(from_gguf.encode(text), tokenizer.encode(text)) << text;
    EXPECT_EQ(from_gguf.decode(tokenizer.encode(text), true),
              tokenizer.decode(tokenizer.encode(text), true))
        << text;
  }
  EXPECT_EQ(from_gguf.merges(), tokenizer.merges());
  EXPECT_EQ(from_gguf.bos_id(), tokenizer.bos_id());
  EXPECT_EQ(from_gguf.eos_id(), tokenizer.eos_id());
  EXPECT_EQ(from_gguf.gguf_pre(), tokenizer.gguf_pre());
}

TEST(TokenizerFromGguf, EqualsTheTokenizerOfTheFolder) {
  const Tokenizer tokenizer = Tokenizer::from_folder(test::source_path("tests/data/llama-tiny"));
  const Json reference = read_json_file(test::source_path("tests/data/llama_tiny_tokens.json"));

  const Tokenizer from_gguf = Tokenizer::from_gguf(metadata_of(tokenizer, 8192), "tiny.gguf");

  expect_same(tokenizer, from_gguf, reference.at("cases"));
}

TEST(TokenizerFromGguf, EqualsTheTokenizerOfSharedFolders) {
  for (const auto& [folder, cases, n_tokens] :
       {std::tuple{"models/qwen3_5-tiny", "references/tokenizers/qwen3_5.json", 8192},
        std::tuple{"tokenizers/qwen3", "references/tokenizers/qwen3_real.json", 151936}}) {
    ASSAY_SHARED_OR_SKIP(path, folder);
    ASSAY_SHARED_OR_SKIP(cases_path, cases);
    const Tokenizer tokenizer = Tokenizer::from_folder(path);

    const Tokenizer from_gguf = Tokenizer::from_gguf(metadata_of(tokenizer, n_tokens), "x.gguf");

    expect_same(tokenizer, from_gguf, read_json_file(cases_path).at("cases"));
  }
}

TEST(TokenizerFromGguf, ReadsTypesOfTokens) {
  const Tokenizer tokenizer = Tokenizer::from_gguf(small_metadata(), "small.gguf");

  EXPECT_THAT(tokenizer.encode("ab<s><note>"), ElementsAre(256, 257, 258));
  EXPECT_THAT(tokenizer.encode("<note>", {.parse_special = false}), ElementsAre(258));
  EXPECT_EQ(tokenizer.decode(Ids{257, 258}, true), "<note>");
  EXPECT_EQ(tokenizer.vocab_size(), 259);
  EXPECT_EQ(tokenizer.token(260), std::nullopt);
  EXPECT_EQ(tokenizer.encode("[PAD260]").size(), 8u);
}

TEST(TokenizerFromGguf, AddsBosAndEosAsTheFileSays) {
  GgufMetadata metadata = small_metadata();
  metadata.set("tokenizer.ggml.add_bos_token", true);
  metadata.set("tokenizer.ggml.add_eos_token", true);
  EXPECT_THAT(message_of<FormatError>(metadata), HasSubstr("tokenizer.ggml.bos_token_id"));
  metadata.set("tokenizer.ggml.bos_token_id", uint32_t{257});
  metadata.set("tokenizer.ggml.eos_token_id", uint32_t{258});

  const Tokenizer tokenizer = Tokenizer::from_gguf(metadata, "small.gguf");

  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(257, 256, 258));
  EXPECT_EQ(tokenizer.bos_id(), 257);
  EXPECT_EQ(tokenizer.eos_id(), 258);
  metadata.set("tokenizer.ggml.eos_token_id", uint32_t{260});
  EXPECT_THAT(message_of<FormatError>(metadata), HasSubstr("no token has the id 260"));
}

TEST(TokenizerFromGguf, LlamaAddsBosUnlessTheFileSaysNo) {
  GgufMetadata metadata = small_metadata();
  metadata.set("tokenizer.ggml.pre", std::string("llama-bpe"));
  metadata.set("tokenizer.ggml.bos_token_id", uint32_t{257});

  EXPECT_THAT(Tokenizer::from_gguf(metadata, "x").encode("ab"), ElementsAre(257, 256));
  metadata.set("tokenizer.ggml.add_bos_token", false);
  EXPECT_THAT(Tokenizer::from_gguf(metadata, "x").encode("ab"), ElementsAre(256));
}

TEST(TokenizerFromGguf, Case_B15_UnknownSplitRuleIsAnError) {
  GgufMetadata metadata = small_metadata();
  metadata.set("tokenizer.ggml.pre", std::string("no-such-rule"));

  EXPECT_THAT(message_of<UnsupportedError>(metadata),
              HasSubstr("small.gguf: tokenizer.ggml.pre: \"no-such-rule\" is not implemented"));
  metadata.set("tokenizer.ggml.model", std::string("bert"));
  EXPECT_THAT(message_of<UnsupportedError>(metadata), HasSubstr("tokenizer.ggml.model: \"bert\""));
}

TEST(TokenizerFromGguf, Case_B28_MissingMergesAreAnError) {
  GgufMetadata metadata = small_metadata();
  metadata.set("tokenizer.ggml.merges", GgufArray{Strings{}});
  EXPECT_THAT(message_of<FormatError>(metadata), HasSubstr("tokenizer.ggml.merges: is empty"));
  metadata.set("tokenizer.ggml.merges", GgufArray{Strings{"ab"}});
  EXPECT_THAT(message_of<FormatError>(metadata), HasSubstr("entry 0, \"ab\""));
  metadata.set("tokenizer.ggml.merges", GgufArray{Strings{"a x"}});
  EXPECT_THAT(message_of<FormatError>(metadata), HasSubstr("merge 0: \"ax\""));
}

TEST(TokenizerFromGguf, RefusesContradictoryKeys) {
  const auto changed = [](std::string_view key, GgufValue value) {
    GgufMetadata metadata = small_metadata();
    metadata.set(key, std::move(value));
    return message_of<Error>(metadata);
  };

  EXPECT_THAT(message_of<FormatError>(GgufMetadata{}), HasSubstr("holds no complete tokenizer"));
  EXPECT_THAT(changed("tokenizer.ggml.token_type", GgufArray{std::vector<int32_t>{1}}),
              HasSubstr("has 1 entries for 261 tokens"));
  EXPECT_THAT(changed("tokenizer.ggml.token_type", GgufArray{std::vector<int32_t>(261, 7)}),
              HasSubstr("type 7 of token 0"));
  EXPECT_THAT(changed("tokenizer.ggml.tokens", GgufArray{Strings(261, "a")}),
              HasSubstr("stands there twice"));
  Strings tokens(261, "\xE5\x9B");
  EXPECT_THAT(changed("tokenizer.ggml.tokens", GgufArray{tokens}),
              HasSubstr("entry 0 is not valid UTF-8"));
  EXPECT_THAT(changed("tokenizer.ggml.tokens", std::string("a")), HasSubstr("array of strings"));
}

}  // namespace
}  // namespace assay
