// Gemma 4, dense text models (12B, 31B): architectures.md §6.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "convert/core/error.h"
#include "convert/families/bounds.h"
#include "convert/families/decoder_config.h"
#include "convert/families/decoder_gguf.h"
#include "convert/families/family.h"
#include "convert/families/rope_config.h"
#include "convert/families/tensor_table.h"

namespace assay {
namespace {

constexpr std::string_view kModelTypes[] = {"gemma4_text", "gemma4_unified_text"};
constexpr std::string_view kArchitecture = "gemma4";
constexpr std::string_view kFull = "full_attention";
constexpr std::string_view kSliding = "sliding_attention";
constexpr int kPatternLength = 6;  // the default: five sliding layers, one full

/// Refuses the parts of the larger variants that are not implemented, by name.
void refuse_variants(const ConfigReader& config, bool unified) {
  const int64_t per_layer =
      config.integer_or("hidden_size_per_layer_input", 0, kMaxHidden, unified ? 0 : 256);
  const auto refuse = [&](const char* key, const std::string& found) {
    throw UnsupportedError(fmt::format("{}: \"{}\" is {}; Gemma 4 models with it are not supported",
                                       config.source(), key, found));
  };
  if (per_layer != 0) refuse("hidden_size_per_layer_input", std::to_string(per_layer));
  if (config.boolean_or("enable_moe_block", false)) refuse("enable_moe_block", "true");
  if (config.integer_or("num_kv_shared_layers", 0, kMaxLayers, 0) != 0) {
    refuse("num_kv_shared_layers", "not 0");
  }
  if (config.text_or("use_bidirectional_attention", "vision") == "all") {
    refuse("use_bidirectional_attention", "\"all\"");
  }
}

std::vector<std::string> layer_types_of(const ConfigReader& config, int64_t n_layers) {
  std::vector<std::string> types = read_layer_types(config, n_layers, {kFull, kSliding});
  if (!types.empty()) return types;
  for (int64_t i = 0; i < n_layers; ++i) {
    const bool full = (i + 1) % kPatternLength == 0 || i + 1 == n_layers;
    types.emplace_back(full ? kFull : kSliding);
  }
  return types;
}

/// What `per_layer_config` says of the first full layer, for all of them: this is how newer
/// configs spell global_head_dim and num_global_key_value_heads (architectures.md, Corrections).
struct GlobalHeads {
  std::optional<int64_t> head_dim;
  std::optional<int64_t> n_kv_heads;
};

GlobalHeads global_heads(const ConfigReader& config, const std::vector<std::string>& types) {
  GlobalHeads heads;
  if (const Json* all = config.find("per_layer_config")) {
    const ConfigReader layers(*all, config.source() + ": per_layer_config");
    for (size_t i = 0; i < types.size(); ++i) {
      const Json* found = layers.find(std::to_string(i));
      if (types[i] != kFull || found == nullptr) continue;
      const ConfigReader layer(*found, layers.source() + ": " + std::to_string(i));
      if (layer.has("head_dim")) heads.head_dim = layer.integer("head_dim", 2, kMaxHeadDim);
      if (layer.has("num_key_value_heads")) {
        heads.n_kv_heads = layer.integer("num_key_value_heads", 1, kMaxHeads);
      }
      break;
    }
  }
  if (config.has("global_head_dim")) {
    heads.head_dim = config.integer("global_head_dim", 2, kMaxHeadDim);
  }
  if (config.has("num_global_key_value_heads")) {
    heads.n_kv_heads = config.integer("num_global_key_value_heads", 1, kMaxHeads);
  }
  return heads;
}

AttentionSpec full_attention(const ConfigReader& config, AttentionSpec attention,
                             const GlobalHeads& heads, int64_t context_length) {
  attention.head_dim = static_cast<int>(heads.head_dim.value_or(512));
  if (attention.head_dim % 2 != 0) config.fail("global_head_dim", "an even number");
  attention.k_is_v = config.boolean_or("attention_k_eq_v", false);
  if (attention.k_is_v && heads.n_kv_heads) {
    attention.n_kv_heads = static_cast<int>(*heads.n_kv_heads);
    if (attention.n_heads % attention.n_kv_heads != 0) {
      config.fail("num_global_key_value_heads",
                  fmt::format("a divisor of num_attention_heads ({})", attention.n_heads));
    }
  }
  attention.rope = read_layer_rope_config(config, kFull, attention.head_dim, context_length,
                                          {.theta = 1e6, .partial = 0.25, .proportional = true});
  return attention;
}

ModelSpec read_config(const Json& json, const Json& generation_json) {
  const ConfigReader config(json, "config.json");
  const bool unified = config.text("model_type") == "gemma4_unified_text";
  const DecoderDefaults defaults{
      .n_kv_heads = 4, .head_dim = 256, .context_length = 131072, .tied_head = true};
  require_activation(config, "hidden_activation", {"gelu_pytorch_tanh"});
  refuse_variants(config, unified);
  ModelSpec spec = read_decoder_sizes(config, "gemma4", defaults);
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  if (config.has("final_logit_softcapping")) {
    spec.final_softcap = config.number("final_logit_softcapping", 1e-3, 1e6);
  }
  LayerSpec layer;
  layer.sandwich_norms = layer.output_scale = true;
  layer.mlp.intermediate_size = config.integer("intermediate_size", 1, kMaxIntermediate);
  layer.mlp.activation = Activation::kGeluTanh;
  AttentionSpec sliding = read_heads(config, spec.hidden_size, defaults);
  sliding.scale = 1.0;
  sliding.qk_norm = sliding.v_norm = true;
  const std::vector<std::string> types = layer_types_of(config, read_layer_count(config));
  const AttentionSpec full =
      full_attention(config, sliding, global_heads(config, types), spec.context_length);
  sliding.rope = read_layer_rope_config(config, kSliding, sliding.head_dim, spec.context_length,
                                        {.theta = 1e4, .partial = 1.0, .proportional = false});
  sliding.sliding_window =
      config.integer_or("sliding_window", 1, kMaxContext, unified ? 1024 : 512);
  for (const std::string& type : types) {
    layer.attention = type == kFull ? full : sliding;
    spec.layers.push_back(layer);
  }
  read_special_ids(config, generation_json, spec);
  return spec;
}

std::vector<TensorEntry> tensors(const ModelSpec& spec) {
  TensorTable table(spec);
  const int64_t hidden = spec.hidden_size;
  table.add_embedding();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& attention = spec.layers[i].attention;
    table.begin_layer(static_cast<int>(i));
    table.add_norm(Role::kAttentionNorm, "input_layernorm", "attn_norm", hidden);
    table.add_attention(attention);
    table.add_norm(Role::kAttentionOutputNorm, "post_attention_layernorm", "post_attention_norm",
                   hidden);
    table.add_norm(Role::kMlpNorm, "pre_feedforward_layernorm", "ffn_norm", hidden);
    table.add_mlp(spec.layers[i].mlp);
    table.add_norm(Role::kMlpOutputNorm, "post_feedforward_layernorm", "post_ffw_norm", hidden);
    table.add(Role::kOutputScale, "layer_scalar", "layer_output_scale.weight", {1});
  }
  table.add_output();
  return table.take();
}

std::vector<GgufExtraTensor> gguf_extra_tensors(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    const RopeSpec& rope = layer.attention.rope;
    if (rope.kind != RopeSpec::Kind::kProportional) continue;
    std::vector<float> factors(static_cast<size_t>(rope.rotary_dims / 2), 1e30f);
    std::fill_n(factors.begin(), rope.n_rotated_pairs, 1.0f);
    return {{"rope_freqs.weight", std::move(factors)}};
  }
  return {};
}

