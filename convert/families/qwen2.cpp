// Qwen2 and Qwen2.5, dense: transformers' modeling_qwen2.py.
#include "convert/families/config_writer.h"
#include "convert/families/decoder_config.h"
#include "convert/families/decoder_gguf.h"
#include "convert/families/family.h"
#include "convert/families/tensor_table.h"

namespace assay {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen2"};
constexpr std::string_view kArchitecture = "qwen2";
constexpr DecoderDefaults kDefaults{.n_kv_heads = 32, .context_length = 32768};

ModelSpec read_config(const Json& json, const Json& generation_json) {
  const ConfigReader config(json, "config.json");
  require_activation(config, "hidden_act", {"silu", "swish"});
  ModelSpec spec = read_dense_decoder(config, "qwen2", kDefaults);
  for (LayerSpec& layer : spec.layers) layer.attention.qkv_bias = true;
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
  ModelSpec spec = read_dense_gguf(integers, "qwen2");
  for (LayerSpec& layer : spec.layers) layer.attention.qkv_bias = true;
  return spec;
}

void write_config(const ModelSpec& spec, const GgufFile&, ConfigMembers& config) {
  set_class("Qwen2ForCausalLM", "qwen2", config);
  set_dense_layers(spec, config);
  config.set("use_sliding_window", false);
}

}  // namespace

extern const Family kQwen2Family;
const Family kQwen2Family = {
    .name = "qwen2",
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
