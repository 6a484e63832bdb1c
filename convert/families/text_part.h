#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"
#include "convert/families/family.h"
#include "convert/safetensors.h"

namespace assay {

// The text model inside a multimodal folder: where its config and tensors lie there, and what else
// there is. Source: transformers' composite configs.

/// Config of the text model of a folder whose config.json says `model_type` T and holds a
/// `text_config` of type T_text: that one, with the keys about the whole that it leaves to the
/// outer one (head, special ids, quantization). Empty if config.json is a text model's itself.
std::optional<Json> text_config_of(const Json& config);

/// Gives the tensors of a table the names that they have in `model`: text models lie under "model."
/// alone, under "model.language_model." or "language_model.model.". A table whose embedding is in
/// none of these places is left as it is.
void name_as_stored(std::vector<TensorEntry>& table, const SafetensorsModel& model);

/// The part of a larger model that a tensor belongs to, if it is not the text model:
/// "vision_tower", "mtp". Empty for any other tensor.
std::string_view other_part_of(std::string_view hf_name);

}  // namespace assay