void write_gguf_metadata(const ModelSpec& spec, const Json&, uint32_t file_type,
                         GgufMetadata& metadata) {
  const AttentionSpec* full = nullptr;
  const AttentionSpec* sliding = nullptr;
  std::vector<bool> pattern;
  std::vector<int32_t> kv_heads;
  for (const LayerSpec& layer : spec.layers) {
    const bool slides = layer.attention.sliding_window.has_value();
    (slides ? sliding : full) = &layer.attention;
    pattern.push_back(slides);
    kv_heads.push_back(layer.attention.n_kv_heads);
  }
  if (full == nullptr || sliding == nullptr) {
    throw UnsupportedError("GGUF files of Gemma 4 have layers of both kinds of attention");
  }
  GgufKeys keys(std::string(kArchitecture), metadata);
  keys.count("block_count", static_cast<int64_t>(spec.layers.size()));
  keys.count("context_length", spec.context_length);
  keys.count("embedding_length", spec.hidden_size);
  keys.count("feed_forward_length", spec.layers.front().mlp.intermediate_size);
  keys.count("attention.head_count", full->n_heads);
  if (full->n_kv_heads == sliding->n_kv_heads) {
    keys.count("attention.head_count_kv", full->n_kv_heads);
  } else {
    keys.set("attention.head_count_kv", GgufArray{std::move(kv_heads)});
  }
  keys.number("rope.freq_base", full->rope.theta);
  keys.number("rope.freq_base_swa", sliding->rope.theta);
  keys.number("attention.layer_norm_rms_epsilon", spec.rms_norm_eps);
  keys.count("attention.key_length", full->head_dim);
  keys.count("attention.value_length", full->head_dim);
  metadata.set("general.file_type", file_type);
  if (spec.final_softcap) keys.number("final_logit_softcapping", *spec.final_softcap);
  keys.count("attention.sliding_window", *sliding->sliding_window);
  keys.count("attention.shared_kv_layers", 0);
  keys.count("embedding_length_per_layer_input", 0);
  keys.set("attention.sliding_window_pattern", GgufArray{std::move(pattern)});
  keys.count("attention.key_length_swa", sliding->head_dim);
  keys.count("attention.value_length_swa", sliding->head_dim);
  keys.count("rope.dimension_count", full->head_dim);
  keys.count("rope.dimension_count_swa", sliding->head_dim);
}

