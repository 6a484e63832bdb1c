#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "convert/core/error.h"
#include "convert/tokenizer/definition.h"
#include "convert/tokenizer/gguf_pre.h"
#include "convert/tokenizer/sentencepiece.h"

namespace assay::tokenization {
namespace {

/// Tokens in the order of the file. The members are read without Part: there are 10^5 of them.
void read_vocabulary(const Part& part, Vocabulary& vocabulary) {
  if (!part.json().is_object()) part.malformed("must be an object of token: id");
  const Json::Object& members = part.json().as_object();
  if (members.empty()) part.malformed("is empty");
  size_t n_bytes = 0;
  for (const auto& [token, id] : members) n_bytes += token.size();
  vocabulary.reserve(members.size(), n_bytes);
  for (const auto& [token, id] : members) {
    if (!id.is_integer_in(0, Vocabulary::kIdLimit - 1)) {
      part.malformed(fmt::format("the id of \"{}\" is {}; expected an integer from 0 to {}", token,
                                 id.dump(0), Vocabulary::kIdLimit - 1));
    }
    if (!vocabulary.add(token, static_cast<int32_t>(id.as_integer()))) {
      part.malformed(fmt::format("\"{}\" has the id {} of another token", token, id.dump(0)));
    }
  }
}

/// One entry of "merges": "left right" or ["left", "right"].
std::pair<std::string_view, std::string_view> merge_parts(const Part& merges, size_t rank) {
  const Json& entry = merges.json().as_array()[rank];
  const auto fail = [&] {
    merges.elements()[rank].malformed(fmt::format(
        "is {}; expected two tokens as \"left right\" or [\"left\", \"right\"]", entry.dump(0)));
  };
  if (entry.is_string()) {
    const std::string_view text = entry.as_string();
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      fail();
    }
    return {text.substr(0, space), text.substr(space + 1)};
  }
  if (!entry.is_array() || entry.as_array().size() != 2 || !entry.as_array()[0].is_string() ||
      !entry.as_array()[1].is_string()) {
    fail();
  }
  return {entry.as_array()[0].as_string(), entry.as_array()[1].as_string()};
}

void read_merges(const Part& part, Definition& definition) {
  if (!part.json().is_array()) part.malformed("must be an array");
  const size_t n_merges = part.json().as_array().size();
  if (n_merges == 0) {
    part.malformed("a BPE model without merges; the file was converted badly or is incomplete");
  }
  definition.merges.reserve(n_merges);
  for (size_t rank = 0; rank < n_merges; ++rank) {
    const auto [left, right] = merge_parts(part, rank);
    const auto left_id = definition.vocabulary.find(left);
    const auto right_id = definition.vocabulary.find(right);
    if (!left_id || !right_id) {
      part.elements()[rank].malformed(
          fmt::format("\"{}\" is not in the vocabulary", left_id ? right : left));
    }
    definition.merges.emplace_back(*left_id, *right_id);
  }
}

/// "vocab" of a Unigram model: [["token", score], …], ids in order.
void read_unigram(const Part& model, Definition& definition) {
  const Part vocab = model.member("vocab");
  if (!vocab.json().is_array() || vocab.json().as_array().empty()) {
    vocab.malformed("must be an array of [token, score]");
  }
  const Json::Array& entries = vocab.json().as_array();
  UnigramParts parts;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Json& entry = entries[i];
    const bool is_pair = entry.is_array() && entry.as_array().size() == 2 &&
                         entry.as_array()[0].is_string() && entry.as_array()[1].is_number();
    if (!is_pair || i >= static_cast<size_t>(Vocabulary::kIdLimit)) {
      vocab.elements()[i].malformed("must be [token, score], and an id below 2,097,152");
    }
    const auto id = static_cast<int32_t>(i);
    if (!definition.vocabulary.add(entry.as_array()[0].as_string(), id)) {
      vocab.elements()[i].malformed("stands there twice");
    }
    parts.scores.push_back(entry.as_array()[1].as_number());
    if (!entry.as_array()[0].as_string().empty()) parts.pieces.push_back(id);
  }
  if (const auto unk = model.optional_member("unk_id")) {
    const int64_t id = unk->integer();
    if (id < 0 || id >= definition.vocabulary.id_end()) unk->malformed("is the id of no token");
    parts.options.unk_id = static_cast<int32_t>(id);
  }
  parts.options.byte_fallback = model.boolean_or("byte_fallback", false);
  definition.unigram = std::move(parts);
}

