#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <variant>
#include <vector>

#include "convert/core/error.h"
#include "convert/tokenizer/definition.h"
#include "convert/tokenizer/gguf_pre.h"
#include "convert/tokenizer/scored_merges.h"
#include "convert/tokenizer/sentencepiece.h"
#include "convert/tokenizer/unicode.h"
#include "convert/tokenizer/vocabulary_kind.h"

namespace assay::tokenization {
namespace {

using Strings = std::vector<std::string>;

class Reader {
 public:
  Reader(const GgufMetadata& metadata, std::string_view source)
      : metadata_(metadata), source_(source) {}

  Definition read() {
    definition_.source = source_;
    const std::string model = string("tokenizer.ggml.model");
    const VocabularyKind* kind = find_vocabulary_kind(model);
    if (kind == nullptr) {
      throw UnsupportedError(place("tokenizer.ggml.model") + "\"" + model +
                             "\" is not implemented; known are " + vocabulary_kind_names());
    }
    if (kind->has_pieces) return read_pieces(*kind);
    const std::string name = string("tokenizer.ggml.pre");
    const std::optional<GgufPre> pre = find_gguf_pre(name);
    if (!pre) {
      throw UnsupportedError(place("tokenizer.ggml.pre") + "\"" + name +
                             "\" is not implemented; known are " + gguf_pre_names());
    }
    read_tokens(*kind);
    read_merges();
    definition_.bpe.ignore_merges = pre->ignore_merges;
    build(*pre);
    read_specials(pre->add_bos);
    if (const auto canonical =
            gguf_pre_of(pre->normalizer, pre->pre_tokenizer, pre->ignore_merges)) {
      definition_.gguf_pre = std::string(*canonical);
    }
    return std::move(definition_);
  }

 private:
  std::string place(std::string_view key) const { return source_ + ": " + std::string(key) + ": "; }

  std::string string(std::string_view key) const {
    const std::optional<std::string> value = metadata_.string(key);
    if (!value) throw FormatError(place(key) + "is missing; the file holds no complete tokenizer");
    return *value;
  }

  template <class Element>
  const std::vector<Element>& array(std::string_view key, std::string_view expected) const {
    const GgufValue* value = metadata_.find(key);
    if (!value) throw FormatError(place(key) + "is missing; the file holds no complete tokenizer");
    const auto* found = std::get_if<GgufArray>(value);
    const auto* elements = found ? std::get_if<std::vector<Element>>(&found->values) : nullptr;
    if (!elements) throw FormatError(place(key) + "must be an array of " + std::string(expected));
    return *elements;
  }

  Definition read_pieces(const VocabularyKind& kind) {
    read_tokens(kind);
    if (kind.has_merges) {
      read_merges();
    } else {
      const auto& scores = array<float>("tokenizer.ggml.scores", "float32");
      if (scores.size() != n_tokens_) {
        throw FormatError(place("tokenizer.ggml.scores") + "has " + std::to_string(scores.size()) +
                          " entries for " + std::to_string(n_tokens_) + " tokens");
      }
      // User-defined tokens have no score that says an order: they are made before all others.
      std::vector<float> order = scores;
      for (const int32_t id : user_defined_) {
        order[static_cast<size_t>(id)] = std::numeric_limits<float>::max();
      }
      ScoredMerges merges = merges_of_scores(definition_.vocabulary, order, merged_, source_);
      definition_.merges = std::move(merges.merges);
      definition_.merge_ranks = std::move(merges.ranks);
      definition_.scores = scores;
    }
    const bool falls_back = definition_.all_tokens.find("<0x00>").has_value();
    set_piece_rules(
        {.add_space_prefix =
             metadata_.boolean("tokenizer.ggml.add_space_prefix").value_or(kind.space_prefix),
         .byte_fallback = falls_back},
        definition_);
    if (const auto unk = special("tokenizer.ggml.unknown_token_id")) unk_id_ = unk;
    if (unk_id_) definition_.bpe.unk_token = std::string(definition_.all_tokens.token(*unk_id_));
    read_specials(true);
    return std::move(definition_);
  }