/// head_count_kv of every layer: one number, or one per layer.
std::vector<int64_t> kv_heads_gguf(const GgufIntegers& integers, int64_t n_layers) {
  const std::string key = integers.prefix() + "attention.head_count_kv";
  const GgufValue* value = integers.file().metadata().find(key);
  const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  if (array == nullptr) {
    const int64_t n = integers.read("attention.head_count_kv", 1, kMaxHeads);
    return std::vector<int64_t>(static_cast<size_t>(n_layers), n);
  }
  const auto* counts = std::get_if<std::vector<int32_t>>(&array->values);
  if (counts == nullptr || static_cast<int64_t>(counts->size()) != n_layers ||
      std::any_of(counts->begin(), counts->end(),
                  [](int32_t n) { return n < 1 || n > kMaxHeads; })) {
    throw FormatError(fmt::format("{}: \"{}\" must hold {} counts of heads", integers.file().path(),
                                  key, n_layers));
  }
  return {counts->begin(), counts->end()};
}

/// How many leading pairs the extra tensor leaves as they are; the others must not be rotated.
int rotated_pairs_gguf(const GgufFile& file, int head_dim) {
  const std::optional<std::vector<float>> found = read_frequency_factors_gguf(file, head_dim);
  if (!found) return head_dim / 2;
  const std::vector<float>& factors = *found;
  const auto end = std::find_if(factors.begin(), factors.end(), [](float f) { return f != 1.0f; });
  if (std::any_of(end, factors.end(), [](float f) { return !(f >= 1e29f); })) {
    throw UnsupportedError(file.path() +
                           ": \"rope_freqs.weight\" does not hold ones and then 1e30; other "
                           "frequency factors are not supported");
  }
  return static_cast<int>(end - factors.begin());
}

