// Llama 2 and 3, Mistral, SmolLM2: transformers' modeling_llama.py.
#include "convert/families/bounds.h"
#include "convert/families/config_writer.h"
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
  return dense_tensors(spec, GgufTransform::kInterleaveRope);
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
  write_dense_gguf(spec, kArchitecture, file_type, metadata);
  GgufKeys keys(std::string(kArchitecture), metadata);
  keys.count("vocab_size", spec.vocab_size);
  keys.count("rope.dimension_count", spec.layers.front().attention.rope.rotary_dims);
}

ModelSpec read_gguf(const GgufFile& file) {
  const GgufIntegers integers(file, std::string(kArchitecture));
  ModelSpec spec = read_dense_gguf(integers, "llama");
  const bool mlp_bias = file.find("blk.0.ffn_gate.bias") != nullptr;
  for (LayerSpec& layer : spec.layers) layer.mlp.bias = mlp_bias;
  return spec;
}

void write_config(const ModelSpec& spec, const GgufFile&, ConfigMembers& config) {
  const LayerSpec& layer = spec.layers.front();
  set_class("LlamaForCausalLM", "llama", config);
  set_dense_layers(spec, config);
  set_attention_bias(layer.attention, config);
  config.set("mlp_bias", layer.mlp.bias);
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
    .write_config = write_config,
    .gguf_extra_tensors = gguf_extra_tensors,
    .gguf_warning = gguf_window_warning,
    .ignores_tensor = is_rotary_cache,
};

}  // namespace assay
