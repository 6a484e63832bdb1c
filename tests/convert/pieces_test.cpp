// Tokenizers of pieces: Unigram, SentencePiece files, Metaspace, GGUF vocabularies with scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/gguf.h"
#include "convert/tokenizer.h"
#include "convert/tokenizer/sentencepiece.h"
#include "small_tokenizer.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

std::string piece_file(const std::string& name) {
  return test::source_path("tests/data/pieces/" + name);
}

Ids ids_of(const Json& json) {
  Ids ids;
  for (const Json& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_integer()));
  return ids;
}

/// Ids and text of the libraries. SentencePiece takes the prefix off once, and so do we; it spells
/// the unknown token as a mark of its own, which is not compared.
TEST(Pieces, EveryCaseOfTheLibraries) {
  const Json all = read_json_file(piece_file("cases.json"));
  int n_cases = 0;
  for (const Json& model : all.at("models").as_array()) {
    const std::string& file = model.at("file").as_string();
    const Tokenizer tokenizer = Tokenizer::from_file(piece_file(file));
    for (const Json& row : model.at("cases").as_array()) {
      const std::string& text = row.at("text").as_string();
      const Ids expected = ids_of(row.at("ids"));
      const bool unknown = std::count(expected.begin(), expected.end(), 0) > 0;
      ++n_cases;

      EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = false, .parse_special = false}),
                expected)
          << file << ": " << text;
      if (!unknown) {
        EXPECT_EQ(tokenizer.decode(expected), row.at("decoded").as_string()) << file;
      }
    }
  }
  EXPECT_GT(n_cases, 600);
}

/// Every scheme of Metaspace before a BPE model with bytes, as Mistral's third version has it, with
/// special and other added tokens anywhere, and after normalizers that drop the first character.
TEST(Pieces, MetaspacePutsItsMarkWhereTheLibraryDoes) {
  const Json tokenizer_json = read_json_file(piece_file("metaspace_bpe.json"));
  const Json all = read_json_file(piece_file("metaspace_bpe_cases.json"));
  int n_cases = 0;
  for (const Json& rule : all.at("rules").as_array()) {
    Json json = tokenizer_json;
    json.set("normalizer", rule.at("normalizer")).set("pre_tokenizer", rule.at("pre_tokenizer"));
    const Tokenizer tokenizer = Tokenizer::from_json(json, "x");
    for (const Json& row : rule.at("cases").as_array()) {
      const std::string& text = row.at("text").as_string();
      const Ids expected = ids_of(row.at("ids"));
      ++n_cases;

      EXPECT_EQ(tokenizer.encode(text), expected)
          << rule.at("pre_tokenizer").dump(0) << rule.at("normalizer").dump(0) << ": " << text;
      EXPECT_EQ(tokenizer.decode(expected, true), row.at("decoded").as_string()) << text;
    }
  }
  EXPECT_GT(n_cases, 700);
}

TEST(SentencePiece, TextsOfAMapComeOutPieceByPiece) {
  for (const char* file : {"bpe_mapped.model", "unigram_mapped.model"}) {
    const Tokenizer tokenizer = Tokenizer::from_file(piece_file(file));
    const std::optional<int32_t> space = tokenizer.id_of("\u2581");
    Ids ids(3, space.value());  // none to three of them are dropped
    for (const int32_t id : tokenizer.encode("the end of it", {.add_special_tokens = false})) {
      ids.push_back(id);
    }
    Tokenizer::Stream stream(tokenizer);
    std::string text;
    int n_parts = 0;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      n_parts += part.empty() ? 0 : 1;
      text += part;
    }
    text += stream.finish();

    EXPECT_EQ(text, tokenizer.decode(ids)) << file;
    EXPECT_GT(n_parts, 2) << file;
    EXPECT_EQ(text.starts_with(' '), std::string_view(file) == "bpe_mapped.model");
    EXPECT_EQ(tokenizer.space_prefix(), std::nullopt);  // GGUF cannot say what the map does
  }
}

TEST(Pieces, AFolderWithTokenizerModelAloneIsRead) {
  const test::TemporaryDirectory folder;
  folder.write("tokenizer.model", read_text_file(piece_file("bpe.model")));

  const Tokenizer plain = Tokenizer::from_folder(folder.path());
  folder.write("tokenizer_config.json",
               R"({"add_bos_token": false, "add_eos_token": true, "eos_token": "<end>",
                   "added_tokens_decoder": {"1000": {"content": "<end>", "special": true},
                                            "2": {"content": "</s>", "special": true}}})");
  const Tokenizer configured = Tokenizer::from_folder(folder.path());

  EXPECT_EQ(plain.bos_id(), 1);
  EXPECT_EQ(plain.encode("").size(), 1u);
  EXPECT_EQ(plain.encode("<s>x").size(), plain.encode("x").size() + 1);
  EXPECT_THAT(configured.encode(""), ElementsAre(2));
  EXPECT_EQ(configured.eos_id(), 1000);
  EXPECT_THAT(configured.encode("<end>"), ElementsAre(1000, 2));
}

