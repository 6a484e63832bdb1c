#include "convert/gguf_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/families/config_reader.h"
#include "convert/families/family.h"
#include "convert/tokenizer/sentencepiece.h"
#include "convert/tokenizer/vocabulary_kind.h"

namespace assay {
namespace {

using tokenization::SentencePiece;
using tokenization::TokenType;
using tokenization::VocabularyKind;

// Scores of tokens that merges do not make, as the field's converter writes them.
constexpr float kAddedScore = -1000.0f;
constexpr float kPaddingScore = -10000.0f;

Json read_object_if_there(const std::string& path) {
  return file_exists(path) ? read_json_file(path) : Json::object();
}

/// An added token that a folder does not call special, and the field's converter does.
bool looks_special(std::string_view token) {
  constexpr std::string_view kNames[] = {"<pad>", "<mask>", "<2mass>", "[@BOS@]"};
  const auto between = [&](std::string_view begin, std::string_view end) {
    return token.starts_with(begin) && token.ends_with(end);
  };
  return std::find(std::begin(kNames), std::end(kNames), token) != std::end(kNames) ||
         between("<|", "|>") || between("<\uFF5C", "\uFF5C>") || between("<unused", ">");
}

/// "<0x0A>": what stands for a byte that no token holds.
bool is_byte_token(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with(">") &&
         std::isxdigit(static_cast<unsigned char>(token[3])) != 0 &&
         std::isxdigit(static_cast<unsigned char>(token[4])) != 0;
}

/// Scores that make a reader of the vocabulary "llama" merge in the order of `merges`: it joins the
/// pair whose token has the highest score, so a token scores the lower the later it is made.
std::vector<float> scores_of_merges(const Tokenizer& tokenizer, int64_t vocab_size) {
  const std::vector<std::pair<std::string, std::string>> merges = tokenizer.merges();
  std::vector<float> scores(static_cast<size_t>(vocab_size), -static_cast<float>(merges.size()));
  for (size_t rank = merges.size(); rank-- > 0;) {  // the first merge that makes a token counts
    const std::optional<int32_t> id = tokenizer.id_of(merges[rank].first + merges[rank].second);
    if (id) scores[static_cast<size_t>(*id)] = -static_cast<float>(rank);
  }
  return scores;
}

/// The pieces of the tokenizer.model in `folder`, by id, where the tokenizer holds the same and
/// merges in the order of their scores; else none.
std::vector<SentencePiece> pieces_of(const Tokenizer& tokenizer, const std::string& folder) {
  const std::string path = folder + "/tokenizer.model";
  if (!file_exists(path)) return {};
  std::vector<SentencePiece> pieces =
      tokenization::read_bpe_pieces(MappedFile::open(path).bytes(), path);
  std::set<int32_t> added;
  for (const AddedToken& token : tokenizer.added_tokens()) added.insert(token.id);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::optional<std::string> token = tokenizer.token(id);
    if (!token) return {};
    // Folders may spell a byte as the character that it is.
    const bool same =
        *token == pieces[i].text || (pieces[i].type == TokenType::kByte && token->size() == 1);
    if (!same && !added.contains(id)) return {};
  }
  float last = std::numeric_limits<float>::max();
  for (const auto& [left, right] : tokenizer.merges()) {
    const std::optional<int32_t> id = tokenizer.id_of(left + right);
    if (!id || static_cast<size_t>(*id) >= pieces.size()) return {};
    const float score = pieces[static_cast<size_t>(*id)].score;
    if (score > last) return {};
    last = score;
  }
  return pieces;
}

/// Types of the tokens that a folder with a tokenizer.model lists beside it, by id.
std::map<int32_t, TokenType> listed_types(const std::string& folder, const Json& config) {
  std::map<int32_t, TokenType> types;
  const Json added = read_object_if_there(folder + "/added_tokens.json");
  for (const auto& [token, id] : added.as_object()) {
    if (!id.is_integer_in(0, std::numeric_limits<int32_t>::max())) {
      throw FormatError(fmt::format(
          "{}/added_tokens.json: the id of \"{}\" is {}; expected an integer from 0 to {}", folder,
          token, id.dump(0), std::numeric_limits<int32_t>::max()));
    }
    types[static_cast<int32_t>(id.as_integer())] = TokenType::kUserDefined;
  }
  const Json* decoder = config.find("added_tokens_decoder");
  if (decoder == nullptr || !decoder->is_object()) return types;
  for (const auto& [key, entry] : decoder->as_object()) {
    int32_t id = 0;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    const Json* content = entry.is_object() ? entry.find("content") : nullptr;
    if (read.ec != std::errc() || content == nullptr || !content->is_string()) continue;
    const Json* special = entry.find("special");
    const bool control =
        (special != nullptr && *special == Json(true)) || looks_special(content->as_string());
    types[id] = control ? TokenType::kControl : TokenType::kUserDefined;
  }
  return types;
}

std::string with_spaces(std::string_view piece) {
  std::string text;
  const std::string_view mark = tokenization::kMetaSpace;
  for (size_t at = 0; at < piece.size();) {
    const bool is_mark = piece.substr(at).starts_with(mark);
    text += is_mark ? ' ' : piece[at];
    at += is_mark ? mark.size() : 1;
  }
  return text;
}

/// Text, score and type of every token, as the field's converter gives them: those of the pieces of
/// tokenizer.model, where there is one; tokens that the folder's other files add score -1000.
class VocabularyRows {
 public:
  VocabularyRows(const Tokenizer& tokenizer, const VocabularyKind& kind, int64_t vocab_size,
                 std::optional<int32_t> unknown, const std::string& folder, const Json& config)
      : tokenizer_(tokenizer), kind_(kind) {
    for (const AddedToken& token : tokenizer.added_tokens()) {
      const bool control =
          !kind.shows(token.content) && (token.special || looks_special(token.content));
      added_[token.id] = control ? TokenType::kControl : TokenType::kUserDefined;
    }
    if (!kind.has_scores || kind.has_merges) return;
    pieces_ = pieces_of(tokenizer, folder);
    if (pieces_.empty()) {
      scores_ = scores_of_merges(tokenizer, vocab_size);
      if (unknown) added_[*unknown] = TokenType::kUnknown;
    } else {
      listed_ = listed_types(folder, config);
    }
  }

