// Gemma 3, text: transformers' modeling_gemma3.py.
#include <fmt/format.h>

#include <cmath>

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

constexpr std::string_view kModelTypes[] = {"gemma3_text"};
constexpr std::string_view kArchitecture = "gemma3";
constexpr std::string_view kFull = "full_attention";
constexpr std::string_view kSliding = "sliding_attention";
constexpr int64_t kPeriod = 6;  // the default: five sliding layers, one full
constexpr double kFullTheta = 1e6;
constexpr double kSlidingTheta = 1e4;
constexpr int64_t kLayersOf27B =
    62;  // the one size whose scale readers of GGUF take from the width
// Configs inside multimodal ones leave out what equals the defaults of the model class.
constexpr DecoderDefaults kDefaults{.n_heads = 8,
                                    .n_kv_heads = 4,
                                    .head_dim = 256,
                                    .context_length = 131072,
                                    .tied_head = true,
                                    .vocab_size = 262208};

std::vector<std::string> layer_types_of(const ConfigReader& config, int64_t n_layers) {
  std::vector<std::string> types = read_layer_types(config, n_layers, {kFull, kSliding});
  if (!types.empty()) return types;
  const char* key =
      config.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const int64_t period = config.integer_or(key, 1, kMaxLayers, kPeriod);
  for (int64_t i = 0; i < n_layers; ++i) {
    types.emplace_back((i + 1) % period == 0 ? kFull : kSliding);
  }
  return types;
}

/// Refuses by name what other models of this class do and what is not implemented.
void refuse_variants(const ConfigReader& config) {
  if (config.has("attn_logit_softcapping")) {
    throw UnsupportedError(config.source() +
                           ": \"attn_logit_softcapping\" is not supported for Gemma 3");
  }
  if (config.boolean_or("use_bidirectional_attention", false)) {
    throw UnsupportedError(config.source() +
                           ": \"use_bidirectional_attention\" is true; only causal attention is "
                           "supported");
  }
}

LayerSpec common_layer(const AttentionSpec& attention, int64_t intermediate_size) {
  LayerSpec layer;
  layer.sandwich_norms = true;
  layer.attention = attention;
  layer.attention.qk_norm = true;
  layer.mlp.intermediate_size = intermediate_size;
  layer.mlp.activation = Activation::kGeluTanh;
  return layer;
}

ModelSpec read_config(const Json& json, const Json& generation_json) {
  const ConfigReader config(json, "config.json");
  require_activation(config, "hidden_activation", {"gelu_pytorch_tanh"});
  refuse_variants(config);
  ModelSpec spec = read_decoder_sizes(config, "gemma3", kDefaults);
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  if (config.has("final_logit_softcapping")) {
    spec.final_softcap = config.number("final_logit_softcapping", 1e-3, 1e6);
  }
  AttentionSpec full = read_heads(config, spec.hidden_size, kDefaults);
  full.scale = 1.0 / std::sqrt(config.number_or("query_pre_attn_scalar", 1e-6, 1e6, 256.0));
  full.qkv_bias = full.o_bias = config.boolean_or("attention_bias", false);
  AttentionSpec sliding = full;
  sliding.sliding_window = config.integer_or("sliding_window", 1, kMaxContext, 4096);
  full.rope = read_layer_rope_config(
      config, kFull, full.head_dim, spec.context_length,
      {.theta = kFullTheta, .theta_key = "rope_theta", .scaling_key = "rope_scaling"});
  sliding.rope =
      read_layer_rope_config(config, kSliding, full.head_dim, spec.context_length,
                             {.theta = kSlidingTheta, .theta_key = "rope_local_base_freq"});
  const int64_t inner = config.integer("intermediate_size", 1, kMaxIntermediate);
  for (const std::string& type : layer_types_of(config, read_layer_count(config))) {
    spec.layers.push_back(common_layer(type == kFull ? full : sliding, inner));
  }
  read_special_ids(config, generation_json, spec);
  return spec;
}

std::vector<TensorEntry> tensors(const ModelSpec& spec) {
  constexpr GgufTransform kAddOne = GgufTransform::kAddOne;
  TensorTable table(spec);
  table.add_embedding();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    table.begin_layer(static_cast<int>(i));
    table.add_sandwich_layer(spec.layers[i], kAddOne);
  }
  table.add_output(kAddOne);
  return table.take();
}

/// The scale that readers assume: the file has no key for it.
double gguf_scale(const ModelSpec& spec, const AttentionSpec& attention) {
  const bool is_27b = static_cast<int64_t>(spec.layers.size()) == kLayersOf27B;
  const double columns = is_27b ? static_cast<double>(spec.hidden_size) / attention.n_heads
                                : static_cast<double>(attention.head_dim);
  return 1.0 / std::sqrt(columns);
}

/// One layer in how many is full, and the only one there: what `sliding_window_pattern` says.
int64_t period_of(const ModelSpec& spec) {
  const auto n_layers = static_cast<int64_t>(spec.layers.size());
  int64_t period = n_layers + 1;
  for (int64_t i = n_layers - 1; i >= 0; --i) {
    if (!spec.layers[static_cast<size_t>(i)].attention.sliding_window) period = i + 1;
  }
  for (int64_t i = 0; i < n_layers; ++i) {
    const bool slides = spec.layers[static_cast<size_t>(i)].attention.sliding_window.has_value();
    if (slides == ((i + 1) % period != 0)) continue;
    throw UnsupportedError(
        fmt::format("GGUF files of Gemma 3 have one full layer in {}, but layer {} of this model "
                    "is another; keep the Hugging Face folder",
                    period, i));
  }
  return period;
}

