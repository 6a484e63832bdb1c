#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "convert/core/dtype.h"
#include "convert/core/json.h"
#include "convert/model_spec.h"

namespace assay {

// What Family::write_config says in the same words for several families. GGUF holds numbers as
// fp32; the config gets the shortest decimal that gives the same one.

/// The members of a config.json; sorted by key, as Hugging Face saves them.
class ConfigMembers {
 public:
  /// A later value of the same key takes the place of the earlier one.
  void set(const std::string& key, Json value) { members_[key] = std::move(value); }
  Json json() const;

 private:
  std::map<std::string, Json> members_;
};

/// "bfloat16": how a config.json spells F32, F16 and BF16.
std::string_view config_dtype_name(DType dtype);
Json decimal_of_f32(double value);
/// bos_token_id: the id or null.
Json bos_json(const ModelSpec& spec);
/// eos_token_id: the stop ids; one alone without a list around it, null for none.
Json stop_ids_json(const ModelSpec& spec);
/// A dictionary in the manner of `rope_parameters`.
Json rope_json(const RopeSpec& rope);

void set_class(std::string_view architecture, std::string_view model_type, ConfigMembers& config);
/// What every decoder has: sizes, eps, tied head, special ids, dtype.
void set_decoder_sizes(const ModelSpec& spec, DType dtype, ConfigMembers& config);
void set_heads(const AttentionSpec& attention, ConfigMembers& config);
/// One member for the biases of all four projections. UnsupportedError if o's differs.
void set_attention_bias(const AttentionSpec& attention, ConfigMembers& config);
/// Layers that are all alike: heads, rope, activation.
void set_dense_layers(const ModelSpec& spec, ConfigMembers& config);

/// The first layer of each kind: those after it may read its keys and values.
struct LayersOfTwoKinds {
  const AttentionSpec* full = nullptr;
  const AttentionSpec* sliding = nullptr;
};
/// Gemma 3 and 4: layers with and without a window, heads, rope, activation, softcap.
/// UnsupportedError for layers of one kind alone.
LayersOfTwoKinds set_windowed_layers(const ModelSpec& spec, ConfigMembers& config);

}  // namespace assay
