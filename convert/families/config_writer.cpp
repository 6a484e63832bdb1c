#include "convert/families/config_writer.h"

#include <array>
#include <charconv>

#include "convert/core/error.h"
#include "convert/families/rope_config.h"

namespace assay {

Json ConfigMembers::json() const {
  Json json = Json::object();
  for (const auto& [key, value] : members_) json.set(key, value);
  return json;
}

std::string_view config_dtype_name(DType dtype) {
  return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

Json decimal_of_f32(double value) {
  std::array<char, 64> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), static_cast<float>(value));
  double result = 0;
  std::from_chars(text.data(), end.ptr, result);
  return result;
}

Json bos_json(const ModelSpec& spec) { return spec.bos_id ? Json(*spec.bos_id) : Json(); }

Json stop_ids_json(const ModelSpec& spec) {
  if (spec.stop_ids.empty()) return nullptr;
  if (spec.stop_ids.size() == 1) return spec.stop_ids.front();
  Json list = Json::array();
  for (const int32_t id : spec.stop_ids) list.push(id);
  return list;
}

Json rope_json(const RopeSpec& rope) {
  ConfigMembers members;
  members.set("rope_theta", decimal_of_f32(rope.theta));
  members.set("rope_type", kRopeKindWords.name(rope.kind));
  switch (rope.kind) {
    case RopeSpec::Kind::kDefault:
      break;
    case RopeSpec::Kind::kLinear:
      members.set("factor", decimal_of_f32(rope.factor));
      break;
    case RopeSpec::Kind::kLlama3:
      members.set("factor", decimal_of_f32(rope.factor));
      members.set("low_freq_factor", decimal_of_f32(rope.low_freq_factor));
      members.set("high_freq_factor", decimal_of_f32(rope.high_freq_factor));
      members.set("original_max_position_embeddings", rope.original_context);
      break;
    case RopeSpec::Kind::kYarn:
      members.set("factor", decimal_of_f32(rope.factor));
      members.set("beta_fast", decimal_of_f32(rope.beta_fast));
      members.set("beta_slow", decimal_of_f32(rope.beta_slow));
      members.set("original_max_position_embeddings", rope.original_context);
      break;
    case RopeSpec::Kind::kProportional:
      members.set("partial_rotary_factor",
                  2.0 * rope.n_rotated_pairs / static_cast<double>(rope.rotary_dims));
      break;
  }
  return members.json();
}

void set_class(std::string_view architecture, std::string_view model_type, ConfigMembers& config) {
  config.set("architectures", Json::array().push(architecture));
  config.set("model_type", model_type);
}

void set_decoder_sizes(const ModelSpec& spec, DType dtype, ConfigMembers& config) {
  config.set("attention_dropout", 0.0);
  config.set("bos_token_id", bos_json(spec));
  config.set("dtype", config_dtype_name(dtype));
  config.set("eos_token_id", stop_ids_json(spec));
  config.set("hidden_size", spec.hidden_size);
  config.set("intermediate_size", spec.layers.front().mlp.intermediate_size);
  config.set("max_position_embeddings", spec.context_length);
  config.set("num_hidden_layers", static_cast<int64_t>(spec.layers.size()));
  config.set("rms_norm_eps", decimal_of_f32(spec.rms_norm_eps));
  config.set("tie_word_embeddings", spec.tied_head);
  config.set("vocab_size", spec.vocab_size);
}

void set_heads(const AttentionSpec& attention, ConfigMembers& config) {
  config.set("head_dim", attention.head_dim);
  config.set("num_attention_heads", attention.n_heads);
  config.set("num_key_value_heads", attention.n_kv_heads);
}

void set_attention_bias(const AttentionSpec& attention, ConfigMembers& config) {
  if (attention.qkv_bias != attention.o_bias) {
    throw UnsupportedError("config.json cannot say that q, k, v have biases and o has none");
  }
  config.set("attention_bias", attention.qkv_bias);
}

void set_dense_layers(const ModelSpec& spec, ConfigMembers& config) {
  const AttentionSpec& attention = spec.layers.front().attention;
  set_heads(attention, config);
  config.set("hidden_act", "silu");
  config.set("rope_parameters", rope_json(attention.rope));
}

LayersOfTwoKinds set_windowed_layers(const ModelSpec& spec, ConfigMembers& config) {
  LayersOfTwoKinds layers;
  Json types = Json::array();
  for (const LayerSpec& layer : spec.layers) {
    const bool slides = layer.attention.sliding_window.has_value();
    const AttentionSpec*& first = slides ? layers.sliding : layers.full;
    if (first == nullptr) first = &layer.attention;
    types.push(slides ? "sliding_attention" : "full_attention");
  }
  if (layers.full == nullptr || layers.sliding == nullptr) {
    throw UnsupportedError("config.json of this family needs layers of both kinds of attention");
  }
  set_heads(*layers.sliding, config);
  config.set("final_logit_softcapping",
             spec.final_softcap ? decimal_of_f32(*spec.final_softcap) : Json());
  config.set("hidden_activation", "gelu_pytorch_tanh");
  config.set("layer_types", std::move(types));
  config.set("rope_parameters", Json::object()
                                    .set("full_attention", rope_json(layers.full->rope))
                                    .set("sliding_attention", rope_json(layers.sliding->rope)));
  config.set("sliding_window", *layers.sliding->sliding_window);
  return layers;
}

}  // namespace assay