  SentencePiece row(int32_t id) const {
    const std::optional<std::string> token = tokenizer_.token(id);
    if (!token) {
      return {fmt::format("[PAD{}]", id), kind_.has_merges ? kAddedScore : kPaddingScore,
              TokenType::kUnused};
    }
    SentencePiece row = {*token, score_of(id), type_of(id, *token)};
    const bool is_piece = static_cast<size_t>(id) < pieces_.size();
    if (is_piece && (!added_.contains(id) || pieces_[static_cast<size_t>(id)].text == *token)) {
      row = pieces_[static_cast<size_t>(id)];
    }
    if (const auto found = listed_.find(id); found != listed_.end()) {
      row = {*token, kAddedScore, found->second};
    }
    // Readers look for them in texts.
    const bool in_text = kind_.has_pieces && !kind_.has_merges;
    if (in_text && row.type == TokenType::kUserDefined) row.text = with_spaces(row.text);
    return row;
  }

 private:
  float score_of(int32_t id) const {
    return scores_.empty() || added_.contains(id) ? kAddedScore : scores_[static_cast<size_t>(id)];
  }
  TokenType type_of(int32_t id, std::string_view token) const {
    const auto found = added_.find(id);
    if (found != added_.end()) return found->second;
    if (!tokenizer_.is_in_model(id)) return TokenType::kUnused;
    return kind_.has_pieces && is_byte_token(token) ? TokenType::kByte : TokenType::kNormal;
  }

