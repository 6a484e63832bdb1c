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

/// Mistral's: absent means the default of the model class; null means none.
std::optional<int64_t> read_window(const Json& json, const ConfigReader& config) {
  if (config.has("sliding_window")) return config.integer("sliding_window", 1, kMaxContext);
  if (json.find("sliding_window") == nullptr) return 4096;
  return std::nullopt;
}

ModelSpec read_config(const Json& json, const Json& generation_json) {
  const ConfigReader config(json, "config.json");
  const bool is_mistral = config.text("model_type") == "mistral";
  const DecoderDefaults defaults{.n_kv_heads = is_mistral ? 8 : 0,
                                 .context_length = is_mistral ? 131072 : 2048};
  require_activation(config, "hidden_act", {"silu", "swish"});
  ModelSpec spec = read_dense_decoder(config, "llama", defaults);
  const bool attention_bias = !is_mistral && config.boolean_or("attention_bias", false);
  const bool mlp_bias = !is_mistral && config.boolean_or("mlp_bias", false);
  for (LayerSpec& layer : spec.layers) {
    layer.attention.qkv_bias = layer.attention.o_bias = attention_bias;
    layer.mlp.bias = mlp_bias;
    if (is_mistral) layer.attention.sliding_window = read_window(json, config);
  }
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
