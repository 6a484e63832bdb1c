#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/enum_words.h"
#include "convert/families/config_reader.h"
#include "convert/gguf.h"
#include "convert/model_spec.h"

namespace assay {

/// `rope_type` of config.json, and what reports call it.
inline constexpr auto kRopeKindWords =
    enum_words<RopeSpec::Kind>("default", "linear", "llama3", "yarn", "proportional");

/// Reads the rotary embedding of a config.json in both spellings (`rope_scaling` with a top-level
/// `rope_theta`, and `rope_parameters`): kinds default, linear, llama3 and yarn. Any other kind is
/// an UnsupportedError that names it. Source: transformers' modeling_rope_utils.py.
RopeSpec read_rope_config(const ConfigReader& config, int rotary_dims, int64_t context_length);

/// The same for models that rotate only the first int(head_dim·partial_rotary_factor) dims.
RopeSpec read_partial_rope_config(const ConfigReader& config, int head_dim, int64_t context_length,
                                  double default_partial);

/// What a layer type has where the config does not say it, and the keys of older configs that say
/// it outside `rope_parameters` (empty: there are none).
struct LayerRopeDefaults {
  double theta = 10000.0;
  double partial = 1.0;
  bool proportional = false;
  std::string_view theta_key = {};
  std::string_view scaling_key = {};
};

/// Gemma: `rope_parameters` has one dictionary per layer type. Kinds default, linear and
/// proportional (transformers' modeling_rope_utils.py).
RopeSpec read_layer_rope_config(const ConfigReader& config, std::string_view layer_type,
                                int head_dim, int64_t context_length,
                                const LayerRopeDefaults& defaults);

/// attention factor of yarn where the config does not set it: 1 for factor ≤ 1, else
/// 0.1·ln(factor) + 1.
double default_yarn_attention_factor(double factor);

/// Appends `<arch>.rope.scaling.*` where the kind has such keys. Throws UnsupportedError where GGUF
/// has none for what the spec says.
void write_rope_scaling_gguf(const RopeSpec& rope, std::string_view architecture,
                             GgufMetadata& metadata);

/// Reads the keys back, and llama3's factors from the tensor `rope_freqs.weight`: the parameters
/// are found that give exactly the stored factors, so that a GGUF file computes the same angles as
/// the folder that it came from. UnsupportedError if there are none.
RopeSpec read_rope_gguf(const GgufFile& file, std::string_view architecture, int rotary_dims,
                        int64_t context_length);

/// The tensor `rope_freqs.weight`, (rotary_dims/2) positive numbers; empty if the file has none.
std::optional<std::vector<float>> read_frequency_factors_gguf(const GgufFile& file,
                                                              int rotary_dims);

/// The factors by which GGUF divides the angles of llama3 scaling, (rotary_dims/2).
/// Source: transformers' modeling_rope_utils.py.
std::vector<float> llama3_frequency_factors(const RopeSpec& rope);

}  // namespace assay
