// Qwen3.5, 3.6 and 3.8 dense hybrids of Gated DeltaNet and gated attention: transformers'
// modeling_qwen3_5.py.
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

constexpr std::string_view kModelTypes[] = {"qwen3_5_text"};
constexpr std::string_view kArchitecture = "qwen35";
constexpr std::string_view kFull = "full_attention";
constexpr std::string_view kLinear = "linear_attention";
constexpr int64_t kMaxKernel = 64;
constexpr DecoderDefaults kDefaults{.n_kv_heads = 4, .head_dim = 256, .context_length = 32768};

std::vector<std::string> layer_types_of(const ConfigReader& config, int64_t n_layers) {
  std::vector<std::string> types = read_layer_types(config, n_layers, {kFull, kLinear});
  if (!types.empty()) return types;
  const int64_t interval = config.integer_or("full_attention_interval", 1, kMaxLayers, 4);
  for (int64_t i = 0; i < n_layers; ++i) {
    types.emplace_back((i + 1) % interval == 0 ? kFull : kLinear);
  }
  return types;
}

DeltaNetSpec read_delta_net(const ConfigReader& config) {
  const auto read = [&](const char* key, int64_t fallback, int64_t maximum) {
    return static_cast<int>(config.integer_or(key, 1, maximum, fallback));
  };
  DeltaNetSpec spec;
  spec.n_key_heads = read("linear_num_key_heads", 16, kMaxHeads);
  spec.n_value_heads = read("linear_num_value_heads", 32, kMaxHeads);
  spec.key_dim = read("linear_key_head_dim", 128, kMaxHeadDim);
  spec.value_dim = read("linear_value_head_dim", 128, kMaxHeadDim);
  spec.conv_kernel = read("linear_conv_kernel_dim", 4, kMaxKernel);
  if (spec.n_value_heads % spec.n_key_heads != 0) {
    config.fail("linear_num_value_heads",
                fmt::format("a multiple of linear_num_key_heads ({})", spec.n_key_heads));
  }
  require_activation(config, "output_gate_type", {"swish", "silu"});
  return spec;
}

ModelSpec read_config(const Json& json, const Json& generation_json) {
  const ConfigReader config(json, "config.json");
  require_activation(config, "hidden_act", {"silu", "swish"});
  if (!config.boolean_or("attn_output_gate", true)) {
    throw UnsupportedError(config.source() +
                           ": attn_output_gate is false; attention without its gate is not "
                           "supported for this model type");
  }
  ModelSpec spec = read_decoder_sizes(config, "qwen3_5", kDefaults);
  AttentionSpec attention = read_heads(config, spec.hidden_size, kDefaults);
  attention.qk_norm = attention.output_gate = true;
  attention.qkv_bias = attention.o_bias = config.boolean_or("attention_bias", false);
  attention.rope = read_partial_rope_config(config, attention.head_dim, spec.context_length, 0.25);
  LayerSpec layer;
  layer.mlp.intermediate_size = config.integer("intermediate_size", 1, kMaxIntermediate);
  const DeltaNetSpec delta_net = read_delta_net(config);
  for (const std::string& type : layer_types_of(config, read_layer_count(config))) {
    LayerSpec next = layer;
    if (type == kFull) {
      next.attention = attention;
    } else {
      next.delta_net = delta_net;
    }
    spec.layers.push_back(next);
  }
  read_special_ids(config, generation_json, spec);
  return spec;
}

/// GGUF has the value heads of all key heads side by side, where the folder has them one key head
/// after the other (llama.cpp's convert_hf_to_gguf.py). `block` rows or columns are a head's.
BlockOrder value_heads(const DeltaNetSpec& spec, int64_t block, int64_t begin = 0) {
  const int repeats = spec.n_value_heads / spec.n_key_heads;
  if (spec.n_key_heads == 1 || repeats == 1) return {};
  return {.begin = begin, .block = block, .groups = spec.n_key_heads, .repeats = repeats};
}

