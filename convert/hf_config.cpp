#include "convert/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "convert/core/error.h"

namespace assay {
namespace {

/// GGUF holds numbers as fp32: the shortest decimal that gives the same one.
double decimal(double value) {
  std::array<char, 64> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), static_cast<float>(value));
  double result = 0;
  std::from_chars(text.data(), end.ptr, result);
  return result;
}

/// Members that are written sorted by key, as Hugging Face saves them.
class Members {
 public:
  void set(const std::string& key, Json value) { members_[key] = std::move(value); }
  Json json() const {
    Json json = Json::object();
    for (const auto& [key, value] : members_) json.set(key, value);
    return json;
  }

 private:
  std::map<std::string, Json> members_;
};

Json rope_of(const RopeSpec& rope) {
  Members members;
  members.set("rope_theta", decimal(rope.theta));
  switch (rope.kind) {
    case RopeSpec::Kind::kDefault:
      members.set("rope_type", "default");
      break;
    case RopeSpec::Kind::kLinear:
      members.set("rope_type", "linear");
      members.set("factor", decimal(rope.factor));
      break;
    case RopeSpec::Kind::kLlama3:
      members.set("rope_type", "llama3");
      members.set("factor", decimal(rope.factor));
      members.set("low_freq_factor", decimal(rope.low_freq_factor));
      members.set("high_freq_factor", decimal(rope.high_freq_factor));
      members.set("original_max_position_embeddings", rope.original_context);
      break;
    case RopeSpec::Kind::kYarn:
      members.set("rope_type", "yarn");
      members.set("factor", decimal(rope.factor));
      members.set("beta_fast", decimal(rope.beta_fast));
      members.set("beta_slow", decimal(rope.beta_slow));
      members.set("original_max_position_embeddings", rope.original_context);
      break;
    case RopeSpec::Kind::kProportional:
      members.set("rope_type", "proportional");
      members.set("partial_rotary_factor",
                  2.0 * rope.n_rotated_pairs / static_cast<double>(rope.rotary_dims));
      break;
  }
  return members.json();
}

Json ids_of(const std::vector<int32_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids.front();
  Json list = Json::array();
  for (const int32_t id : ids) list.push(id);
  return list;
}

Json bos_of(const ModelSpec& spec) { return spec.bos_id ? Json(*spec.bos_id) : Json(); }

void set_class(Members& members, std::string_view name, std::string_view model_type) {
  members.set("architectures", Json::array().push(name));
  members.set("model_type", model_type);
}

void set_sizes(const ModelSpec& spec, DType dtype, Members& members) {
  members.set("attention_dropout", 0.0);
  members.set("bos_token_id", bos_of(spec));
  members.set("dtype", dtype == DType::kBF16  ? "bfloat16"
                       : dtype == DType::kF16 ? "float16"
                                              : "float32");
  members.set("eos_token_id", ids_of(spec.stop_ids));
  members.set("hidden_size", spec.hidden_size);
  members.set("intermediate_size", spec.layers.front().mlp.intermediate_size);
  members.set("max_position_embeddings", spec.context_length);
  members.set("num_hidden_layers", static_cast<int64_t>(spec.layers.size()));
  members.set("rms_norm_eps", decimal(spec.rms_norm_eps));
  members.set("tie_word_embeddings", spec.tied_head);
  members.set("vocab_size", spec.vocab_size);
}

void set_heads(const AttentionSpec& attention, Members& members) {
  members.set("head_dim", attention.head_dim);
  members.set("num_attention_heads", attention.n_heads);
  members.set("num_key_value_heads", attention.n_kv_heads);
}

/// One member for the biases of all four projections.
void set_attention_bias(const AttentionSpec& attention, Members& members) {
  if (attention.qkv_bias != attention.o_bias) {
    throw UnsupportedError("config.json cannot say that q, k, v have biases and o has none");
  }
  members.set("attention_bias", attention.qkv_bias);
}

/// Layers that are all alike.
void set_dense(const ModelSpec& spec, Members& members) {
  const AttentionSpec& attention = spec.layers.front().attention;
  set_heads(attention, members);
  members.set("hidden_act", "silu");
  members.set("rope_parameters", rope_of(attention.rope));
}

void set_llama(const Checkpoint& checkpoint, Members& members) {
  const ModelSpec& spec = checkpoint.spec();
  const LayerSpec& layer = spec.layers.front();
  set_class(members, "LlamaForCausalLM", "llama");
  set_dense(spec, members);
  set_attention_bias(layer.attention, members);
  members.set("mlp_bias", layer.mlp.bias);
}

void set_qwen2(const Checkpoint& checkpoint, Members& members) {
  const ModelSpec& spec = checkpoint.spec();
  set_class(members, "Qwen2ForCausalLM", "qwen2");
  set_dense(spec, members);
  members.set("use_sliding_window", false);
}

