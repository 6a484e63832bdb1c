// Qwen3, dense: transformers' modeling_qwen3.py.
#include "convert/families/config_writer.h"
#include "convert/families/decoder_config.h"
#include "convert/families/decoder_gguf.h"
#include "convert/families/family.h"
#include "convert/families/tensor_table.h"

namespace assay {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen3"};
constexpr std::string_view kArchitecture = "qwen3";
constexpr DecoderDefaults kDefaults{.n_kv_heads = 32, .head_dim = 128, .context_length = 32768};

ModelSpec read_config(const Json& json, const Json& generation_json) {
  const ConfigReader config(json, "config.json");
  require_activation(config, "hidden_act", {"silu", "swish"});
  ModelSpec spec = read_dense_decoder(config, "qwen3", kDefaults);
  const bool has_bias = config.boolean_or("attention_bias", false);
  for (LayerSpec& layer : spec.layers) {
    layer.attention.qk_norm = true;
    layer.attention.qkv_bias = layer.attention.o_bias = has_bias;
  }
  read_qwen_windows(config, spec);
  read_special_ids(config, generation_json, spec);
  return spec;
}

std::vector<TensorEntry> tensors(const ModelSpec& spec) { return dense_tensors(spec); }

void write_gguf_metadata(const ModelSpec& spec, const Json&, uint32_t file_type,
                         GgufMetadata& metadata) {
  write_dense_gguf(spec, kArchitecture, file_type, metadata);
}

ModelSpec read_gguf(const GgufFile& file) {
  const GgufIntegers integers(file, std::string(kArchitecture));
  ModelSpec spec = read_dense_gguf(integers, "qwen3");
  for (LayerSpec& layer : spec.layers) layer.attention.qk_norm = true;
  return spec;
}

void write_config(const ModelSpec& spec, const GgufFile&, ConfigMembers& config) {
  set_class("Qwen3ForCausalLM", "qwen3", config);
  set_dense_layers(spec, config);
  config.set("attention_bias", spec.layers.front().attention.qkv_bias);
  config.set("use_sliding_window", false);
}

}  // namespace

extern const Family kQwen3Family;
const Family kQwen3Family = {
    .name = "qwen3",
    .model_types = kModelTypes,
    .gguf_architecture = kArchitecture,
    .read_config = read_config,
    .read_gguf = read_gguf,
    .tensors = tensors,
    .write_gguf_metadata = write_gguf_metadata,
    .write_config = write_config,
    .gguf_extra_tensors = no_gguf_extras,
    .gguf_warning = gguf_window_warning,
    .ignores_tensor = is_rotary_cache,
};

}  // namespace assay