void add_delta_net(const DeltaNetSpec& spec, int64_t hidden, TensorTable& table) {
  const int64_t heads = spec.n_value_heads;
  const BlockOrder one_each = value_heads(spec, 1);
  const BlockOrder rows = value_heads(spec, spec.value_dim);
  const BlockOrder behind_keys = value_heads(spec, spec.value_dim, 2 * spec.key_columns());
  table
      .add_linear(Role::kDeltaQkvProj, "linear_attn.in_proj_qkv", "attn_qkv", spec.conv_columns(),
                  hidden)
      .gguf_rows = behind_keys;
  table
      .add_linear(Role::kDeltaZProj, "linear_attn.in_proj_z", "attn_gate", spec.value_columns(),
                  hidden)
      .gguf_rows = rows;
  table.add_linear(Role::kDeltaBProj, "linear_attn.in_proj_b", "ssm_beta", heads, hidden, false)
      .gguf_rows = one_each;
  table.add_linear(Role::kDeltaAProj, "linear_attn.in_proj_a", "ssm_alpha", heads, hidden, false)
      .gguf_rows = one_each;
  table
      .add(Role::kDeltaConv, "linear_attn.conv1d.weight", "ssm_conv1d.weight",
           {spec.conv_columns(), 1, spec.conv_kernel})
      .gguf_rows = behind_keys;
  TensorEntry& decay = table.add(Role::kDeltaDecay, "linear_attn.A_log", "ssm_a", {heads});
  decay.gguf_transform = GgufTransform::kNegativeExp;
  decay.gguf_rows = one_each;
  table.add(Role::kDeltaStepBias, "linear_attn.dt_bias", "ssm_dt.bias", {heads}).gguf_rows =
      one_each;
  table.add_norm(Role::kDeltaNorm, "linear_attn.norm", "ssm_norm", spec.value_dim);
  table
      .add_linear(Role::kDeltaOutProj, "linear_attn.out_proj", "ssm_out", hidden,
                  spec.value_columns())
      .gguf_columns = rows;
}

std::vector<TensorEntry> tensors(const ModelSpec& spec) {
  constexpr GgufTransform kAddOne = GgufTransform::kAddOne;
  TensorTable table(spec);
  const int64_t hidden = spec.hidden_size;
  table.add_embedding();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const AttentionSpec& attention = layer.attention;
    table.begin_layer(static_cast<int>(i));
    table.add_norm(Role::kAttentionNorm, "input_layernorm", "attn_norm", hidden, kAddOne);
    if (layer.delta_net) {
      add_delta_net(*layer.delta_net, hidden, table);
    } else {
      table.add_attention(attention, GgufTransform::kNone, kAddOne);
    }
    table.add_norm(Role::kMlpNorm, "post_attention_layernorm", "post_attention_norm", hidden,
                   kAddOne);
    table.add_mlp(layer.mlp);
  }
  table.add_output(kAddOne);
  return table.take();
}

/// Attention, heads as in the layers that have it.
const AttentionSpec* attention_of(const ModelSpec& spec) {
  const auto found = std::find_if(spec.layers.begin(), spec.layers.end(),
                                  [](const LayerSpec& layer) { return !layer.delta_net; });
  return found == spec.layers.end() ? nullptr : &found->attention;
}

/// Blocks of attention and MLP: `_QwenMtpMixin` of llama.cpp's conversion/qwen.py, load_block_mtp
/// of its src/models/qwen35.cpp.
std::vector<TensorEntry> prediction_tensors(const ModelSpec& spec) {
  constexpr GgufTransform kAddOne = GgufTransform::kAddOne;
  const AttentionSpec* attention = attention_of(spec);
  if (attention == nullptr) return {};
  TensorTable table(spec);
  for (int i = 0; i < spec.n_prediction_blocks; ++i) {
    if (i == 0) table.add_prediction_parts(kAddOne);
    table.begin_prediction_block(i);
    table.add_norm(Role::kAttentionNorm, "input_layernorm", "attn_norm", spec.hidden_size, kAddOne);
    table.add_attention(*attention, GgufTransform::kNone, kAddOne);
    table.add_norm(Role::kMlpNorm, "post_attention_layernorm", "post_attention_norm",
                   spec.hidden_size, kAddOne);
    table.add_mlp(spec.layers.front().mlp);
  }
  return table.take();
}