  const Tokenizer& tokenizer_;
  const VocabularyKind& kind_;
  std::map<int32_t, TokenType> added_;
  std::vector<SentencePiece> pieces_;  // of tokenizer.model, by id
  std::map<int32_t, TokenType> listed_;
  std::vector<float> scores_;  // of merges, where there are no pieces
};

/// One token for each row of the embedding, with its type.
void add_tokens(const VocabularyRows& rows, const VocabularyKind& kind, int64_t vocab_size,
                GgufMetadata& metadata) {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (int32_t id = 0; id < vocab_size; ++id) {
    SentencePiece row = rows.row(id);
    tokens.push_back(std::move(row.text));
    scores.push_back(row.score);
    types.push_back(static_cast<int32_t>(row.type));
  }
  metadata.set("tokenizer.ggml.tokens", GgufArray{std::move(tokens)});
  if (kind.has_scores) metadata.set("tokenizer.ggml.scores", GgufArray{std::move(scores)});
  metadata.set("tokenizer.ggml.token_type", GgufArray{std::move(types)});
}

void add_merges(const Tokenizer& tokenizer, GgufMetadata& metadata) {
  std::vector<std::string> merges;
  for (const auto& [left, right] : tokenizer.merges()) {
    std::string pair = left + " " + right;
    if (std::count(pair.begin(), pair.end(), ' ') != 1) {
      throw UnsupportedError(fmt::format(
          "GGUF cannot hold the merge of \"{}\" and \"{}\": a piece has a space", left, right));
    }
    merges.push_back(std::move(pair));
  }
  if (merges.empty()) {
    throw FormatError("the BPE tokenizer has no merges, so that GGUF readers could not use it");
  }
  metadata.set("tokenizer.ggml.merges", GgufArray{std::move(merges)});
}

/// The id of a special token that tokenizer_config.json names, as text or as an object.
std::optional<int32_t> special_id(const Tokenizer& tokenizer, const Json& config,
                                  std::string_view key) {
  const Json* value = config.find(key);
  if (value != nullptr && value->is_object()) value = value->find("content");
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return tokenizer.id_of(value->as_string());
}

/// What the post-processor puts around a text. GGUF knows one BOS in front and one EOS behind; a
/// reader's default depends on the split rule, so that the absence of BOS is said, too.
void add_post_processor(const Tokenizer& tokenizer, std::optional<int32_t> bos,
                        std::optional<int32_t> eos, GgufMetadata& metadata) {
  const std::span<const int32_t> prefix = tokenizer.special_prefix();
  const std::vector<int32_t> all = tokenizer.encode("");
  const std::vector<int32_t> suffix(all.begin() + static_cast<std::ptrdiff_t>(prefix.size()),
                                    all.end());
  const bool plain_prefix = prefix.empty() || (prefix.size() == 1 && prefix.front() == bos);
  const bool plain_suffix = suffix.empty() || (suffix.size() == 1 && suffix.front() == eos);
  if (!plain_prefix || !plain_suffix) {
    throw UnsupportedError(
        "GGUF can only say that BOS is put in front of a text and EOS behind it; the "
        "post-processor of this tokenizer adds other tokens");
  }
  metadata.set("tokenizer.ggml.add_bos_token", !prefix.empty());
  if (!suffix.empty()) metadata.set("tokenizer.ggml.add_eos_token", true);
}

void add_special_ids(const Tokenizer& tokenizer, const Json& config, const ModelSpec& spec,
                     std::optional<int32_t> unknown, GgufMetadata& metadata) {
  const auto add = [&](const std::string& key, std::optional<int32_t> id) {
    if (id) metadata.set(key, static_cast<uint32_t>(*id));
  };
  const std::optional<int32_t> bos = tokenizer.bos_id() ? tokenizer.bos_id() : spec.bos_id;
  std::optional<int32_t> eos = tokenizer.eos_id();
  if (!eos && !spec.stop_ids.empty()) eos = spec.stop_ids.front();
  add("tokenizer.ggml.bos_token_id", bos);
  add("tokenizer.ggml.eos_token_id", eos);
  add("tokenizer.ggml.unknown_token_id", unknown);
  add("tokenizer.ggml.padding_token_id", special_id(tokenizer, config, "pad_token"));

  add_post_processor(tokenizer, bos, eos, metadata);
  if (tokenizer.has_pair_template()) metadata.set("tokenizer.ggml.add_sep_token", false);

  std::vector<int32_t> stop_ids = spec.stop_ids;
  if (eos && !std::count(stop_ids.begin(), stop_ids.end(), *eos)) stop_ids.push_back(*eos);
  std::sort(stop_ids.begin(), stop_ids.end());
  if (stop_ids.size() > 1) metadata.set("assay.stop_token_ids", GgufArray{std::move(stop_ids)});
}

void add_chat_templates(const ChatTemplates& templates, GgufMetadata& metadata) {
  std::vector<std::string> names;
  for (const auto& [name, text] : templates.named) {
    metadata.set("tokenizer.chat_template." + name, text);
    names.push_back(name);
  }
  if (!names.empty()) metadata.set("tokenizer.chat_templates", GgufArray{std::move(names)});
  if (templates.main) metadata.set("tokenizer.chat_template", *templates.main);
}

/// The kind of vocabulary that this tokenizer is in a file of this family.
const VocabularyKind& kind_of(const Tokenizer& tokenizer, const Family& family,
                              const std::string& folder) {
  if (!tokenizer.is_byte_level() && !tokenizer.space_prefix()) {
    throw UnsupportedError(fmt::format(
        "{}: GGUF cannot say what this {} tokenizer does; it can for byte-level BPE, and for BPE "
        "of pieces in which U+2581 stands for every space, as in a tokenizer.model of that kind "
        "without a tokenizer.json beside it",
        folder, tokenizer.model_name()));
  }
  const VocabularyKind* kind = tokenization::find_vocabulary_kind(
      tokenizer.is_byte_level() ? std::string_view("gpt2") : family.gguf_pieces);
  ASSAY_CHECK(kind != nullptr);
  return *kind;
}

/// The tokenizer.model of a folder whose tokenizer.json has the same tokens and a rule for spaces
/// that GGUF has no words for.
std::optional<Tokenizer> pieces_instead(const Tokenizer& tokenizer, const std::string& folder) {
  if (tokenizer.is_byte_level() || tokenizer.space_prefix()) return std::nullopt;
  if (!file_exists(folder + "/tokenizer.json") || !file_exists(folder + "/tokenizer.model")) {
    return std::nullopt;
  }
  Tokenizer pieces = Tokenizer::from_pieces_of_folder(folder);
  bool same = pieces.space_prefix().has_value() && pieces.vocab_size() == tokenizer.vocab_size();
  for (int32_t id = 0; same && id < tokenizer.vocab_size(); ++id) {
    same = pieces.token(id) == tokenizer.token(id);
  }
  if (!same) return std::nullopt;
  return pieces;
}

/// tokenizer.ggml.pre.
std::string split_rule_of(const Tokenizer& tokenizer, const VocabularyKind& kind,
                          const std::optional<std::string>& wanted, const std::string& folder) {
  const std::optional<std::string> known =
      kind.has_pieces ? std::optional<std::string>("default") : tokenizer.gguf_pre();
  if (known && wanted && *wanted != *known) {
    throw UsageError("--pre " + *wanted + ": the split rule of " + folder +
                     " is known, and GGUF calls it " + *known + "; leave --pre out");
  }
  if (known) return *known;
  if (wanted) return *wanted;
  throw UnsupportedError(folder +
                         "/tokenizer.json: GGUF has no name for this split rule; --pre NAME "
                         "writes the one of a reader that has the same rule");
}

}  // namespace

