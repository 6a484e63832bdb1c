#include "convert/hf_tokenizer.h"

#include <fmt/format.h>

#include <set>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/tokenizer.h"
#include "convert/tokenizer/gguf_pre.h"
#include "convert/tokenizer/sentencepiece.h"
#include "convert/tokenizer/vocabulary_kind.h"

namespace assay {
namespace {

Json typed(std::string_view type) { return Json::object().set("type", type); }

Json special_entry(const Tokenizer& tokenizer, int32_t id) {
  const std::string token = tokenizer.token(id).value_or("");
  return Json::object()
      .set("id", token)
      .set("ids", Json::array().push(id))
      .set("tokens", Json::array().push(token));
}

/// A template that puts the tokenizer's prefix in front and its suffix behind, or null.
Json post_processor(const Tokenizer& tokenizer) {
  const std::vector<int32_t> all = tokenizer.encode("");
  if (all.empty()) return nullptr;
  const size_t n_prefix = tokenizer.special_prefix().size();
  Json single = Json::array(), pair = Json::array(), specials = Json::object();
  for (const int type_id : {0, 1}) {
    const auto add = [&](std::string_view kind, const std::string& id) {
      Json piece = Json::object().set(kind, Json::object().set("id", id).set("type_id", type_id));
      if (type_id == 0) single.push(piece);
      pair.push(std::move(piece));
    };
    for (size_t i = 0; i <= all.size(); ++i) {
      if (i == n_prefix) add("Sequence", type_id == 0 ? "A" : "B");
      if (i == all.size()) break;
      const std::string token = tokenizer.token(all[i]).value_or("");
      add("SpecialToken", token);
      specials.set(token, special_entry(tokenizer, all[i]));
    }
  }
  return typed("TemplateProcessing")
      .set("single", std::move(single))
      .set("pair", std::move(pair))
      .set("special_tokens", std::move(specials));
}

Json added_tokens(const Tokenizer& tokenizer) {
  Json list = Json::array();
  for (const AddedToken& token : tokenizer.added_tokens()) {
    list.push(Json::object()
                  .set("id", token.id)
                  .set("content", token.content)
                  .set("single_word", token.single_word)
                  .set("lstrip", token.lstrip)
                  .set("rstrip", token.rstrip)
                  .set("normalized", token.normalized)
                  .set("special", token.special));
  }
  return list;
}

Json model_of(const Tokenizer& tokenizer, bool ignore_merges, bool has_pieces,
              const Json& unk_token) {
  std::set<int32_t> outside;  // added tokens of byte-level vocabularies are no tokens of the model
  if (!has_pieces) {
    for (const AddedToken& token : tokenizer.added_tokens()) outside.insert(token.id);
  }
  Json::Object vocab;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::optional<std::string> token = tokenizer.token(id);
    if (token && !outside.contains(id)) vocab.emplace_back(*token, Json(id));
  }
  Json merges = Json::array();
  for (const auto& [left, right] : tokenizer.merges()) {
    merges.push(Json::array().push(left).push(right));
  }
  return typed("BPE")
      .set("dropout", nullptr)
      .set("unk_token", unk_token)
      .set("continuing_subword_prefix", nullptr)
      .set("end_of_word_suffix", nullptr)
      .set("fuse_unk", has_pieces)
      .set("byte_fallback", has_pieces && tokenizer.id_of("<0x00>").has_value())
      .set("ignore_merges", ignore_merges)
      .set("vocab", std::move(vocab))
      .set("merges", std::move(merges));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> tokenizer_files_of_gguf(
    const GgufMetadata& metadata, const std::string& source) {
  const Tokenizer tokenizer = Tokenizer::from_gguf(metadata, source);
  const auto* kind =
      tokenization::find_vocabulary_kind(metadata.string("tokenizer.ggml.model").value_or(""));
  ASSAY_CHECK(kind != nullptr);
  const bool has_pieces = kind->has_pieces;
  const bool space_prefix = tokenizer.space_prefix().value_or(false);
  const auto spelled = [&](std::optional<int64_t> id) {
    const auto token = id ? tokenizer.token(static_cast<int32_t>(*id)) : std::nullopt;
    return token ? Json(*token) : Json();
  };
  const auto token_of = [&](std::string_view name) {
    return spelled(metadata.integer(fmt::format("tokenizer.ggml.{}_token_id", name)));
  };
  // Of pieces, the type of a token may say it alone.
  const Json unknown = has_pieces ? spelled(tokenizer.unk_id()) : token_of("unknown");
  Json json = Json::object();
  json.set("version", "1.0").set("truncation", nullptr).set("padding", nullptr);
  json.set("added_tokens", added_tokens(tokenizer));
  bool ignore_merges = false;
  if (has_pieces) {
    json.set("normalizer", tokenization::piece_normalizer(space_prefix))
        .set("pre_tokenizer", nullptr);
  } else {
    const auto pre = tokenization::find_gguf_pre(*metadata.string("tokenizer.ggml.pre"));
    ignore_merges = pre->ignore_merges;
    json.set("normalizer", pre->normalizer).set("pre_tokenizer", pre->pre_tokenizer);
  }
  json.set("post_processor", post_processor(tokenizer));
  if (has_pieces) {
    json.set("decoder", tokenization::piece_decoder(space_prefix ? 1 : 0));
  } else {
    json.set("decoder", typed("ByteLevel")
                            .set("add_prefix_space", true)
                            .set("trim_offsets", true)
                            .set("use_regex", true));
  }
  json.set("model", model_of(tokenizer, ignore_merges, has_pieces, unknown));
  const Tokenizer again = Tokenizer::from_json(json, source + ": the tokenizer.json made for it");
  if (again.vocab_size() != tokenizer.vocab_size() || again.merges() != tokenizer.merges() ||
      again.encode("") != tokenizer.encode("")) {
    throw FormatError(source + ": its vocabulary cannot be written as tokenizer.json");
  }

  Json config = Json::object();
  config.set("add_bos_token", !tokenizer.special_prefix().empty());
  config.set("bos_token", token_of("bos"))
      .set("eos_token", token_of("eos"))
      .set("unk_token", unknown)
      .set("pad_token", token_of("padding"));
  config.set("tokenizer_class", "PreTrainedTokenizerFast");
  std::vector<std::pair<std::string, std::string>> files = {
      {"tokenizer.json", json.dump(2) + "\n"}, {"tokenizer_config.json", config.dump(2) + "\n"}};
  if (const auto chat = metadata.string("tokenizer.chat_template")) {
    files.emplace_back("chat_template.jinja", *chat);
  }
  return files;
}

}  // namespace assay