void write_gguf_metadata(const ModelSpec& spec, const Json& config, uint32_t file_type,
                         GgufMetadata& metadata) {
  std::vector<bool> recurrent;
  const AttentionSpec* attention = attention_of(spec);
  const DeltaNetSpec* delta_net = nullptr;
  int64_t interval = 0;
  for (const LayerSpec& layer : spec.layers) {
    recurrent.push_back(layer.delta_net.has_value());
    if (layer.delta_net) delta_net = &*layer.delta_net;
    if (!layer.delta_net && interval == 0) interval = static_cast<int64_t>(recurrent.size());
  }
  if (attention == nullptr || delta_net == nullptr) {
    throw UnsupportedError("GGUF files of this architecture have layers of both kinds");
  }
  const int n_blocks = static_cast<int>(spec.layers.size()) + spec.n_prediction_blocks;
  recurrent.resize(static_cast<size_t>(n_blocks), false);
  std::vector<int32_t> sections = {11, 11, 10, 0};  // readers want the key; text does not use it
  const Json* rope = config.find("rope_parameters");
  if (rope != nullptr && rope->is_object() && rope->find("mrope_section") != nullptr) {
    const Json& list = rope->at("mrope_section");
    sections.assign(4, 0);
    for (size_t i = 0; list.is_array() && i < std::min<size_t>(4, list.as_array().size()); ++i) {
      const int64_t section = list.as_array()[i].as_integer();
      if (section < 0 || section > attention->head_dim) {
        throw FormatError(fmt::format(
            "config.json: rope_parameters: mrope_section holds {}; expected 0 to head_dim ({})",
            section, attention->head_dim));
      }
      sections[i] = static_cast<int32_t>(section);
    }
  }
  GgufKeys keys(std::string(kArchitecture), metadata);
  keys.count("block_count", n_blocks);
  keys.count("context_length", spec.context_length);
  keys.count("embedding_length", spec.hidden_size);
  keys.count("feed_forward_length", spec.layers.front().mlp.intermediate_size);
  keys.count("attention.head_count", attention->n_heads);
  keys.count("attention.head_count_kv", attention->n_kv_heads);
  write_rope_scaling_gguf(attention->rope, kArchitecture, metadata);
  keys.set("rope.dimension_sections", GgufArray{std::move(sections)});
  keys.number("rope.freq_base", attention->rope.theta);
  keys.number("attention.layer_norm_rms_epsilon", spec.rms_norm_eps);
  keys.count("attention.key_length", attention->head_dim);
  keys.count("attention.value_length", attention->head_dim);
  metadata.set("general.file_type", file_type);
  if (spec.n_prediction_blocks > 0) keys.count("nextn_predict_layers", spec.n_prediction_blocks);
  keys.count("ssm.conv_kernel", delta_net->conv_kernel);
  keys.count("ssm.state_size", delta_net->key_dim);
  keys.count("ssm.group_count", delta_net->n_key_heads);
  keys.count("ssm.time_step_rank", delta_net->n_value_heads);
  keys.count("ssm.inner_size", delta_net->value_columns());
  keys.set("attention.recurrent_layers", GgufArray{std::move(recurrent)});
  keys.count("full_attention_interval", interval);
  keys.count("rope.dimension_count", attention->rope.rotary_dims);
}

DeltaNetSpec read_delta_net_gguf(const GgufIntegers& integers) {
  DeltaNetSpec spec;
  const auto read = [&](const char* key, int64_t maximum) {
    return static_cast<int>(integers.read(key, 1, maximum));
  };
  spec.conv_kernel = read("ssm.conv_kernel", kMaxKernel);
  spec.key_dim = read("ssm.state_size", kMaxHeadDim);
  spec.n_key_heads = read("ssm.group_count", kMaxHeads);
  spec.n_value_heads = read("ssm.time_step_rank", kMaxHeads);
  const int64_t inner = integers.read("ssm.inner_size", 1, kMaxHeads * kMaxHeadDim);
  if (spec.n_value_heads % spec.n_key_heads != 0 || inner % spec.n_value_heads != 0) {
    throw FormatError(fmt::format(
        "{}: \"{}ssm.inner_size\" is {} with {} value heads and {} key heads; expected multiples",
        integers.file().path(), integers.prefix(), inner, spec.n_value_heads, spec.n_key_heads));
  }
  spec.value_dim = static_cast<int>(inner / spec.n_value_heads);
  return spec;
}

