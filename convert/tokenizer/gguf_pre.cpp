#include "convert/tokenizer/gguf_pre.h"

#include <string>
#include <vector>

#include "convert/core/words.h"
#include "convert/tokenizer/splitters.h"

namespace assay::tokenization {
namespace {

struct Row {
  std::string_view name;
  std::string_view pattern;  // of a Split, isolated; empty: none
  bool digits_apart;         // Digits, individual, before it
  bool nfc;                  // the models' tokenizer.json has it; other programs leave it out
  bool ignore_merges;
  bool add_bos;
};

// Source: llama.cpp's convert_hf_to_gguf.py. The first row of a kind is the name that is written.
const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"llama-bpe", kLlama3Pattern, false, false, true, true},
      {"llama3", kLlama3Pattern, false, false, true, true},
      {"llama-v3", kLlama3Pattern, false, false, true, true},
      {"qwen2", kQwen2Pattern, false, true, false, false},
      {"deepseek-r1-qwen", kQwen2Pattern, false, true, false, false},
      {"qwen35", kQwen35Pattern, false, true, false, false},
      {"gpt-2", kGpt2Pattern, false, false, false, false},
      {"smollm", kGpt2Pattern, true, false, false, false},
      {"tekken", kTekkenPattern, false, false, true, true},
  };
  return table;
}

Json object(std::initializer_list<Json::Member> members) {
  return Json(Json::Object(members.begin(), members.end()));
}

GgufPre expand(const Row& row) {
  GgufPre pre{row.name, {}, {}, row.ignore_merges, row.add_bos};
  if (row.nfc) pre.normalizer = object({{"type", "NFC"}});
  Json steps = Json::array();
  if (row.digits_apart) steps.push(object({{"type", "Digits"}, {"individual_digits", true}}));
  steps.push(object({{"type", "Split"},
                     {"pattern", object({{"Regex", row.pattern}})},
                     {"behavior", "Isolated"},
                     {"invert", false}}));
  steps.push(object({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}));
  pre.pre_tokenizer = object({{"type", "Sequence"}, {"pretokenizers", std::move(steps)}});
  return pre;
}

bool flag(const Json& step, std::string_view key, bool fallback) {
  const Json* value = step.find(key);
  return value && value->is_bool() ? value->as_bool() : fallback;
}

std::string text(const Json* value) { return value ? value->dump(0) : std::string("null"); }

std::string split_signature(std::string_view pattern_json) {
  return "Split " + std::string(pattern_json) + "\n";
}

/// The steps of a normalizer or pre-tokenizer, one a line, so that two ways to write the same steps
/// give the same text.
std::string signature(const Json& step) {
  if (step.is_null()) return "";
  const Json* type = step.find("type");
  const std::string name = type && type->is_string() ? type->as_string() : std::string();
  if (name == "Sequence") {
    std::string all;
    for (const std::string_view key : {"normalizers", "pretokenizers"}) {
      const Json* parts = step.find(key);
      if (!parts || !parts->is_array()) continue;
      for (const Json& part : parts->as_array()) all += signature(part);
    }
    return all;
  }
  const Json* behavior = step.find("behavior");
  if (name == "Split" && behavior && *behavior == Json("Isolated") &&
      !flag(step, "invert", false)) {
    return split_signature(text(step.find("pattern")));
  }
  if (name == "ByteLevel" && step.find("add_prefix_space")) {
    std::string all = flag(step, "add_prefix_space", true) ? "PrefixSpace\n" : "";
    if (flag(step, "use_regex", true)) {
      all += split_signature(object({{"Regex", kGpt2Pattern}}).dump(0));
    }
    return all + "Bytes\n";
  }
  return step.dump(0) + "\n";
}

}  // namespace

std::optional<GgufPre> find_gguf_pre(std::string_view name) {
  for (const Row& row : rows()) {
    if (row.name == name) return expand(row);
  }
  return std::nullopt;
}

std::optional<std::string_view> gguf_pre_of(const Json& normalizer, const Json& pre_tokenizer,
                                            bool ignore_merges) {
  const std::string normalizer_steps = signature(normalizer), steps = signature(pre_tokenizer);
  for (const Row& row : rows()) {
    const GgufPre pre = expand(row);
    if (pre.ignore_merges == ignore_merges && signature(pre.normalizer) == normalizer_steps &&
        signature(pre.pre_tokenizer) == steps) {
      return row.name;
    }
  }
  return std::nullopt;
}

std::string gguf_pre_names() { return join_words(names_of(rows())); }

}  // namespace assay::tokenization
