// Gemma 4, text: dense (12B, 31B), with per-layer embeddings and shared keys and values (E2B, E4B),
// and with experts beside the MLP (26B-A4B): transformers' modeling_gemma4.py.
#include <fmt/format.h>

#include <algorithm>
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

constexpr std::string_view kModelTypes[] = {"gemma4_text", "gemma4_unified_text"};
constexpr std::string_view kArchitecture = "gemma4";
constexpr std::string_view kFull = "full_attention";
constexpr std::string_view kSliding = "sliding_attention";
constexpr int kPatternLength = 6;  // the default: five sliding layers, one full

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
/// configs spell global_head_dim and num_global_key_value_heads (transformers' configuration
/// files).
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

/// The last of the first `n_own` layers that is of the kind of layer `i`.
template <class Kind>
std::optional<int> kv_source_of(const std::vector<Kind>& kinds, int64_t i, int64_t n_own) {
  for (int64_t source = n_own - 1; source >= 0; --source) {
    if (kinds[static_cast<size_t>(source)] == kinds[static_cast<size_t>(i)]) {
      return static_cast<int>(source);
    }
  }
  return std::nullopt;
}

AttentionSpec full_attention(const ConfigReader& config, AttentionSpec attention,
                             const GlobalHeads& heads, int64_t context_length) {
  attention.head_dim = static_cast<int>(heads.head_dim.value_or(512));
  if (attention.head_dim % 2 != 0) config.fail("global_head_dim", "an even number");
  if (config.boolean_or("attention_bias", false)) {
    throw UnsupportedError(config.source() +
                           ": attention_bias is true; expected false, no Gemma 4 checkpoint known "
                           "has biases in its attention");
  }
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

std::optional<MoeSpec> read_experts(const ConfigReader& config) {
  if (!config.boolean_or("enable_moe_block", false)) return std::nullopt;
  MoeSpec moe;
  moe.n_experts = static_cast<int>(config.integer("num_experts", 1, kMaxExperts));
  moe.top_k = static_cast<int>(config.integer("top_k_experts", 1, moe.n_experts));
  moe.intermediate_size = config.integer("moe_intermediate_size", 1, kMaxIntermediate);
  moe.activation = Activation::kGeluTanh;
  moe.beside_mlp = true;
  return moe;
}

/// The last layers have no keys and values of their own: they read those of the last layer of their
/// kind before them, and may have an MLP of twice the width.
void share_keys_and_values(const ConfigReader& config, const std::vector<std::string>& types,
                           ModelSpec& spec) {
  const auto n_layers = static_cast<int64_t>(types.size());
  const int64_t n_shared = config.integer_or("num_kv_shared_layers", 0, n_layers - 1, 0);
  const bool double_wide = config.boolean_or("use_double_wide_mlp", false);
  for (int64_t i = n_layers - n_shared; i < n_layers; ++i) {
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    layer.attention.kv_source = kv_source_of(types, i, n_layers - n_shared);
    if (!layer.attention.kv_source) {
      config.fail("num_kv_shared_layers",
                  fmt::format("fewer: no layer before them is of the kind \"{}\"",
                              types[static_cast<size_t>(i)]));
    }
    if (double_wide) layer.mlp.intermediate_size *= 2;
  }
}

ModelSpec read_config(const Json& json, const Json& generation_json) {
  const ConfigReader config(json, "config.json");
  const bool unified = config.text("model_type") == "gemma4_unified_text";
  const DecoderDefaults defaults{
      .n_kv_heads = 4, .head_dim = 256, .context_length = 131072, .tied_head = true};
  require_activation(config, "hidden_activation", {"gelu_pytorch_tanh"});
  if (config.text_or("use_bidirectional_attention", "vision") == "all") {
    throw UnsupportedError(config.source() +
                           ": \"use_bidirectional_attention\" is \"all\"; only causal attention is "
                           "supported");
  }
  ModelSpec spec = read_decoder_sizes(config, "gemma4", defaults);
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  if (config.has("final_logit_softcapping")) {
    spec.final_softcap = config.number("final_logit_softcapping", 1e-3, 1e6);
  }
  spec.per_layer_input_size =
      config.integer_or("hidden_size_per_layer_input", 0, kMaxHidden, unified ? 0 : 256);
  const int64_t rows =
      config.integer_or("vocab_size_per_layer_input", 1, kMaxVocabulary, spec.vocab_size);
  if (spec.per_layer_input_size > 0 && rows != spec.vocab_size) {
    config.fail("vocab_size_per_layer_input", fmt::format("vocab_size ({})", spec.vocab_size));
  }
  LayerSpec layer;
  layer.sandwich_norms = layer.output_scale = true;
  layer.moe = read_experts(config);
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
  share_keys_and_values(config, types, spec);
  read_special_ids(config, generation_json, spec);
  return spec;
}

void add_experts(const MoeSpec& moe, int64_t hidden, TensorTable& table) {
  table.add_norm(Role::kBesideMlpNorm, "post_feedforward_layernorm_1", "post_ffw_norm_1", hidden);
  table.add(Role::kRouterScale, "router.scale", "ffn_gate_inp.scale", {hidden});
  table.add_linear(Role::kRouter, "router.proj", "ffn_gate_inp", moe.n_experts, hidden, false);
  table.add(Role::kExpertScale, "router.per_expert_scale", "ffn_down_exps.scale", {moe.n_experts});
  table.add_norm(Role::kExpertNorm, "pre_feedforward_layernorm_2", "pre_ffw_norm_2", hidden);
  table.add_experts(moe, "experts", true);
  table.add_norm(Role::kExpertOutputNorm, "post_feedforward_layernorm_2", "post_ffw_norm_2",
                 hidden);
}

std::vector<TensorEntry> tensors(const ModelSpec& spec) {
  TensorTable table(spec);
  const int64_t hidden = spec.hidden_size;
  const int64_t per_layer = spec.per_layer_input_size;
  const int64_t all_layers = per_layer * static_cast<int64_t>(spec.layers.size());
  table.add_embedding();
  if (per_layer > 0) {
    table.add(Role::kPerLayerEmbedding, "embed_tokens_per_layer.weight",
              "per_layer_token_embd.weight", {spec.vocab_size, all_layers});
    table.add_linear(Role::kPerLayerModelProj, "per_layer_model_projection", "per_layer_model_proj",
                     all_layers, hidden, false);
    table.add_norm(Role::kPerLayerModelNorm, "per_layer_projection_norm", "per_layer_proj_norm",
                   per_layer);
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    table.begin_layer(static_cast<int>(i));
    table.add_sandwich_layer(spec.layers[i]);
    if (spec.layers[i].moe) add_experts(*spec.layers[i].moe, hidden, table);
    if (per_layer > 0) {
      table.add_linear(Role::kPerLayerGate, "per_layer_input_gate", "inp_gate", per_layer, hidden,
                       false);
      table.add_linear(Role::kPerLayerProj, "per_layer_projection", "proj", hidden, per_layer,
                       false);
      table.add_norm(Role::kPerLayerNorm, "post_per_layer_input_norm", "post_norm", hidden);
    }
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
  std::vector<int32_t> widths;
  int64_t n_shared = 0;
  for (const LayerSpec& layer : spec.layers) {
    const bool slides = layer.attention.sliding_window.has_value();
    (slides ? sliding : full) = &layer.attention;
    pattern.push_back(slides);
    kv_heads.push_back(layer.attention.n_kv_heads);
    widths.push_back(static_cast<int32_t>(layer.mlp.intermediate_size));
    n_shared += layer.attention.kv_source ? 1 : 0;
  }
  if (full == nullptr || sliding == nullptr) {
    throw UnsupportedError("GGUF files of Gemma 4 have layers of both kinds of attention");
  }
  GgufKeys keys(std::string(kArchitecture), metadata);
  keys.count("block_count", static_cast<int64_t>(spec.layers.size()));
  keys.count("context_length", spec.context_length);
  keys.count("embedding_length", spec.hidden_size);
  if (widths.front() == widths.back()) {
    keys.count("feed_forward_length", widths.front());
  } else {
    keys.set("feed_forward_length", GgufArray{std::move(widths)});
  }
  keys.count("attention.head_count", full->n_heads);
  if (full->n_kv_heads == sliding->n_kv_heads) {
    keys.count("attention.head_count_kv", full->n_kv_heads);
  } else {
    keys.set("attention.head_count_kv", GgufArray{std::move(kv_heads)});
  }
  keys.number("rope.freq_base", full->rope.theta);
  keys.number("rope.freq_base_swa", sliding->rope.theta);
  keys.number("attention.layer_norm_rms_epsilon", spec.rms_norm_eps);
  if (const std::optional<MoeSpec>& moe = spec.layers.front().moe) {
    keys.count("expert_count", moe->n_experts);
    keys.count("expert_used_count", moe->top_k);
    keys.count("expert_feed_forward_length", moe->intermediate_size);
  }
  keys.count("attention.key_length", full->head_dim);
  keys.count("attention.value_length", full->head_dim);
  metadata.set("general.file_type", file_type);
  if (spec.final_softcap) keys.number("final_logit_softcapping", *spec.final_softcap);
  keys.count("attention.sliding_window", *sliding->sliding_window);
  keys.count("attention.shared_kv_layers", n_shared);
  keys.count("embedding_length_per_layer_input", spec.per_layer_input_size);
  keys.set("attention.sliding_window_pattern", GgufArray{std::move(pattern)});
  keys.count("attention.key_length_swa", sliding->head_dim);
  keys.count("attention.value_length_swa", sliding->head_dim);
  keys.count("rope.dimension_count", full->head_dim);
  keys.count("rope.dimension_count_swa", sliding->head_dim);
}

/// A count of every layer: one number, or one per layer.
std::vector<int64_t> layer_counts_gguf(const GgufIntegers& integers, const std::string& name,
                                       int64_t maximum, int64_t n_layers) {
  const std::string key = integers.prefix() + name;
  const GgufValue* value = integers.file().metadata().find(key);
  const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  if (array == nullptr) {
    const int64_t n = integers.read(name, 1, maximum);
    return std::vector<int64_t>(static_cast<size_t>(n_layers), n);
  }
  const auto* counts = std::get_if<std::vector<int32_t>>(&array->values);
  if (counts == nullptr || static_cast<int64_t>(counts->size()) != n_layers ||
      std::any_of(counts->begin(), counts->end(),
                  [&](int32_t n) { return n < 1 || n > maximum; })) {
    throw FormatError(fmt::format("{}: \"{}\" must hold {} numbers from 1 to {}",
                                  integers.file().path(), key, n_layers, maximum));
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

std::optional<MoeSpec> read_experts_gguf(const GgufIntegers& integers) {
  const auto n_experts =
      static_cast<int>(integers.find("expert_count", 0, kMaxExperts).value_or(0));
  if (n_experts == 0) return std::nullopt;
  MoeSpec moe;
  moe.n_experts = n_experts;
  moe.top_k = static_cast<int>(integers.read("expert_used_count", 1, n_experts));
  moe.intermediate_size = integers.read("expert_feed_forward_length", 1, kMaxIntermediate);
  moe.activation = Activation::kGeluTanh;
  moe.beside_mlp = true;
  return moe;
}

ModelSpec read_gguf(const GgufFile& file) {
  const GgufIntegers integers(file, std::string(kArchitecture));
  ModelSpec spec = read_decoder_sizes_gguf(integers, "gemma4");
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  const double softcap =
      read_number_gguf(file, integers.prefix() + "final_logit_softcapping", 0.0, 1e6, 0.0);
  if (softcap > 0.0) spec.final_softcap = softcap;
  const int64_t n_layers = read_layer_count_gguf(integers);
  const AttentionSpec full = read_attention_gguf(integers, spec, "");
  const AttentionSpec sliding = read_attention_gguf(integers, spec, "_swa");
  const std::vector<int64_t> kv_heads =
      layer_counts_gguf(integers, "attention.head_count_kv", kMaxHeads, n_layers);
  const std::vector<int64_t> widths =
      layer_counts_gguf(integers, "feed_forward_length", kMaxIntermediate, n_layers);
  const std::vector<bool> pattern =
      read_layer_flags_gguf(integers, "attention.sliding_window_pattern", n_layers);
  LayerSpec layer;
  layer.sandwich_norms = layer.output_scale = true;
  layer.mlp.activation = Activation::kGeluTanh;
  layer.moe = read_experts_gguf(integers);
  spec.per_layer_input_size =
      integers.find("embedding_length_per_layer_input", 0, kMaxHidden).value_or(0);
  const int64_t n_own =
      n_layers - integers.find("attention.shared_kv_layers", 0, n_layers - 1).value_or(0);
  for (int64_t i = 0; i < n_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    layer.attention = pattern[at] ? sliding : full;
    layer.attention.n_kv_heads = static_cast<int>(kv_heads[at]);
    layer.mlp.intermediate_size = widths[at];
    if (i < n_own) {
      layer.attention.k_is_v = file.find(fmt::format("blk.{}.attn_v.weight", i)) == nullptr;
    } else {
      layer.attention.kv_source = kv_source_of(pattern, i, n_own);
      if (!layer.attention.kv_source) {
        throw FormatError(
            fmt::format("{}: layer {} shares keys and values, but no layer before it "
                        "has any of its kind",
                        file.path(), i));
      }
    }
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

/// Files may hold keys and values for layers that read those of others: transformers drops them,
/// too. Such tensors of any other layer are in the table, so that they never come here.
bool ignores_tensor(std::string_view hf_name) {
  constexpr std::string_view kUnused[] = {".self_attn.k_proj.weight", ".self_attn.v_proj.weight",
                                          ".self_attn.k_norm.weight"};
  const bool unused = std::any_of(std::begin(kUnused), std::end(kUnused),
                                  [&](std::string_view end) { return hf_name.ends_with(end); });
  return unused || is_rotary_cache(hf_name);
}

void write_config(const ModelSpec& spec, const GgufFile&, ConfigMembers& config) {
  const LayersOfTwoKinds layers = set_windowed_layers(spec, config);
  const AttentionSpec *full = layers.full, *sliding = layers.sliding;
  const auto n_shared =
      std::count_if(spec.layers.begin(), spec.layers.end(),
                    [](const LayerSpec& layer) { return layer.attention.kv_source.has_value(); });
  const LayerSpec &first = spec.layers.front(), &last = spec.layers.back();
  const std::optional<MoeSpec>& moe = first.moe;
  set_class("Gemma4ForCausalLM", "gemma4_text", config);
  Json per_layer = Json::object();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (spec.layers[i].attention.sliding_window) continue;
    Json layer = Json::object().set("head_dim", full->head_dim);
    if (full->n_kv_heads != sliding->n_kv_heads) {
      layer.set("num_key_value_heads", full->n_kv_heads);
    }
    per_layer.set(std::to_string(i), std::move(layer));
  }
  config.set("attention_bias", false);
  config.set("attention_k_eq_v", full->k_is_v);
  config.set("enable_moe_block", moe.has_value());
  config.set("hidden_size_per_layer_input", spec.per_layer_input_size);
  config.set("moe_intermediate_size", moe ? Json(moe->intermediate_size) : Json());
  config.set("num_experts", moe ? Json(moe->n_experts) : Json());
  config.set("num_kv_shared_layers", static_cast<int64_t>(n_shared));
  config.set("per_layer_config", std::move(per_layer));
  config.set("top_k_experts", moe ? Json(moe->top_k) : Json());
  config.set("use_double_wide_mlp", last.mlp.intermediate_size == 2 * first.mlp.intermediate_size);
  config.set("vocab_size_per_layer_input", spec.vocab_size);
}

/// GGUF does not say which layers share keys and values; llama.cpp takes them from the last two
/// layers that have their own: a sliding one, then a full one.
std::string gguf_sharing_warning(const ModelSpec& spec) {
  const auto n_own = std::count_if(spec.layers.begin(), spec.layers.end(), [](const auto& layer) {
    return !layer.attention.kv_source.has_value();
  });
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& attention = spec.layers[i].attention;
    if (!attention.kv_source) continue;
    const auto expected = n_own - (attention.sliding_window ? 2 : 1);
    if (*attention.kv_source == expected) continue;
    return fmt::format(
        "layer {} shares the keys and values of layer {}, where llama.cpp takes those of layer {}: "
        "it will not run this file as the model runs",
        i, *attention.kv_source, expected);
  }
  return {};
}

}  // namespace

extern const Family kGemma4Family;
const Family kGemma4Family = {
    .name = "gemma4",
    .model_types = kModelTypes,
    .gguf_architecture = kArchitecture,
    .gguf_pieces = "gemma4",
    .read_config = read_config,
    .read_gguf = read_gguf,
    .tensors = tensors,
    .write_gguf_metadata = write_gguf_metadata,
    .write_config = write_config,
    .gguf_extra_tensors = gguf_extra_tensors,
    .gguf_warning = gguf_sharing_warning,
    .ignores_tensor = ignores_tensor,
};

}  // namespace assay
