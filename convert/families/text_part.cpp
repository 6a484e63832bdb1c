#include "convert/families/text_part.h"

#include <algorithm>

namespace assay {
namespace {

constexpr std::string_view kModel = "model.";
constexpr std::string_view kHead = "lm_head.";

/// Where a folder keeps its text model and that one's head.
struct Place {
  std::string_view model;
  std::string_view head;
};
constexpr Place kPlaces[] = {{"model.", "lm_head."},
                             {"model.language_model.", "lm_head."},
                             {"language_model.model.", "language_model.lm_head."}};

std::string moved(const std::string& name, const Place& place) {
  if (name.starts_with(kModel)) return std::string(place.model) + name.substr(kModel.size());
  if (name.starts_with(kHead)) return std::string(place.head) + name.substr(kHead.size());
  return name;
}

}  // namespace

std::optional<Json> text_config_of(const Json& config) {
  const Json* text = config.find("text_config");
  const Json* type = config.find("model_type");
  if (text == nullptr || !text->is_object() || type == nullptr || !type->is_string()) {
    return std::nullopt;
  }
  const std::string expected = type->as_string() + "_text";
  const Json* inner_type = text->find("model_type");
  if (inner_type != nullptr && *inner_type != Json(expected)) return std::nullopt;
  Json out = *text;
  out.set("model_type", expected);
  for (const char* key :
       {"tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config"}) {
    const Json* inner = out.find(key);
    const Json* outer = config.find(key);
    if ((inner == nullptr || inner->is_null()) && outer != nullptr) out.set(key, *outer);
  }
  return out;
}

void name_as_stored(std::vector<TensorEntry>& table, const SafetensorsModel& model) {
  const auto embedding = std::find_if(table.begin(), table.end(), [](const TensorEntry& entry) {
    return entry.role == Role::kTokenEmbedding;
  });
  if (embedding == table.end()) return;
  for (const Place& place : kPlaces) {
    if (model.find(moved(embedding->hf_name, place)) == nullptr) continue;
    for (TensorEntry& entry : table) {
      entry.hf_name = moved(entry.hf_name, place);
      if (entry.hf_stack) entry.hf_stack->name = moved(entry.hf_stack->name, place);
    }
    return;
  }
}

std::string_view other_part_of(std::string_view hf_name) {
  constexpr std::string_view kParts[] = {"vision_tower",          "vision_model", "visual",
                                         "audio_tower",           "embed_vision", "embed_audio",
                                         "multi_modal_projector", "mtp"};
  if (hf_name.starts_with(kModel)) hf_name.remove_prefix(kModel.size());
  for (const std::string_view part : kParts) {
    if (hf_name.starts_with(part) && hf_name.substr(part.size()).starts_with('.')) return part;
  }
  return {};
}

}  // namespace assay