void read_model(const Part& model, Definition& definition) {
  // Old files leave the type out; a vocabulary with merges is BPE.
  const bool typed = model.optional_member("type").has_value();
  if (typed && model.type() == "Unigram") return read_unigram(model, definition);
  if (typed && model.type() != "BPE") {
    model.unsupported(
        fmt::format("the model \"{}\" is not implemented; expected BPE or Unigram", model.type()));
  }
  if (const auto dropout = model.optional_member("dropout")) {
    if (!dropout->json().is_number() || dropout->json().as_number() != 0.0) {
      dropout->unsupported("dropout of merges is random and not implemented; set it to null");
    }
  }
  const auto text = [&](std::string_view key) {
    const auto part = model.optional_member(key);
    return part ? part->string() : std::string();
  };
  BpeOptions& bpe = definition.bpe;
  if (!text("unk_token").empty()) bpe.unk_token = text("unk_token");
  bpe.continuing_subword_prefix = text("continuing_subword_prefix");
  bpe.end_of_word_suffix = text("end_of_word_suffix");
  bpe.fuse_unk = model.boolean_or("fuse_unk", false);
  bpe.byte_fallback = model.boolean_or("byte_fallback", false);
  bpe.ignore_merges = model.boolean_or("ignore_merges", false);
  read_vocabulary(model.member("vocab"), definition.vocabulary);
  read_merges(model.member("merges"), definition);
}

void read_added_tokens(const Part& part, Definition& definition) {
  for (const Part& entry : part.elements()) {
    AddedToken token;
    const int64_t id = entry.member("id").integer();
    if (id < 0 || id >= Vocabulary::kIdLimit) {
      entry.member("id").malformed(
          fmt::format("{} is not between 0 and {}", id, Vocabulary::kIdLimit - 1));
    }
    token.id = static_cast<int32_t>(id);
    token.content = entry.member("content").string();
    token.single_word = entry.member("single_word").boolean();
    token.lstrip = entry.member("lstrip").boolean();
    token.rstrip = entry.member("rstrip").boolean();
    token.normalized = entry.member("normalized").boolean();
    token.special = entry.member("special").boolean();
    if (token.content.empty()) continue;  // as in the reference
    add_added_token(definition, std::move(token),
                    fmt::format("{}: {}", entry.source(), entry.path()));
  }
}

bool same(const AddedToken& a, const AddedToken& b) {
  return a.id == b.id && a.content == b.content && a.single_word == b.single_word &&
         a.lstrip == b.lstrip && a.rstrip == b.rstrip && a.normalized == b.normalized &&
         a.special == b.special;
}

}  // namespace

void add_added_token(Definition& definition, AddedToken token, const std::string& place) {
  const std::string described =
      fmt::format("{}: the added token \"{}\" with id {}", place, token.content, token.id);
  const std::optional<int32_t> known = definition.all_tokens.find(token.content);
  if (known && *known != token.id) {
    throw FormatError(fmt::format("{} has the id {} in the vocabulary", described, *known));
  }
  if (!known && !definition.all_tokens.add(token.content, token.id)) {
    throw FormatError(fmt::format("{}: the id belongs to \"{}\"", described,
                                  definition.all_tokens.token(token.id)));
  }
  const auto [listed, is_new] =
      definition.added_by_id.emplace(token.id, definition.added_tokens.size());
  if (!is_new) {
    if (same(definition.added_tokens[listed->second], token)) return;
    throw FormatError(described + " is listed twice, with different flags");
  }
  definition.added_tokens.push_back(std::move(token));
}

