#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"

namespace assay {

inline constexpr std::string_view kModelCardName = "README.md";

/// What a model folder says about the origin of its model.
struct CardSource {
  /// Of the YAML head of its card: base_model, base_model_relation, license, license_name,
  /// license_link and pipeline_tag, those that are there; texts, or lists of texts.
  Json fields = Json::object();
  /// "org/name" where the folder is a snapshot in a Hugging Face cache; else empty.
  std::string hub_id;
  /// Why the head could not be read, one line; empty if it could, or there is none.
  std::string fault;
};
CardSource read_card_source(const std::string& folder);

/// Fields that --card NAME=VALUE may name; `datasets` may stand several times.
std::vector<std::string> card_field_names();
/// An object of them. Throws UsageError for another name, an empty value or a second one.
Json parse_card_fields(const std::vector<std::string>& assignments);

/// A model card: the members of `head` that are not null as YAML between "---" lines, in the order
/// of the Hugging Face documentation, and the Markdown text. Equal arguments give equal bytes.
/// Source: the Hub's model cards.
std::string model_card_text(const Json& head, std::string_view body);

/// A figure of a card, always of the same width: "+1.0338e-02".
std::string card_figure(double value);

}  // namespace assay