/// The keys of a GGUF file for a SentencePiece model.
GgufMetadata scores_metadata(const std::string& file) {
  const Tokenizer tokenizer = Tokenizer::from_file(piece_file(file));
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    tokens.push_back(*tokenizer.token(id));
    scores.push_back(-static_cast<float>(id));  // as the trainer gives them
    types.push_back(id == 0 ? 2 : id < 3 ? 3 : tokens.back().starts_with("<0x") ? 6 : 1);
  }
  GgufMetadata metadata;
  metadata.set("tokenizer.ggml.model", std::string("llama"));
  metadata.set("tokenizer.ggml.tokens", GgufArray{tokens});
  metadata.set("tokenizer.ggml.scores", GgufArray{scores});
  metadata.set("tokenizer.ggml.token_type", GgufArray{types});
  metadata.set("tokenizer.ggml.bos_token_id", uint32_t{1});
  metadata.set("tokenizer.ggml.eos_token_id", uint32_t{2});
  return metadata;
}

TEST(Pieces, AGgufVocabularyWithScoresGivesTheIdsOfItsSentencePieceFile) {
  const Tokenizer tokenizer = Tokenizer::from_file(piece_file("bpe.model"));
  const Tokenizer from_gguf = Tokenizer::from_gguf(scores_metadata("bpe.model"), "x.gguf");

  const Json all = read_json_file(piece_file("cases.json"));
  for (const Json& row : all.at("models").as_array()[0].at("cases").as_array()) {
    const std::string& text = row.at("text").as_string();
    EXPECT_EQ(from_gguf.encode(text), tokenizer.encode(text)) << text;
    EXPECT_EQ(from_gguf.decode(from_gguf.encode(text), true),
              tokenizer.decode(tokenizer.encode(text), true));
  }
}

TEST(Pieces, Case_B19_TheSpaceInFrontIsWhatTheFileSays) {
  GgufMetadata metadata = scores_metadata("bpe.model");
  const auto first = [&] {
    const Tokenizer tokenizer = Tokenizer::from_gguf(metadata, "x.gguf");
    return *tokenizer.token(tokenizer.encode("the").at(1));
  };

  EXPECT_THAT(first(), testing::StartsWith("\u2581"));
  metadata.set("tokenizer.ggml.add_space_prefix", false);
  EXPECT_THAT(first(), testing::Not(testing::StartsWith("\u2581")));
}

TEST(Pieces, RefusesVocabulariesThatDoNotHoldTogether) {
  const auto message = [](std::string_view key, GgufValue value) {
    GgufMetadata metadata = scores_metadata("bpe.model");
    metadata.set(key, std::move(value));
    try {
      Tokenizer::from_gguf(metadata, "x.gguf");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };

  EXPECT_THAT(message("tokenizer.ggml.scores", GgufArray{std::vector<float>{1}}),
              HasSubstr("has 1 entries"));
  EXPECT_THAT(message("tokenizer.ggml.scores", GgufArray{std::vector<float>(1000, NAN)}),
              HasSubstr("is not finite"));
  EXPECT_THAT(message("tokenizer.ggml.tokens", GgufArray{std::vector<std::string>(1000, "a")}),
              HasSubstr("stands there twice"));
  EXPECT_THAT(message("tokenizer.ggml.unknown_token_id", uint32_t{5000}),
              HasSubstr("no token has the id 5000"));
}

TEST(Pieces, GemmasGgufVocabularyEqualsTheFolder) {
  ASSAY_SHARED_OR_SKIP(folder, "models/gemma4-tiny");
  ASSAY_SHARED_OR_SKIP(cases_path, "references/tokenizers/gemma4.json");
  const Tokenizer tokenizer = Tokenizer::from_folder(folder);
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    tokens.push_back(*tokenizer.token(id));
    types.push_back(id < 6 ? 3 : id < 262 ? 6 : 1);
  }
  for (const auto& [left, right] : tokenizer.merges()) merges.push_back(left + " " + right);
  GgufMetadata metadata;
  metadata.set("tokenizer.ggml.model", std::string("gemma4"));
  metadata.set("tokenizer.ggml.tokens", GgufArray{tokens});
  metadata.set("tokenizer.ggml.token_type", GgufArray{types});
  metadata.set("tokenizer.ggml.merges", GgufArray{merges});
  metadata.set("tokenizer.ggml.bos_token_id", uint32_t{2});
  metadata.set("tokenizer.ggml.unknown_token_id", uint32_t{3});

  const Tokenizer from_gguf = Tokenizer::from_gguf(metadata, "x.gguf");

  const Json all = read_json_file(cases_path);
  for (const Json& row : all.at("cases").as_array()) {
    const std::string& text = row.at("text").as_string();
    EXPECT_EQ(from_gguf.encode(text), tokenizer.encode(text)) << text;
    EXPECT_EQ(from_gguf.decode(ids_of(row.at("ids_special")), true),
              row.at("decoded_skip_special").as_string());
  }
}