ChatTemplates read_chat_templates(const std::string& folder) {
  ChatTemplates templates;
  const Json config = read_object_if_there(folder + "/tokenizer_config.json");
  const Json* value = config.find("chat_template");
  if (value != nullptr && value->is_string()) {
    templates.main = value->as_string();
  } else if (value != nullptr && value->is_array()) {
    for (const Json& entry : value->as_array()) {
      const ConfigReader reader(entry, folder + "/tokenizer_config.json: chat_template");
      const std::string name = reader.text("name");
      if (name == "default") {
        templates.main = reader.text("template");
      } else {
        templates.named.emplace_back(name, reader.text("template"));
      }
    }
  }
  const std::string jinja = folder + "/chat_template.jinja";
  if (file_exists(jinja)) templates.main = read_text_file(jinja);
  return templates;
}

std::string write_vocabulary_gguf(const Tokenizer& of_folder, const std::string& folder,
                                  const ModelSpec& spec, const std::optional<std::string>& pre,
                                  GgufMetadata& metadata) {
  const std::optional<Tokenizer> of_pieces = pieces_instead(of_folder, folder);
  const Tokenizer& tokenizer = of_pieces ? *of_pieces : of_folder;
  if (tokenizer.vocab_size() > spec.vocab_size) {
    throw FormatError(
        fmt::format("{}: the tokenizer has ids up to {}, but the embedding has {} rows", folder,
                    tokenizer.vocab_size() - 1, spec.vocab_size));
  }
  const VocabularyKind& kind = kind_of(tokenizer, find_family(spec.family), folder);
  const Json config = read_object_if_there(folder + "/tokenizer_config.json");
  std::optional<int32_t> unknown = special_id(tokenizer, config, "unk_token");
  if (!unknown && kind.has_pieces) unknown = tokenizer.unk_id();
  metadata.set("tokenizer.ggml.model", std::string(kind.name));
  if (kind.has_pre) {
    metadata.set("tokenizer.ggml.pre", split_rule_of(tokenizer, kind, pre, folder));
  }
  add_tokens(VocabularyRows(tokenizer, kind, spec.vocab_size, unknown, folder, config), kind,
             spec.vocab_size, metadata);
  if (kind.has_merges) add_merges(tokenizer, metadata);
  add_special_ids(tokenizer, config, spec, unknown, metadata);
  if (kind.has_pieces) {
    metadata.set("tokenizer.ggml.add_space_prefix", *tokenizer.space_prefix());
  }
  add_chat_templates(read_chat_templates(folder), metadata);
  if (!of_pieces) return {};
  return folder +
         ": the vocabulary is that of tokenizer.model, which puts a space in front of every text "
         "between special tokens; GGUF cannot say what tokenizer.json does, so that ids after a "
         "special token or of a text that begins with spaces may be others";
}

}  // namespace assay
