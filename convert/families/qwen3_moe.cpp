// Qwen3 with experts: transformers' modeling_qwen3_moe.py.
#include <fmt/format.h>

#include <algorithm>

#include "convert/core/error.h"
#include "convert/families/bounds.h"
#include "convert/families/config_writer.h"
#include "convert/families/decoder_config.h"
#include "convert/families/decoder_gguf.h"
#include "convert/families/family.h"
#include "convert/families/rope_config.h"
#include "convert/families/tensor_table.h"

namespace assay {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen3_moe"};
constexpr std::string_view kArchitecture = "qwen3moe";
constexpr DecoderDefaults kDefaults{
    .n_kv_heads = 4, .head_dim = 128, .context_length = 32768, .tied_head = false};

/// Layers that have an MLP in place of experts.
std::vector<bool> dense_layers(const ConfigReader& config, int64_t n_layers) {
  const int64_t step = config.integer_or("decoder_sparse_step", 1, kMaxLayers, 1);
  std::vector<bool> dense;
  for (int64_t i = 0; i < n_layers; ++i) dense.push_back((i + 1) % step != 0);
  const Json* named = config.find("mlp_only_layers");
  if (named == nullptr) return dense;
  if (!named->is_array()) config.fail("mlp_only_layers", "a list of layers");
  for (const Json& layer : named->as_array()) {
    if (!layer.is_integer_in(0, n_layers - 1)) {
      config.fail("mlp_only_layers", fmt::format("layers from 0 to {}", n_layers - 1));
    }
    dense[static_cast<size_t>(layer.as_integer())] = true;
  }
  return dense;
}

MoeSpec read_experts(const ConfigReader& config) {
  MoeSpec moe;
  const char* key = config.has("num_experts") ? "num_experts" : "num_local_experts";
  moe.n_experts = static_cast<int>(config.integer_or(key, 1, kMaxExperts, 128));
  moe.top_k = static_cast<int>(config.integer_or("num_experts_per_tok", 1, moe.n_experts, 8));
  moe.intermediate_size = config.integer_or("moe_intermediate_size", 1, kMaxIntermediate, 768);
  moe.normalize = config.boolean_or("norm_topk_prob", false);
  return moe;
}

ModelSpec read_config(const Json& json, const Json& generation_json) {
  const ConfigReader config(json, "config.json");
  require_activation(config, "hidden_act", {"silu", "swish"});
  ModelSpec spec = read_decoder_sizes(config, "qwen3_moe", kDefaults);
  LayerSpec layer;
  layer.attention = read_heads(config, spec.hidden_size, kDefaults);
  layer.attention.qk_norm = true;
  layer.attention.qkv_bias = layer.attention.o_bias = config.boolean_or("attention_bias", false);
  layer.attention.rope = read_rope_config(config, layer.attention.head_dim, spec.context_length);
  const MoeSpec moe = read_experts(config);
  for (const bool dense : dense_layers(config, read_layer_count(config))) {
    LayerSpec next = layer;
    if (dense) {
      next.mlp.intermediate_size = config.integer("intermediate_size", 1, kMaxIntermediate);
    } else {
      next.moe = moe;
    }
    spec.layers.push_back(next);
  }
  read_qwen_windows(config, spec);
  read_special_ids(config, generation_json, spec);
  return spec;
}

std::vector<TensorEntry> tensors(const ModelSpec& spec) {
  TensorTable table(spec);
  table.add_embedding();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    table.begin_layer(static_cast<int>(i));
    table.add_norm(Role::kAttentionNorm, "input_layernorm", "attn_norm", spec.hidden_size);
    table.add_attention(layer.attention);
    table.add_norm(Role::kMlpNorm, "post_attention_layernorm", "ffn_norm", spec.hidden_size);
    if (!layer.moe) {
      table.add_mlp(layer.mlp);
      continue;
    }
    table.add_linear(Role::kRouter, "mlp.gate", "ffn_gate_inp", layer.moe->n_experts,
                     spec.hidden_size, false);
    table.add_experts(*layer.moe, "mlp.experts", false);
  }
  table.add_output();
  return table.take();
}

void write_gguf_metadata(const ModelSpec& spec, const Json& config, uint32_t file_type,
                         GgufMetadata& metadata) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (spec.layers[i].moe) continue;
    throw UnsupportedError(fmt::format(
        "GGUF files of this architecture have experts in every layer, but layer {} has an MLP; "
        "keep the Hugging Face folder",
        i));
  }
  const MoeSpec& moe = *spec.layers.front().moe;
  if (!moe.normalize) {
    throw UnsupportedError(
        "readers of GGUF divide the weights of the chosen experts by their sum, but norm_topk_prob "
        "is false; keep the Hugging Face folder");
  }
  const ConfigReader reader(config, "config.json");
  write_dense_gguf(spec, kArchitecture, file_type, metadata);
  GgufKeys keys(std::string(kArchitecture), metadata);
  keys.count("feed_forward_length",
             reader.integer_or("intermediate_size", 1, kMaxIntermediate, 6144));
  keys.count("expert_count", moe.n_experts);
  keys.count("expert_used_count", moe.top_k);
  keys.count("expert_feed_forward_length", moe.intermediate_size);
}

ModelSpec read_gguf(const GgufFile& file) {
  const GgufIntegers integers(file, std::string(kArchitecture));
  ModelSpec spec = read_dense_gguf(integers, "qwen3_moe", true);
  MoeSpec moe;
  moe.n_experts = static_cast<int>(integers.read("expert_count", 1, kMaxExperts));
  moe.top_k = static_cast<int>(integers.read("expert_used_count", 1, moe.n_experts));
  const int64_t shared = integers.find("feed_forward_length", 1, kMaxIntermediate).value_or(1);
  moe.intermediate_size = integers.find("expert_feed_forward_length", 1, kMaxIntermediate)
                              .value_or(std::max<int64_t>(1, shared / moe.top_k));
  for (LayerSpec& layer : spec.layers) {
    layer.attention.qk_norm = true;
    layer.mlp.intermediate_size = 0;
    layer.moe = moe;
  }
  return spec;
}

void write_config(const ModelSpec& spec, const GgufFile& file, ConfigMembers& config) {
  const LayerSpec& layer = spec.layers.front();
  const MoeSpec& moe = *layer.moe;
  set_class("Qwen3MoeForCausalLM", "qwen3_moe", config);
  set_dense_layers(spec, config);
  set_attention_bias(layer.attention, config);
  config.set("decoder_sparse_step", 1);
  // Of an MLP that no layer has.
  const GgufIntegers integers(file, std::string(kArchitecture));
  config.set("intermediate_size", integers.find("feed_forward_length", 1, kMaxIntermediate)
                                      .value_or(moe.top_k * moe.intermediate_size));
  config.set("mlp_only_layers", Json::array());
  config.set("moe_intermediate_size", moe.intermediate_size);
  config.set("norm_topk_prob", moe.normalize);
  config.set("num_experts", moe.n_experts);
  config.set("num_experts_per_tok", moe.top_k);
  config.set("use_sliding_window", false);
}

}  // namespace

extern const Family kQwen3MoeFamily;
const Family kQwen3MoeFamily = {
    .name = "qwen3_moe",
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