  /// The tokens with the spaces of user-defined ones, which converters spell as in a text, as in
  /// pieces again, where that is not another token.
  static Strings as_pieces(const Strings& tokens, const std::vector<int32_t>& types) {
    Strings spelled = tokens;
    const std::unordered_set<std::string_view> all(tokens.begin(), tokens.end());
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (static_cast<TokenType>(types[i]) != TokenType::kUserDefined) continue;
      std::string piece;
      for (const char c : tokens[i]) {
        if (c == ' ') {
          piece += kMetaSpace;
        } else {
          piece += c;
        }
      }
      if (!all.contains(piece)) spelled[i] = std::move(piece);
    }
    return spelled;
  }

  /// Text may become special tokens only where they are looked for; with `pieces`, merges may
  /// nevertheless go through them.
  void read_tokens(const VocabularyKind& kind) {
    const bool pieces = kind.has_pieces;
    const auto& written = array<std::string>("tokenizer.ggml.tokens", "strings");
    const auto& types = array<int32_t>("tokenizer.ggml.token_type", "int32");
    if (types.size() != written.size()) {
      throw FormatError(place("tokenizer.ggml.token_type") + "has " + std::to_string(types.size()) +
                        " entries for " + std::to_string(written.size()) + " tokens");
    }
    const std::vector<std::string> spelled = pieces ? as_pieces(written, types) : Strings();
    const std::vector<std::string>& tokens = pieces ? spelled : written;
    if (tokens.size() > static_cast<size_t>(Vocabulary::kIdLimit)) {
      throw FormatError(place("tokenizer.ggml.tokens") + "has " + std::to_string(tokens.size()) +
                        " entries; at most " + std::to_string(Vocabulary::kIdLimit) +
                        " can be read");
    }
    n_tokens_ = tokens.size();
    std::vector<int32_t> added;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      if (valid_utf8_prefix(tokens[i]) != tokens[i].size()) {
        throw FormatError(place("tokenizer.ggml.tokens") + "entry " + std::to_string(i) +
                          " is not valid UTF-8");
      }
      const auto type = static_cast<TokenType>(types[i]);
      if (type == TokenType::kNormal || type == TokenType::kUserDefined) merged_.push_back(id);
      if (type == TokenType::kUserDefined) user_defined_.push_back(id);
      if (type == TokenType::kUnknown) unk_id_ = id;
      if (pieces && (type == TokenType::kUnknown || type == TokenType::kControl ||
                     type == TokenType::kUserDefined)) {
        if (!definition_.vocabulary.add(tokens[i], id)) {
          throw FormatError(place("tokenizer.ggml.tokens") + "\"" + tokens[i] + "\" (id " +
                            std::to_string(i) + ") stands there twice");
        }
      }
      switch (type) {
        case TokenType::kUnused:
          // Ids without a token are filled with [PAD<id>]; text must never become one.
          if (tokens[i] == "[PAD" + std::to_string(i) + "]") break;
          [[fallthrough]];
        case TokenType::kNormal:
        case TokenType::kByte:
          if (!definition_.vocabulary.add(tokens[i], id)) {
            throw FormatError(place("tokenizer.ggml.tokens") + "\"" + tokens[i] + "\" (id " +
                              std::to_string(i) + ") stands there twice");
          }
          break;
        case TokenType::kUnknown:
        case TokenType::kControl:
        case TokenType::kUserDefined:
          added.push_back(id);
          break;
        default:
          throw UnsupportedError(place("tokenizer.ggml.token_type") + "type " +
                                 std::to_string(types[i]) + " of token " + std::to_string(i) +
                                 " is not known; expected 1 to 6");
      }
    }
    definition_.all_tokens = definition_.vocabulary;
    for (const int32_t id : added) {
      AddedToken token;
      token.id = id;
      token.content = tokens[static_cast<size_t>(id)];
      token.special =
          static_cast<TokenType>(types[static_cast<size_t>(id)]) != TokenType::kUserDefined ||
          kind.shows(token.content);
      if (token.content.empty()) continue;
      add_added_token(definition_, std::move(token), source_ + ": tokenizer.ggml.tokens");
    }
  }