void write_gguf_metadata(const ModelSpec& spec, const Json&, uint32_t file_type,
                         GgufMetadata& metadata) {
  const AttentionSpec* full = nullptr;
  const AttentionSpec* sliding = nullptr;
  for (const LayerSpec& layer : spec.layers) {
    (layer.attention.sliding_window ? sliding : full) = &layer.attention;
  }
  if (full == nullptr || sliding == nullptr) {
    throw UnsupportedError("GGUF files of Gemma 3 have layers of both kinds of attention");
  }
  const double scale = gguf_scale(spec, *full);
  if (static_cast<float>(full->scale) != static_cast<float>(scale)) {
    throw UnsupportedError(fmt::format(
        "GGUF cannot hold the attention scale {} of this model: readers derive {} from its size; "
        "keep the Hugging Face folder",
        full->scale, scale));
  }
  GgufKeys keys(std::string(kArchitecture), metadata);
  keys.count("block_count", static_cast<int64_t>(spec.layers.size()));
  keys.count("context_length", spec.context_length);
  keys.count("embedding_length", spec.hidden_size);
  keys.count("feed_forward_length", spec.layers.front().mlp.intermediate_size);
  keys.count("attention.head_count", full->n_heads);
  keys.count("attention.head_count_kv", full->n_kv_heads);
  write_rope_scaling_gguf(full->rope, kArchitecture, metadata);
  keys.number("rope.freq_base", full->rope.theta);
  keys.number("rope.freq_base_swa", sliding->rope.theta);
  keys.number("attention.layer_norm_rms_epsilon", spec.rms_norm_eps);
  metadata.set("general.file_type", file_type);
  keys.count("attention.key_length", full->head_dim);
  keys.count("attention.value_length", full->head_dim);
  if (spec.final_softcap) keys.number("final_logit_softcapping", *spec.final_softcap);
  keys.count("attention.sliding_window", *sliding->sliding_window);
  if (const int64_t period = period_of(spec); period != kPeriod) {
    keys.count("attention.sliding_window_pattern", period);
  }
}

ModelSpec read_gguf(const GgufFile& file) {
  const GgufIntegers integers(file, std::string(kArchitecture));
  refuse_keys_gguf(integers, {"expert_count"});
  ModelSpec spec = read_decoder_sizes_gguf(integers, "gemma3");
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  const double softcap =
      read_number_gguf(file, integers.prefix() + "final_logit_softcapping", 0.0, 1e6, 0.0);
  if (softcap > 0.0) spec.final_softcap = softcap;
  AttentionSpec full = read_heads_gguf(integers, spec.hidden_size);
  full.rope = read_rope_gguf(file, kArchitecture, full.head_dim, spec.context_length);
  full.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  full.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  AttentionSpec sliding = full;
  sliding.sliding_window = integers.read("attention.sliding_window", 1, kMaxContext);
  sliding.rope = {.theta = read_number_gguf(file, integers.prefix() + "rope.freq_base_swa", 1e-6,
                                            1e15, kSlidingTheta),
                  .rotary_dims = full.head_dim};
  const int64_t period =
      integers.find("attention.sliding_window_pattern", 1, kMaxLayers).value_or(kPeriod);
  const int64_t inner = integers.read("feed_forward_length", 1, kMaxIntermediate);
  const int64_t n_layers = read_layer_count_gguf(integers);
  for (int64_t i = 0; i < n_layers; ++i) {
    spec.layers.push_back(common_layer((i + 1) % period == 0 ? full : sliding, inner));
  }
  for (LayerSpec& layer : spec.layers) layer.attention.scale = gguf_scale(spec, layer.attention);
  return spec;
}

/// s of the scale 1/√s; a whole number where there is one.
Json scalar_of_scale(double scale) {
  const double scalar = 1.0 / (scale * scale);
  const double whole = std::nearbyint(scalar);
  return 1.0 / std::sqrt(whole) == scale ? Json(static_cast<int64_t>(whole)) : Json(scalar);
}

void write_config(const ModelSpec& spec, const GgufFile&, ConfigMembers& config) {
  const LayersOfTwoKinds layers = set_windowed_layers(spec, config);
  set_class("Gemma3ForCausalLM", "gemma3_text", config);
  set_attention_bias(*layers.full, config);
  config.set("attn_logit_softcapping", nullptr);
  config.set("query_pre_attn_scalar", scalar_of_scale(layers.full->scale));
  config.set("use_bidirectional_attention", false);
}

}  // namespace

extern const Family kGemma3Family;
const Family kGemma3Family = {
    .name = "gemma3",
    .model_types = kModelTypes,
    .gguf_architecture = kArchitecture,
    .read_config = read_config,
    .read_gguf = read_gguf,
    .tensors = tensors,
    .write_gguf_metadata = write_gguf_metadata,
    .write_config = write_config,
    .gguf_extra_tensors = no_gguf_extras,
    .gguf_warning = no_gguf_warning,
    .ignores_tensor = is_rotary_cache,
};

}  // namespace assay
