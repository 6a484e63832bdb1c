#include "small_tokenizer.h"

#include "convert/tokenizer/byte_level.h"
#include "convert/tokenizer/unicode.h"
#include "tests/support/random.h"

namespace assay::test {
namespace {

Json json_merges(const Merges& merges) {
  Json all = Json::array();
  for (const auto& [left, right] : merges) all.push(Json::array().push(left).push(right));
  return all;
}

Json tokenizer_json(Json model) {
  Json json = Json::object();
  json.set("version", "1.0").set("added_tokens", Json::array());
  model.set("type", "BPE");
  json.set("model", std::move(model));
  return json;
}

}  // namespace

Json added_token(int id, std::string_view content, std::string_view flags) {
  const auto has = [&](char flag) { return flags.find(flag) != std::string_view::npos; };
  Json token = Json::object();
  token.set("id", id).set("content", content);
  token.set("single_word", has('w')).set("lstrip", has('l')).set("rstrip", has('r'));
  token.set("normalized", has('n')).set("special", has('s'));
  return token;
}

Json byte_level_json(const Merges& merges) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    tokenization::append_utf8(spelling,
                              tokenization::byte_to_character(static_cast<uint8_t>(byte)));
    vocab.set(spelling, byte);
  }
  int id = 256;
  for (const auto& [left, right] : merges) vocab.set(left + right, id++);
  Json model = Json::object();
  model.set("vocab", std::move(vocab)).set("merges", json_merges(merges));
  Json json = tokenizer_json(std::move(model));
  Json byte_level = Json::object();
  byte_level.set("type", "ByteLevel").set("add_prefix_space", false);
  byte_level.set("trim_offsets", true).set("use_regex", true);
  json.set("pre_tokenizer", byte_level).set("decoder", byte_level);
  return json;
}

Json character_json(const std::vector<std::string>& tokens, const Merges& merges) {
  Json vocab = Json::object();
  for (size_t i = 0; i < tokens.size(); ++i) vocab.set(tokens[i], static_cast<int64_t>(i));
  Json model = Json::object();
  model.set("vocab", std::move(vocab)).set("merges", json_merges(merges));
  Json json = tokenizer_json(std::move(model));
  json.set("decoder", Json::object().set("type", "Fuse"));
  return json;
}

Json split_by(std::string_view pattern) {
  Json split = Json::object(), bytes = Json::object(), sequence = Json::object();
  split.set("type", "Split").set("pattern", Json::object().set("Regex", pattern));
  split.set("behavior", "Isolated").set("invert", false);
  bytes.set("type", "ByteLevel").set("add_prefix_space", false).set("use_regex", false);
  sequence.set("type", "Sequence");
  sequence.set("pretokenizers", Json::array().push(std::move(split)).push(std::move(bytes)));
  return sequence;
}

Tokenizer make_tokenizer(const Json& json) { return Tokenizer::from_json(json, "small.json"); }

std::string random_text(uint64_t seed, size_t n_characters) {
  Random random(seed);
  std::string text;
  for (size_t i = 0; i < n_characters; ++i) {
    uint32_t code = 0;
    switch (random.below(8)) {
      case 0:
        code = static_cast<uint32_t>(random.below(0x110000));
        break;
      case 1:
        code = static_cast<uint32_t>(random.below(0x3000));
        break;
      case 2:
        code = 0x300 + static_cast<uint32_t>(random.below(0x70));  // combining marks
        break;
      case 3:
        code = static_cast<uint32_t>(" \n\r\t'\xA0"[random.below(6)]) & 0xFFu;
        break;
      case 4:
        code = static_cast<uint32_t>('0' + random.below(10));
        break;
      default:
        code = static_cast<uint32_t>(random.below(0x80));
    }
    if (code >= 0xD800 && code < 0xE000) code -= 0x800;
    tokenization::append_utf8(text, code);
  }
  return text;
}

}  // namespace assay::test