AttentionSpec read_attention_gguf(const GgufIntegers& integers, const ModelSpec& spec,
                                  const std::string& suffix) {
  const GgufFile& file = integers.file();
  AttentionSpec attention;
  attention.n_heads = static_cast<int>(integers.read("attention.head_count", 1, kMaxHeads));
  attention.head_dim =
      static_cast<int>(integers.read("attention.key_length" + suffix, 2, kMaxHeadDim));
  if (attention.head_dim % 2 != 0 ||
      integers.read("attention.value_length" + suffix, 2, kMaxHeadDim) != attention.head_dim) {
    throw UnsupportedError(
        fmt::format("{}: heads of {} values whose keys and values differ in length, or are odd",
                    file.path(), attention.head_dim));
  }
  attention.scale = 1.0;
  attention.qk_norm = attention.v_norm = true;
  attention.rope.rotary_dims = attention.head_dim;
  attention.rope.theta = read_number_gguf(file, integers.prefix() + "rope.freq_base" + suffix, 1e-6,
                                          1e15, suffix.empty() ? 1e6 : 1e4);
  if (!suffix.empty()) {
    attention.sliding_window = integers.read("attention.sliding_window", 1, spec.context_length);
    return attention;
  }
  attention.rope.kind = RopeSpec::Kind::kProportional;
  attention.rope.n_rotated_pairs = rotated_pairs_gguf(file, attention.head_dim);
  return attention;
}

ModelSpec read_gguf(const GgufFile& file) {
  const GgufIntegers integers(file, std::string(kArchitecture));
  refuse_keys_gguf(
      integers, {"expert_count", "attention.shared_kv_layers", "embedding_length_per_layer_input"});
  ModelSpec spec = read_decoder_sizes_gguf(integers, "gemma4");
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  const double softcap =
      read_number_gguf(file, integers.prefix() + "final_logit_softcapping", 0.0, 1e6, 0.0);
  if (softcap > 0.0) spec.final_softcap = softcap;
  const int64_t n_layers = read_layer_count_gguf(integers);
  const AttentionSpec full = read_attention_gguf(integers, spec, "");
  const AttentionSpec sliding = read_attention_gguf(integers, spec, "_swa");
  const std::vector<int64_t> kv_heads = kv_heads_gguf(integers, n_layers);
  const std::vector<bool> pattern =
      read_layer_flags_gguf(integers, "attention.sliding_window_pattern", n_layers);
  LayerSpec layer;
  layer.sandwich_norms = layer.output_scale = true;
  layer.mlp.activation = Activation::kGeluTanh;
  layer.mlp.intermediate_size = integers.read("feed_forward_length", 1, kMaxIntermediate);
  for (int64_t i = 0; i < n_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    layer.attention = pattern[at] ? sliding : full;
    layer.attention.n_kv_heads = static_cast<int>(kv_heads[at]);
    layer.attention.k_is_v = file.find(fmt::format("blk.{}.attn_v.weight", i)) == nullptr;
    if (layer.attention.n_heads % layer.attention.n_kv_heads != 0) {
      throw FormatError(
          fmt::format("{}: {} key and value heads in layer {}; expected a divisor of "
                      "the {} heads",
                      file.path(), kv_heads[at], i, layer.attention.n_heads));
    }
    spec.layers.push_back(layer);
  }
  return spec;
}

std::string gguf_warning(const ModelSpec&) { return {}; }

}  // namespace

extern const Family kGemma4Family;
const Family kGemma4Family = {
    .name = "gemma4",
    .model_types = kModelTypes,
    .gguf_architecture = kArchitecture,
    .gguf_vocabulary = "gemma4",
    .read_config = read_config,
    .read_gguf = read_gguf,
    .tensors = tensors,
    .write_gguf_metadata = write_gguf_metadata,
    .gguf_extra_tensors = gguf_extra_tensors,
    .gguf_warning = gguf_warning,
    .ignores_tensor = is_rotary_cache,
};

}  // namespace assay