// Gemma 4's files call them user-defined, so that they are shown; in a text they are special.
TEST(Pieces, Case_B24_ShownSpecialTokensOfGemma4AreNotMadeOfPlainText) {
  GgufMetadata metadata;
  metadata.set("tokenizer.ggml.model", std::string("gemma4"));
  metadata.set("tokenizer.ggml.tokens",
               GgufArray{std::vector<std::string>{"<bos>", "<|tool_call>", "<tag>", "a", "b", "ab",
                                                  "<unk>"}});
  metadata.set("tokenizer.ggml.token_type", GgufArray{std::vector<int32_t>{3, 4, 4, 1, 1, 1, 3}});
  metadata.set("tokenizer.ggml.merges", GgufArray{std::vector<std::string>{"a b"}});
  metadata.set("tokenizer.ggml.bos_token_id", uint32_t{0});
  metadata.set("tokenizer.ggml.unknown_token_id", uint32_t{6});

  const Tokenizer tokenizer = Tokenizer::from_gguf(metadata, "x.gguf");

  EXPECT_THAT(tokenizer.encode("<|tool_call>ab<tag>"), ElementsAre(0, 1, 5, 2));
  EXPECT_THAT(tokenizer.encode("<|tool_call><tag>", {.parse_special = false}),
              testing::AllOf(testing::Contains(2), testing::Not(testing::Contains(1))));
}

TEST(SentencePiece, EveryPrefixIsRefusedOrTheSameModel) {
  const std::string bytes = read_text_file(piece_file("bpe_unknown.model"));
  const auto read = [](std::string_view part) {
    return tokenization::read_sentencepiece(std::as_bytes(std::span(part)), "x.model");
  };
  const size_t n_pieces = read(bytes).all_tokens.size();

  int n_refused = 0;
  for (size_t n = 0; n < bytes.size(); ++n) {
    try {
      // What follows normalizer_spec, the last part that says something, may be missing.
      EXPECT_EQ(read(std::string_view(bytes).substr(0, n)).all_tokens.size(), n_pieces) << n;
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), HasSubstr("x.model"));
      ++n_refused;
    }
  }
  EXPECT_GT(n_refused, static_cast<int>(bytes.size()) - 8);
}

/// Places of the bytes of a model that are its structure: tags, lengths, and numbers but for two
/// switches of normalizer_spec. Left out are texts, scores and other fractions, and the character
/// map, where one is as good as another, and the tag of model_type: without it a model is unigram.
void find_structure(std::string_view bytes, size_t at, size_t end, uint32_t inside,
                    std::vector<size_t>& places) {
  const auto varint = [&](bool is_structure) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes[at]);
      if (is_structure) places.push_back(at);
      ++at;
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < end) {
    const uint64_t tag = varint(true);
    const auto number = static_cast<uint32_t>(tag >> 3);
    if (inside == 2 && number == 3) places.pop_back();
    if ((tag & 7) == 0) {
      varint(inside != 3 || (number != 3 && number != 4));
    } else if ((tag & 7) == 5) {
      at += 4;
    } else {
      const size_t n = varint(true);
      if (inside == 0) find_structure(bytes, at, at + n, number, places);
      at += n;
    }
  }
}

/// What a model says.
std::string content_of(const tokenization::Definition& model) {
  std::string text;
  for (int32_t id = 0; id < model.all_tokens.id_end(); ++id) {
    text += std::string(model.all_tokens.token(id)) + "\n";
  }
  for (const float score : model.scores) text += std::to_string(score) + " ";
  if (model.unigram) {
    for (const double score : model.unigram->scores) text += std::to_string(score) + " ";
    text += std::to_string(model.unigram->options.byte_fallback);
  }
  for (const AddedToken& token : model.added_tokens) text += token.content + " ";
  text += std::to_string(model.bos_id.value_or(-1)) + std::to_string(model.eos_id.value_or(-1));
  return text + std::to_string(model.bpe.byte_fallback) + std::to_string(model.merges.size());
}