  void read_merges() {
    const std::string_view key = "tokenizer.ggml.merges";
    const auto& merges = array<std::string>(key, "strings");
    if (merges.empty()) {
      throw FormatError(place(key) + "is empty; the file was converted badly");
    }
    definition_.merges.reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      // A piece is never empty, and its spaces are spelled U+0120.
      const std::string_view text = merges[rank];
      const size_t space = text.find(' ', 1);
      const auto left = definition_.vocabulary.find(text.substr(0, space));
      const auto right = space == std::string_view::npos
                             ? std::nullopt
                             : definition_.vocabulary.find(text.substr(space + 1));
      if (!left || !right) {
        throw FormatError(place(key) + "entry " + std::to_string(rank) + ", \"" +
                          std::string(text) + "\", is not two tokens with a space between them");
      }
      definition_.merges.emplace_back(*left, *right);
    }
  }

  void build(const GgufPre& pre) {
    if (!pre.normalizer.is_null()) {
      definition_.normalizer = make_normalizer(Part(pre.normalizer, source_, "normalizer"));
    }
    definition_.pre_tokenizer =
        make_pre_tokenizer(Part(pre.pre_tokenizer, source_, "pre_tokenizer"));
    definition_.bpe.byte_level = definition_.pre_tokenizer.byte_level_model;
    const Json decoder = Json::object().set("type", "ByteLevel");
    definition_.decoder = make_decoder(Part(decoder, source_, "decoder"));
  }

  std::optional<int32_t> special(std::string_view key) const {
    const std::optional<int64_t> id = metadata_.integer(key);
    if (!id) return std::nullopt;
    if (*id < 0 || *id >= definition_.all_tokens.id_end() ||
        !definition_.all_tokens.contains(static_cast<int32_t>(*id))) {
      throw FormatError(place(key) + "no token has the id " + std::to_string(*id));
    }
    return static_cast<int32_t>(*id);
  }

  void read_specials(bool add_bos_by_default) {
    definition_.bos_id = special("tokenizer.ggml.bos_token_id");
    definition_.eos_id = special("tokenizer.ggml.eos_token_id");
    const auto add = [&](std::string_view key, bool fallback, std::string_view id_key,
                         std::optional<int32_t> id, std::vector<int32_t>& ids) {
      if (!metadata_.boolean(key).value_or(fallback)) return;
      if (!id) {
        throw FormatError(place(id_key) + "is missing, and " + std::string(key) + " needs it");
      }
      ids.push_back(*id);
    };
    add("tokenizer.ggml.add_bos_token", add_bos_by_default, "tokenizer.ggml.bos_token_id",
        definition_.bos_id, definition_.post_processor.prefix);
    add("tokenizer.ggml.add_eos_token", false, "tokenizer.ggml.eos_token_id", definition_.eos_id,
        definition_.post_processor.suffix);
  }

  const GgufMetadata& metadata_;
  std::string source_;
  Definition definition_;
  size_t n_tokens_ = 0;
  std::vector<int32_t> merged_;  // ids that merges may make
  std::vector<int32_t> user_defined_;
  std::optional<int32_t> unk_id_;
};

}  // namespace

}  // namespace assay::tokenization

namespace assay {

Tokenizer Tokenizer::from_gguf(const GgufMetadata& metadata, std::string_view source) {
  return Tokenizer(tokenization::Reader(metadata, source).read());
}

}  // namespace assay
