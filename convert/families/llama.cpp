// Llama 2 and 3, Mistral, SmolLM2: architectures.md §2.
#include <fmt/format.h>

#include "convert/core/error.h"
#include "convert/families/bounds.h"
#include "convert/families/decoder_config.h"
#include "convert/families/decoder_gguf.h"
#include "convert/families/family.h"
#include "convert/families/rope_config.h"
#include "convert/families/tensor_table.h"

namespace assay {
namespace {

constexpr std::string_view kModelTypes[] = {"llama", "mistral"};
constexpr std::string_view kArchitecture = "llama";

AttentionSpec read_attention(const Json& json, const ConfigReader& config, bool is_mistral,
                             const ModelSpec& spec, const DecoderDefaults& defaults) {
  AttentionSpec attention = read_heads(config, spec.hidden_size, defaults);
  attention.qkv_bias = attention.o_bias = !is_mistral && config.boolean_or("attention_bias", false);
  attention.rope = read_rope_config(config, attention.head_dim, spec.context_length);
  if (!is_mistral) return attention;
  // Absent means the default of the model class; null means none.
  if (json.find("sliding_window") == nullptr) attention.sliding_window = 4096;
  if (config.has("sliding_window")) {
    attention.sliding_window = config.integer("sliding_window", 1, kMaxContext);
  }
  return attention;
}

ModelSpec read_config(const Json& json, const Json& generation_json) {
  const ConfigReader config(json, "config.json");
  const bool is_mistral = config.text("model_type") == "mistral";
  const DecoderDefaults defaults{.n_kv_heads = is_mistral ? 8 : 0,
                                 .context_length = is_mistral ? 131072 : 2048};
  require_activation(config, "hidden_act", {"silu", "swish"});
  ModelSpec spec = read_decoder_sizes(config, "llama", defaults);

  LayerSpec layer;
  layer.attention = read_attention(json, config, is_mistral, spec, defaults);
  layer.mlp.intermediate_size = config.integer("intermediate_size", 1, kMaxIntermediate);
  layer.mlp.bias = !is_mistral && config.boolean_or("mlp_bias", false);
  spec.layers.assign(static_cast<size_t>(read_layer_count(config)), layer);
  read_special_ids(config, generation_json, spec);
  return spec;
}

// ---------------------------------------------------------------------------------------------

std::vector<TensorEntry> tensors(const ModelSpec& spec) {
  TensorTable table(spec);
  table.add_embedding();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    table.begin_layer(static_cast<int>(i));
    table.add_norm(Role::kAttentionNorm, "input_layernorm", "attn_norm", spec.hidden_size);
    table.add_attention(layer.attention, GgufTransform::kInterleaveRope);
    table.add_norm(Role::kMlpNorm, "post_attention_layernorm", "ffn_norm", spec.hidden_size);
    table.add_mlp(layer.mlp);
  }
  table.add_output();
  return table.take();
}

bool ignores_tensor(std::string_view hf_name) {
  return hf_name.starts_with("model.layers.") && hf_name.ends_with(".rotary_emb.inv_freq");
}

// ---------------------------------------------------------------------------------------------

std::vector<GgufExtraTensor> gguf_extra_tensors(const ModelSpec& spec) {
  const RopeSpec& rope = spec.layers.front().attention.rope;
  if (rope.kind != RopeSpec::Kind::kLlama3) return {};
  return {{"rope_freqs.weight", llama3_frequency_factors(rope)}};
}

// ---------------------------------------------------------------------------------------------

void write_gguf_metadata(const ModelSpec& spec, const Json&, uint32_t file_type,
                         GgufMetadata& metadata) {
  const LayerSpec& layer = spec.layers.front();
  const AttentionSpec& attention = layer.attention;
  GgufKeys keys(std::string(kArchitecture), metadata);
  keys.count("block_count", static_cast<int64_t>(spec.layers.size()));
  keys.count("context_length", spec.context_length);
  keys.count("embedding_length", spec.hidden_size);
  keys.count("feed_forward_length", layer.mlp.intermediate_size);
  keys.count("attention.head_count", attention.n_heads);
  keys.count("attention.head_count_kv", attention.n_kv_heads);
  write_rope_scaling_gguf(attention.rope, kArchitecture, metadata);
  keys.number("rope.freq_base", attention.rope.theta);
  keys.number("attention.layer_norm_rms_epsilon", spec.rms_norm_eps);
  keys.count("attention.key_length", attention.head_dim);
  keys.count("attention.value_length", attention.head_dim);
  metadata.set("general.file_type", file_type);
  keys.count("vocab_size", spec.vocab_size);
  keys.count("rope.dimension_count", attention.rope.rotary_dims);
}

AttentionSpec read_attention_gguf(const GgufIntegers& integers, const ModelSpec& spec) {
  const GgufFile& file = integers.file();
  AttentionSpec attention = read_heads_gguf(integers, spec.hidden_size);
  const int64_t rotary_dims =
      integers.find("rope.dimension_count", 1, kMaxHeadDim).value_or(attention.head_dim);
  if (rotary_dims != attention.head_dim) {
    throw UnsupportedError(
        fmt::format("{}: \"{}.rope.dimension_count\" is {}; only the head size {} is supported",
                    file.path(), kArchitecture, rotary_dims, attention.head_dim));
  }
  attention.rope = read_rope_gguf(file, kArchitecture, attention.head_dim, spec.context_length);
  attention.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  attention.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  return attention;
}

ModelSpec read_gguf(const GgufFile& file) {
  const GgufIntegers integers(file, std::string(kArchitecture));
  refuse_keys_gguf(integers, {"expert_count", "attention.sliding_window"});
  ModelSpec spec = read_decoder_sizes_gguf(integers, "llama");
  LayerSpec layer;
  layer.attention = read_attention_gguf(integers, spec);
  layer.mlp.intermediate_size = integers.read("feed_forward_length", 1, kMaxIntermediate);
  layer.mlp.bias = file.find("blk.0.ffn_gate.bias") != nullptr;
  spec.layers.assign(static_cast<size_t>(read_layer_count_gguf(integers)), layer);
  return spec;
}

}  // namespace

extern const Family kLlamaFamily;
const Family kLlamaFamily = {
    .name = "llama",
    .model_types = kModelTypes,
    .gguf_architecture = kArchitecture,
    .read_config = read_config,
    .read_gguf = read_gguf,
    .tensors = tensors,
    .write_gguf_metadata = write_gguf_metadata,
    .gguf_extra_tensors = gguf_extra_tensors,
    .gguf_warning = gguf_window_warning,
    .ignores_tensor = ignores_tensor,
};

}  // namespace assay