TEST(SentencePiece, EveryFlippedBitOfTagsLengthsAndNumbersIsRefusedOrReadsTheSame) {
  for (const char* file : {"bpe_unknown.model", "unigram_mapped.model"}) {
    std::string bytes = read_text_file(piece_file(file));
    const auto read = [&] {
      return content_of(
          tokenization::read_sentencepiece(std::as_bytes(std::span(bytes)), "x.model"));
    };
    const std::string original = read();
    std::vector<size_t> places;
    find_structure(bytes, 0, bytes.size(), 0, places);
    ASSERT_GT(places.size(), 1500u);
    int n_refused = 0, n_same = 0;
    for (const size_t place : places) {
      for (int bit = 0; bit < 8; ++bit) {
        bytes[place] = static_cast<char>(bytes[place] ^ (1 << bit));
        try {
          EXPECT_TRUE(read() == original) << file << ": byte " << place << ", bit " << bit;
          ++n_same;
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("x.model: "));
          ++n_refused;
        }
        bytes[place] = static_cast<char>(bytes[place] ^ (1 << bit));
      }
    }
    EXPECT_GT(n_refused, 50 * n_same) << file;
  }
}

TEST(SentencePiece, NamesThePartThatIsNotImplemented) {
  const auto message = [](std::string bytes) {
    try {
      tokenization::read_sentencepiece(std::as_bytes(std::span(bytes)), "x.model");
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string piece(
      "\x0a\x08\x0a\x01"
      "a\x15\0\0\0\0",
      10);
  const std::string no_extra("\x1a\x02\x20\x00", 4), trainer("\x12\x00", 2);

  EXPECT_THAT(message(piece + trainer + no_extra + "\x2a\x03\x12\x01x"),
              HasSubstr("denormalizer_spec.precompiled_charsmap"));
  EXPECT_THAT(message(piece + no_extra + "\x12\x02\x18\x04"), HasSubstr("model_type 4"));
  EXPECT_THAT(message(piece + trainer + std::string("\x1a\x04\x20\x00\x28\x00", 6)),
              HasSubstr("escape_whitespaces"));
}

TEST(SentencePiece, RefusesACharacterMapThatDoesNotHoldTogether) {
  std::string bytes = read_text_file(piece_file("bpe_mapped.model"));
  const auto message = [&] {
    try {
      tokenization::read_sentencepiece(std::as_bytes(std::span(bytes)), "x.model");
    } catch (const FormatError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(), "");
  const size_t map = bytes.rfind("fi", bytes.rfind("rules.tsv"));  // a replacement: "fi"
  ASSERT_NE(map, std::string::npos);

  bytes[map] = '\xff';
  EXPECT_THAT(message(), testing::AllOf(HasSubstr("x.model: byte "),
                                        HasSubstr("precompiled_charsmap has replacements")));
}

TEST(Unigram, LongTextsTakeLinearTimeAndMemory) {
  const Tokenizer tokenizer = Tokenizer::from_file(piece_file("unigram.model"));
  const std::string letters(1 << 20, 'a'), spaces(1 << 20, ' ');

  EXPECT_GT(tokenizer.encode(letters).size(), 1000u);
  EXPECT_GT(tokenizer.encode(spaces).size(), 1000u);
}

TEST(Unigram, SpecialTokensAreNotMadeOfPlainText) {
  const Json json = parse_json(
      R"({"version": "1.0", "added_tokens": [{"id": 1, "content": "<s>", "single_word": false,
          "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
          "model": {"type": "Unigram", "unk_id": 0,
                    "vocab": [["<unk>", 0], ["<s>", -1], ["<", -2], ["s", -2], [">", -2]]}})",
      "x");
  const Tokenizer tokenizer = test::make_tokenizer(json);

  EXPECT_THAT(tokenizer.encode("<s>"), ElementsAre(1));
  EXPECT_THAT(tokenizer.encode("<s>", {.parse_special = false}), ElementsAre(2, 3, 4));
  EXPECT_THAT(tokenizer.encode("xy<"), ElementsAre(0, 2));
}

TEST(Unigram, RefusesBadVocabularies) {
  const auto message = [](const std::string& model) {
    try {
      test::make_tokenizer(parse_json(R"({"version": "1.0", "model": )" + model + "}", "x"));
    } catch (const FormatError& error) {
      return std::string(error.what());
    }
    return std::string();
  };

  EXPECT_THAT(message(R"({"type": "Unigram", "vocab": []})"), HasSubstr("model.vocab"));
  EXPECT_THAT(message(R"({"type": "Unigram", "vocab": [["a"]]})"), HasSubstr("model.vocab[0]"));
  EXPECT_THAT(message(R"({"type": "Unigram", "vocab": [["a", 0], ["a", 1]]})"), HasSubstr("twice"));
  EXPECT_THAT(message(R"({"type": "Unigram", "unk_id": 1, "vocab": [["a", 0]]})"),
              HasSubstr("unk_id"));
}

}  // namespace
}  // namespace assay