void set_qwen3(const Checkpoint& checkpoint, Members& members) {
  const ModelSpec& spec = checkpoint.spec();
  set_class(members, "Qwen3ForCausalLM", "qwen3");
  set_dense(spec, members);
  members.set("attention_bias", spec.layers.front().attention.qkv_bias);
  members.set("use_sliding_window", false);
}

void set_qwen3_moe(const Checkpoint& checkpoint, Members& members) {
  const ModelSpec& spec = checkpoint.spec();
  const MoeSpec& moe = *spec.layers.front().moe;
  set_class(members, "Qwen3MoeForCausalLM", "qwen3_moe");
  set_dense(spec, members);
  set_attention_bias(spec.layers.front().attention, members);
  members.set("decoder_sparse_step", 1);
  // Of an MLP that no layer has.
  members.set("intermediate_size", checkpoint.gguf()
                                       ->metadata()
                                       .integer("qwen3moe.feed_forward_length")
                                       .value_or(moe.top_k * moe.intermediate_size));
  members.set("mlp_only_layers", Json::array());
  members.set("moe_intermediate_size", moe.intermediate_size);
  members.set("norm_topk_prob", moe.normalize);
  members.set("num_experts", moe.n_experts);
  members.set("num_experts_per_tok", moe.top_k);
  members.set("use_sliding_window", false);
}

/// The first layer of each kind: those after it may read its keys and values.
struct GemmaLayers {
  const AttentionSpec* full = nullptr;
  const AttentionSpec* sliding = nullptr;
};

/// What Gemma 3 and 4 share.
GemmaLayers set_gemma(const ModelSpec& spec, Members& members) {
  GemmaLayers layers;
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
  set_heads(*layers.sliding, members);
  members.set("final_logit_softcapping",
              spec.final_softcap ? Json(decimal(*spec.final_softcap)) : Json());
  members.set("hidden_activation", "gelu_pytorch_tanh");
  members.set("layer_types", std::move(types));
  members.set("rope_parameters", Json::object()
                                     .set("full_attention", rope_of(layers.full->rope))
                                     .set("sliding_attention", rope_of(layers.sliding->rope)));
  members.set("sliding_window", *layers.sliding->sliding_window);
  return layers;
}

/// s of the scale 1/√s; a whole number where there is one.
Json scalar_of_scale(double scale) {
  const double scalar = 1.0 / (scale * scale);
  const double whole = std::nearbyint(scalar);
  return 1.0 / std::sqrt(whole) == scale ? Json(static_cast<int64_t>(whole)) : Json(scalar);
}

void set_gemma3(const Checkpoint& checkpoint, Members& members) {
  const GemmaLayers layers = set_gemma(checkpoint.spec(), members);
  set_class(members, "Gemma3ForCausalLM", "gemma3_text");
  set_attention_bias(*layers.full, members);
  members.set("attn_logit_softcapping", nullptr);
  members.set("query_pre_attn_scalar", scalar_of_scale(layers.full->scale));
  members.set("use_bidirectional_attention", false);
}

void set_gemma4(const Checkpoint& checkpoint, Members& members) {
  const ModelSpec& spec = checkpoint.spec();
  const GemmaLayers layers = set_gemma(spec, members);
  const AttentionSpec *full = layers.full, *sliding = layers.sliding;
  const auto n_shared =
      std::count_if(spec.layers.begin(), spec.layers.end(),
                    [](const LayerSpec& layer) { return layer.attention.kv_source.has_value(); });
  const LayerSpec &first = spec.layers.front(), &last = spec.layers.back();
  const std::optional<MoeSpec>& moe = first.moe;
  set_class(members, "Gemma4ForCausalLM", "gemma4_text");
  Json per_layer = Json::object();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (spec.layers[i].attention.sliding_window) continue;
    Json layer = Json::object().set("head_dim", full->head_dim);
    if (full->n_kv_heads != sliding->n_kv_heads) {
      layer.set("num_key_value_heads", full->n_kv_heads);
    }
    per_layer.set(std::to_string(i), std::move(layer));
  }
  members.set("attention_bias", false);
  members.set("attention_k_eq_v", full->k_is_v);
  members.set("enable_moe_block", moe.has_value());
  members.set("hidden_size_per_layer_input", spec.per_layer_input_size);
  members.set("moe_intermediate_size", moe ? Json(moe->intermediate_size) : Json());
  members.set("num_experts", moe ? Json(moe->n_experts) : Json());
  members.set("num_kv_shared_layers", static_cast<int64_t>(n_shared));
  members.set("per_layer_config", std::move(per_layer));
  members.set("top_k_experts", moe ? Json(moe->top_k) : Json());
  members.set("use_double_wide_mlp", last.mlp.intermediate_size == 2 * first.mlp.intermediate_size);
  members.set("vocab_size_per_layer_input", spec.vocab_size);
}