ModelSpec read_gguf(const GgufFile& file) {
  const GgufIntegers integers(file, std::string(kArchitecture));
  refuse_keys_gguf(integers, {"expert_count"});
  ModelSpec spec = read_decoder_sizes_gguf(integers, "qwen3_5");
  const int64_t n_blocks = read_layer_count_gguf(integers);
  spec.n_prediction_blocks =
      static_cast<int>(integers.find("nextn_predict_layers", 0, n_blocks - 1).value_or(0));
  const int64_t n_layers = n_blocks - spec.n_prediction_blocks;
  AttentionSpec attention = read_heads_gguf(integers, spec.hidden_size);
  attention.qk_norm = attention.output_gate = true;
  const auto rotary_dims =
      static_cast<int>(integers.read("rope.dimension_count", 2, attention.head_dim));
  attention.rope = read_rope_gguf(file, kArchitecture, rotary_dims, spec.context_length);
  std::vector<bool> recurrent;
  if (file.metadata().find(integers.prefix() + "attention.recurrent_layers") != nullptr) {
    recurrent = read_layer_flags_gguf(integers, "attention.recurrent_layers", n_blocks);
    recurrent.resize(static_cast<size_t>(n_layers));
  } else {
    const int64_t interval = integers.find("full_attention_interval", 1, kMaxLayers).value_or(4);
    for (int64_t i = 0; i < n_layers; ++i) recurrent.push_back((i + 1) % interval != 0);
  }
  const DeltaNetSpec delta_net = read_delta_net_gguf(integers);
  for (const bool is_recurrent : recurrent) {
    LayerSpec layer;
    layer.mlp.intermediate_size = integers.read("feed_forward_length", 1, kMaxIntermediate);
    if (is_recurrent) {
      layer.delta_net = delta_net;
    } else {
      layer.attention = attention;
    }
    spec.layers.push_back(layer);
  }
  return spec;
}

/// The first three of rope.dimension_sections, unless all are 0.
std::optional<Json> mrope_sections(const GgufFile& file) {
  const GgufValue* value =
      file.metadata().find(std::string(kArchitecture) + ".rope.dimension_sections");
  const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  const auto* sizes =
      array == nullptr ? nullptr : std::get_if<std::vector<int32_t>>(&array->values);
  if (sizes == nullptr ||
      std::all_of(sizes->begin(), sizes->end(), [](int32_t n) { return n == 0; })) {
    return std::nullopt;
  }
  Json list = Json::array();
  for (size_t i = 0; i < std::min<size_t>(3, sizes->size()); ++i) list.push((*sizes)[i]);
  return list;
}

void write_config(const ModelSpec& spec, const GgufFile& file, ConfigMembers& config) {
  const AttentionSpec* attention = attention_of(spec);
  const DeltaNetSpec* delta_net = nullptr;
  Json types = Json::array();
  for (const LayerSpec& layer : spec.layers) {
    if (layer.delta_net) delta_net = &*layer.delta_net;
    types.push(layer.delta_net ? kLinear : kFull);
  }
  if (attention == nullptr || delta_net == nullptr) {
    throw UnsupportedError("config.json of Qwen3.5 needs layers of both kinds");
  }
  set_class("Qwen3_5ForCausalLM", "qwen3_5_text", config);
  set_heads(*attention, config);
  const double partial =
      static_cast<double>(attention->rope.rotary_dims) / static_cast<double>(attention->head_dim);
  Json rope = rope_json(attention->rope);
  rope.set("partial_rotary_factor", partial);
  if (std::optional<Json> sections = mrope_sections(file)) {
    rope.set("mrope_interleaved", true).set("mrope_section", std::move(*sections));
  }
  config.set("attention_bias", attention->qkv_bias);
  config.set("hidden_act", "silu");
  config.set("layer_types", std::move(types));
  config.set("linear_conv_kernel_dim", delta_net->conv_kernel);
  config.set("linear_key_head_dim", delta_net->key_dim);
  config.set("linear_num_key_heads", delta_net->n_key_heads);
  config.set("linear_num_value_heads", delta_net->n_value_heads);
  config.set("linear_value_head_dim", delta_net->value_dim);
  if (spec.n_prediction_blocks > 0) {
    config.set("mtp_num_hidden_layers", int64_t{spec.n_prediction_blocks});
  }
  config.set("partial_rotary_factor", partial);
  config.set("rope_parameters", std::move(rope));
}

}  // namespace

extern const Family kQwen35Family;
const Family kQwen35Family = {
    .name = "qwen3_5",
    .model_types = kModelTypes,
    .gguf_architecture = kArchitecture,
    .read_config = read_config,
    .read_gguf = read_gguf,
    .tensors = tensors,
    .prediction_tensors = prediction_tensors,
    .write_gguf_metadata = write_gguf_metadata,
    .write_config = write_config,
    .gguf_extra_tensors = no_gguf_extras,
    .gguf_warning = no_gguf_warning,
    .ignores_tensor = is_rotary_cache,
};

}  // namespace assay