Definition read_tokenizer_json(const Part& root) {
  Definition definition;
  definition.source = root.source();
  if (!root.json().is_object()) root.malformed("must be an object");
  if (const auto version = root.optional_member("version")) {
    if (version->string() != "1.0") version->unsupported("expected the version \"1.0\"");
  }
  for (const std::string_view key : {"truncation", "padding"}) {
    if (const auto part = root.optional_member(key)) {
      part->unsupported("is not implemented: it would change the ids of a text; set it to null");
    }
  }
  const Part model = root.member("model");
  read_model(model, definition);
  definition.all_tokens = definition.vocabulary;
  if (const auto part = root.optional_member("added_tokens")) read_added_tokens(*part, definition);
  if (const auto part = root.optional_member("normalizer")) {
    definition.normalizer = make_normalizer(*part);
  }
  if (const auto part = root.optional_member("pre_tokenizer")) {
    definition.pre_tokenizer = make_pre_tokenizer(*part);
    definition.bpe.byte_level = definition.pre_tokenizer.byte_level_model;
    if (definition.unigram && definition.bpe.byte_level) {
      part->unsupported("ByteLevel before a Unigram model is not implemented");
    }
  }
  if (const auto part = root.optional_member("post_processor")) {
    definition.post_processor = make_post_processor(*part, definition.all_tokens);
  }
  if (const auto part = root.optional_member("decoder")) definition.decoder = make_decoder(*part);

  static const Json kNull;
  const Json* normalizer = root.json().find("normalizer");
  const Json* pre_tokenizer = root.json().find("pre_tokenizer");
  const BpeOptions& bpe = definition.bpe;
  if (!definition.unigram && bpe.continuing_subword_prefix.empty() &&
      bpe.end_of_word_suffix.empty()) {
    if (!normalizer) normalizer = &kNull;
    if (!pre_tokenizer) pre_tokenizer = &kNull;
    if (const auto pre = gguf_pre_of(*normalizer, *pre_tokenizer, bpe.ignore_merges)) {
      definition.gguf_pre = std::string(*pre);
    }
    if (!bpe.ignore_merges) definition.space_prefix = space_prefix_of(*normalizer, *pre_tokenizer);
  }
  return definition;
}

void read_tokenizer_config(const Part& root, Definition& definition) {
  const auto find = [&](std::string_view key, std::optional<int32_t>& id) {
    const auto part = root.optional_member(key);
    if (!part) return;
    const Part content = part->json().is_object() ? part->member("content") : *part;
    id = definition.all_tokens.find(content.string());
    if (!id) {
      content.malformed(fmt::format("\"{}\" is no token of tokenizer.json", content.string()));
    }
  };
  find("bos_token", definition.bos_id);
  find("eos_token", definition.eos_id);
}

void read_piece_config(const Part& root, Definition& definition) {
  if (const auto added = root.optional_member("added_tokens_decoder")) {
    if (!added->json().is_object()) added->malformed("must be an object");
    for (const auto& [key, json] : added->json().as_object()) {
      const Part entry = added->member(key);
      AddedToken token;
      const auto read = std::from_chars(key.data(), key.data() + key.size(), token.id);
      if (read.ec != std::errc() || read.ptr != key.data() + key.size() || token.id < 0 ||
          token.id >= Vocabulary::kIdLimit) {
        entry.malformed("the key is no token id");
      }
      // Pieces are known already, with the flags of the model file.
      if (definition.added_by_id.contains(token.id)) continue;
      token.content = entry.member("content").string();
      token.single_word = entry.boolean_or("single_word", false);
      token.lstrip = entry.boolean_or("lstrip", false);
      token.rstrip = entry.boolean_or("rstrip", false);
      token.special = entry.boolean_or("special", false);
      if (token.content.empty()) continue;
      add_added_token(definition, std::move(token),
                      fmt::format("{}: {}", entry.source(), entry.path()));
    }
  }
  if (!root.boolean_or("add_bos_token", true)) definition.post_processor.prefix.clear();
  if (root.boolean_or("add_eos_token", false)) {
    if (!definition.eos_id) root.malformed("add_eos_token is set, but there is no EOS");
    definition.post_processor.suffix = {*definition.eos_id};
  }
}

void read_added_pieces(const Part& root, Definition& definition) {
  if (!root.json().is_object()) root.malformed("must be an object of token: id");
  for (const auto& [content, json] : root.json().as_object()) {
    const Part entry = root.member(content);
    const int64_t id = entry.integer();
    if (id < 0 || id >= Vocabulary::kIdLimit) entry.malformed("is no token id");
    if (definition.added_by_id.contains(static_cast<int32_t>(id)) || content.empty()) continue;
    AddedToken token;
    token.id = static_cast<int32_t>(id);
    token.content = content;
    add_added_token(definition, std::move(token), root.source());
  }
}

}  // namespace assay::tokenization