void set_qwen3_5(const Checkpoint& checkpoint, Members& members) {
  const ModelSpec& spec = checkpoint.spec();
  const AttentionSpec* attention = nullptr;
  const DeltaNetSpec* delta_net = nullptr;
  Json types = Json::array();
  for (const LayerSpec& layer : spec.layers) {
    if (layer.delta_net) {
      delta_net = &*layer.delta_net;
    } else {
      attention = &layer.attention;
    }
    types.push(layer.delta_net ? "linear_attention" : "full_attention");
  }
  if (attention == nullptr || delta_net == nullptr) {
    throw UnsupportedError("config.json of Qwen3.5 needs layers of both kinds");
  }
  set_class(members, "Qwen3_5ForCausalLM", "qwen3_5_text");
  set_heads(*attention, members);
  const double partial =
      static_cast<double>(attention->rope.rotary_dims) / static_cast<double>(attention->head_dim);
  Json rope = rope_of(attention->rope);
  rope.set("partial_rotary_factor", partial);
  const GgufValue* sections = checkpoint.gguf()->metadata().find("qwen35.rope.dimension_sections");
  const auto* array = sections == nullptr ? nullptr : std::get_if<GgufArray>(sections);
  const auto* sizes =
      array == nullptr ? nullptr : std::get_if<std::vector<int32_t>>(&array->values);
  if (sizes != nullptr &&
      std::any_of(sizes->begin(), sizes->end(), [](int32_t n) { return n != 0; })) {
    Json list = Json::array();
    for (size_t i = 0; i < std::min<size_t>(3, sizes->size()); ++i) list.push((*sizes)[i]);
    rope.set("mrope_interleaved", true).set("mrope_section", std::move(list));
  }
  members.set("attention_bias", attention->qkv_bias);
  members.set("hidden_act", "silu");
  members.set("layer_types", std::move(types));
  members.set("linear_conv_kernel_dim", delta_net->conv_kernel);
  members.set("linear_key_head_dim", delta_net->key_dim);
  members.set("linear_num_key_heads", delta_net->n_key_heads);
  members.set("linear_num_value_heads", delta_net->n_value_heads);
  members.set("linear_value_head_dim", delta_net->value_dim);
  members.set("partial_rotary_factor", partial);
  members.set("rope_parameters", std::move(rope));
}

struct ConfigWriter {
  std::string_view family;
  void (*set)(const Checkpoint& checkpoint, Members& members);
};

constexpr ConfigWriter kWriters[] = {
    {"llama", set_llama},         {"qwen2", set_qwen2},   {"qwen3", set_qwen3},
    {"qwen3_moe", set_qwen3_moe}, {"gemma3", set_gemma3}, {"gemma4", set_gemma4},
    {"qwen3_5", set_qwen3_5},
};

/// The keys of the architecture that `config` leads to must be those of the file.
void check_config(const Checkpoint& checkpoint, const Json& config) {
  const Family& family = checkpoint.family();
  const ModelSpec spec = family.read_config(config, generation_config_of_gguf(checkpoint));
  GgufMetadata from_spec, from_config;
  family.write_gguf_metadata(checkpoint.spec(), config, 0, from_spec);
  family.write_gguf_metadata(spec, config, 0, from_config);
  const auto fail = [&](const std::string& what) {
    throw FormatError(
        fmt::format("{}: the config.json that was made for it says {}; please report this file",
                    checkpoint.path(), what));
  };
  for (const auto& [key, value] : from_spec.items()) {
    const GgufValue* other = from_config.find(key);
    if (other == nullptr || !(*other == value)) fail("something else about \"" + key + "\"");
  }
  const std::vector<TensorEntry> a = family.tensors(checkpoint.spec()), b = family.tensors(spec);
  const bool same = std::equal(a.begin(), a.end(), b.begin(), b.end(),
                               [](const TensorEntry& x, const TensorEntry& y) {
                                 return x.hf_name == y.hf_name && x.shape == y.shape;
                               });
  if (!same) fail("other tensors");
  if (spec.stop_ids != checkpoint.spec().stop_ids || spec.bos_id != checkpoint.spec().bos_id) {
    fail("other special ids");
  }
}

}  // namespace

Json config_of_gguf(const Checkpoint& checkpoint, DType dtype) {
  const ModelSpec& spec = checkpoint.spec();
  Members members;
  set_sizes(spec, dtype, members);
  const auto* writer =
      std::find_if(std::begin(kWriters), std::end(kWriters),
                   [&](const ConfigWriter& row) { return row.family == spec.family; });
  if (writer == std::end(kWriters)) {
    throw UnsupportedError(
        fmt::format("{}: writing config.json of the family {} is not implemented",
                    checkpoint.path(), spec.family));
  }
  writer->set(checkpoint, members);
  Json config = members.json();
  check_config(checkpoint, config);
  return config;
}

Json generation_config_of_gguf(const Checkpoint& checkpoint) {
  const ModelSpec& spec = checkpoint.spec();
  return Json::object()
      .set("bos_token_id", bos_of(spec))
      .set("eos_token_id", ids_of(spec.stop_ids));
}

}  // namespace assay
