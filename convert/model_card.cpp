#include "convert/model_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>

#include "convert/cli/yaml_tree.h"
#include "convert/core/error.h"
#include "convert/core/file.h"

namespace assay {
namespace {

/// Members of the head, in this order.
constexpr std::string_view kHeadOrder[] = {
    "base_model",   "base_model_relation", "license", "license_name", "license_link",
    "library_name", "pipeline_tag",        "tags",    "quantized_by", "datasets",
    "model-index",
};
constexpr std::string_view kTakenOver[] = {
    "base_model", "base_model_relation", "license", "license_name", "license_link", "pipeline_tag",
};
constexpr std::string_view kSettable[] = {"base_model",   "datasets",     "license",
                                          "license_link", "license_name", "pipeline_tag",
                                          "quantized_by"};

/// The lines between the two "---" at the beginning of a card.
std::optional<std::string_view> head_of(std::string_view card) {
  const size_t begin = card.starts_with("---\n") ? 4 : card.starts_with("---\r\n") ? 5 : 0;
  if (begin == 0) return std::nullopt;
  for (size_t at = begin; at < card.size();) {
    const size_t end = std::min(card.find('\n', at), card.size());
    std::string_view line = card.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line == "---") return card.substr(begin, at - begin);
    at = end + 1;
  }
  return std::nullopt;
}

/// A text, or a list of texts; null for anything else.
Json texts_of(const cli::YamlNode& node) {
  using Kind = cli::YamlNode::Kind;
  if (node.kind == Kind::kScalar) return node.text;
  if (node.kind != Kind::kSequence) return nullptr;
  Json list = Json::array();
  for (const cli::YamlNode& item : node.items) {
    if (item.kind != Kind::kScalar) return nullptr;
    list.push(item.text);
  }
  return list;
}

/// The key as parse_yaml spells it.
std::string yaml_key(std::string_view name) {
  std::string key(name);
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

/// ".../models--org--name/snapshots/<commit>" → "org/name".
std::string hub_id_of(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path path = fs::weakly_canonical(folder, error);
  if (error || path.parent_path().filename() != "snapshots") return {};
  std::string name = path.parent_path().parent_path().filename().string();
  constexpr std::string_view kPrefix = "models--";
  if (!name.starts_with(kPrefix)) return {};
  name.erase(0, kPrefix.size());
  const size_t separator = name.find("--");
  return separator == std::string::npos ? name : name.replace(separator, 2, "/");
}

/// Whether YAML reads the text without quotes as this very text.
bool is_plain(const std::string& text) {
  constexpr std::string_view kWords[] = {"y",   "yes",   "n",  "no",  "true",
                                         "off", "false", "on", "null"};
  std::string lower;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) == 0 && std::string_view("._/-").find(c) == std::string_view::npos) {
      return false;
    }
    lower += static_cast<char>(std::tolower(byte));
  }
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::find(std::begin(kWords), std::end(kWords), lower) == std::end(kWords);
}

std::string scalar_yaml(const Json& value) {
  if (value.is_string() && is_plain(value.as_string())) return value.as_string();
  if (value.is_number() && !value.is_integer()) return card_figure(value.as_number());
  return value.dump(0);  // a JSON text is a YAML text in double quotes
}

bool is_scalar_json(const Json& value) { return !value.is_array() && !value.is_object(); }

void append_yaml(const Json& value, size_t indent, std::string& out) {
  const std::string blanks(indent, ' ');
  if (value.is_array()) {
    for (const Json& item : value.as_array()) {
      std::string text;
      if (is_scalar_json(item)) {
        text = blanks + "  " + scalar_yaml(item) + "\n";
      } else {
        append_yaml(item, indent + 2, text);
      }
      text[indent] = '-';
      out += text;
    }
    return;
  }
  for (const auto& [key, member] : value.as_object()) {
    if (is_scalar_json(member)) {
      out += fmt::format("{}{}: {}\n", blanks, key, scalar_yaml(member));
    } else {
      out += fmt::format("{}{}:\n", blanks, key);
      append_yaml(member, member.is_array() ? indent : indent + 2, out);
    }
  }
}

}  // namespace

CardSource read_card_source(const std::string& folder) {
  CardSource source;
  source.hub_id = hub_id_of(folder);
  const std::string path = fmt::format("{}/{}", folder, kModelCardName);
  if (!file_exists(path)) return source;
  const std::string card = read_text_file(path);
  const std::optional<std::string_view> head = head_of(card);
  if (!head) return source;
  try {
    const cli::YamlNode root = cli::parse_yaml(*head, path);
    for (const std::string_view name : kTakenOver) {
      for (const cli::YamlMember& member : root.members) {
        if (member.key.text != yaml_key(name)) continue;
        Json value = texts_of(member.value);
        if (!value.is_null()) source.fields.set(name, std::move(value));
      }
    }
  } catch (const UsageError& error) {
    source.fault = std::string("licence and task were not taken over: ") + error.what();
  }
  return source;
}

std::vector<std::string> card_field_names() { return {std::begin(kSettable), std::end(kSettable)}; }

Json parse_card_fields(const std::vector<std::string>& assignments) {
  Json fields = Json::object();
  for (const std::string& assignment : assignments) {
    const size_t equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    if (equals == std::string::npos || equals + 1 == assignment.size()) {
      throw UsageError("--card " + assignment + ": expected NAME=VALUE");
    }
    if (std::find(std::begin(kSettable), std::end(kSettable), name) == std::end(kSettable)) {
      throw UsageError(fmt::format("--card {}: expected one of {}", assignment,
                                   fmt::join(card_field_names(), ", ")));
    }
    const std::string value = assignment.substr(equals + 1);
    if (name == "datasets") {
      const Json* before = fields.find(name);
      Json list = before == nullptr ? Json::array() : *before;
      list.push(value);
      fields.set(name, std::move(list));
    } else if (fields.find(name) != nullptr) {
      throw UsageError(fmt::format("--card {}: \"{}\" stands there twice", assignment, name));
    } else {
      fields.set(name, value);
    }
  }
  return fields;
}

std::string model_card_text(const Json& head, std::string_view body) {
  Json ordered = Json::object();
  for (const std::string_view name : kHeadOrder) {
    const Json* value = head.find(name);
    if (value != nullptr && !value->is_null()) ordered.set(name, *value);
  }
  std::string text = "---\n";
  append_yaml(ordered, 0, text);
  text += "---\n\n";
  text += body;
  return text;
}

std::string card_figure(double value) { return fmt::format("{:+.4e}", value); }

}  // namespace assay
