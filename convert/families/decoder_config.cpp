#include "convert/families/decoder_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "convert/core/error.h"
#include "convert/core/words.h"
#include "convert/families/bounds.h"
#include "convert/families/rope_config.h"

namespace assay {
namespace {

/// Ids under `key`: absent, an integer, or a list of integers.
std::set<int32_t> token_ids(const ConfigReader& config, std::string_view key, int64_t vocab_size) {
  std::set<int32_t> ids;
  const Json* value = config.find(key);
  if (value == nullptr) return ids;
  const auto add = [&](const Json& id) {
    if (!id.is_integer()) config.fail(key, "a token id or a list of token ids");
    const int64_t number = id.as_integer();
    if (number < 0 || number >= vocab_size) {
      config.fail(key, fmt::format("token ids from 0 to {}", vocab_size - 1));
    }
    ids.insert(static_cast<int32_t>(number));
  };
  if (value->is_array()) {
    for (const Json& id : value->as_array()) add(id);
  } else {
    add(*value);
  }
  return ids;
}

/// −1 and the like mean "none" in old configs; only ids inside the vocabulary count.
std::optional<int32_t> bos_of(const ConfigReader& config, int64_t vocab_size) {
  const Json* value = config.find("bos_token_id");
  if (value == nullptr || *value == Json(-1)) return std::nullopt;
  const std::set<int32_t> ids = token_ids(config, "bos_token_id", vocab_size);
  if (ids.empty()) return std::nullopt;
  return *ids.begin();
}

/// An integer from 1; without a fallback (0) the key must be there.
int64_t integer_or_required(const ConfigReader& config, std::string_view key, int64_t maximum,
                            int64_t fallback) {
  return fallback > 0 ? config.integer_or(key, 1, maximum, fallback)
                      : config.integer(key, 1, maximum);
}

}  // namespace

ModelSpec read_decoder_sizes(const ConfigReader& config, std::string_view family,
                             const DecoderDefaults& defaults) {
  ModelSpec spec;
  spec.family = family;
  spec.vocab_size = integer_or_required(config, "vocab_size", kMaxVocabulary, defaults.vocab_size);
  spec.hidden_size = config.integer("hidden_size", 1, kMaxHidden);
  spec.context_length =
      config.integer_or("max_position_embeddings", 1, kMaxContext, defaults.context_length);
  spec.rms_norm_eps = config.number_or("rms_norm_eps", 0.0, kMaxEps, 1e-6);
  spec.tied_head = config.boolean_or("tie_word_embeddings", defaults.tied_head);
  return spec;
}

AttentionSpec read_heads(const ConfigReader& config, int64_t hidden_size,
                         const DecoderDefaults& defaults) {
  AttentionSpec attention;
  const int64_t n_heads =
      integer_or_required(config, "num_attention_heads", kMaxHeads, defaults.n_heads);
  const int64_t n_kv_heads = config.integer_or(
      "num_key_value_heads", 1, kMaxHeads, defaults.n_kv_heads > 0 ? defaults.n_kv_heads : n_heads);
  if (n_heads % n_kv_heads != 0) {
    config.fail("num_key_value_heads",
                fmt::format("a divisor of num_attention_heads ({})", n_heads));
  }
  if (!config.has("head_dim") && defaults.head_dim == 0 && hidden_size % n_heads != 0) {
    config.fail("hidden_size",
                fmt::format("a multiple of num_attention_heads ({}), or head_dim", n_heads));
  }
  const int64_t head_dim =
      config.integer_or("head_dim", 2, kMaxHeadDim,
                        defaults.head_dim > 0 ? defaults.head_dim : hidden_size / n_heads);
  if (head_dim < 2 || head_dim % 2 != 0) config.fail("head_dim", "an even number");
  attention.n_heads = static_cast<int>(n_heads);
  attention.n_kv_heads = static_cast<int>(n_kv_heads);
  attention.head_dim = static_cast<int>(head_dim);
  attention.scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  return attention;
}

void require_activation(const ConfigReader& config, std::string_view key,
                        std::initializer_list<std::string_view> allowed) {
  const std::string found = config.text_or(key, *allowed.begin());
  if (std::find(allowed.begin(), allowed.end(), found) != allowed.end()) return;
  throw UnsupportedError(fmt::format("{}: {} \"{}\" is not supported for this model type; {} is",
                                     config.source(), key, found, *allowed.begin()));
}

void read_special_ids(const ConfigReader& config, const Json& generation_config, ModelSpec& spec) {
  spec.bos_id = bos_of(config, spec.vocab_size);
  std::set<int32_t> stop_ids = token_ids(config, "eos_token_id", spec.vocab_size);
  if (!generation_config.is_null()) {
    const ConfigReader generation(generation_config, "generation_config.json");
    stop_ids.merge(token_ids(generation, "eos_token_id", spec.vocab_size));
  }
  spec.stop_ids.assign(stop_ids.begin(), stop_ids.end());
}

int64_t read_layer_count(const ConfigReader& config) {
  return config.integer("num_hidden_layers", 1, kMaxLayers);
}

ModelSpec read_dense_decoder(const ConfigReader& config, std::string_view family,
                             const DecoderDefaults& defaults) {
  ModelSpec spec = read_decoder_sizes(config, family, defaults);
  LayerSpec layer;
  layer.attention = read_heads(config, spec.hidden_size, defaults);
  layer.attention.rope = read_rope_config(config, layer.attention.head_dim, spec.context_length);
  layer.mlp.intermediate_size = config.integer("intermediate_size", 1, kMaxIntermediate);
  spec.layers.assign(static_cast<size_t>(read_layer_count(config)), layer);
  return spec;
}

std::vector<std::string> read_layer_types(const ConfigReader& config, int64_t n_layers,
                                          std::initializer_list<std::string_view> allowed) {
  const Json* value = config.find("layer_types");
  if (value == nullptr) return {};
  const std::string expected =
      fmt::format("a list of {} strings, each {}", n_layers, join_words(allowed, " or "));
  if (!value->is_array() || static_cast<int64_t>(value->as_array().size()) != n_layers) {
    config.fail("layer_types", expected);
  }
  std::vector<std::string> types;
  for (const Json& type : value->as_array()) {
    if (!type.is_string() ||
        std::find(allowed.begin(), allowed.end(), type.as_string()) == allowed.end()) {
      config.fail("layer_types", expected);
    }
    types.push_back(type.as_string());
  }
  return types;
}

void read_qwen_windows(const ConfigReader& config, ModelSpec& spec) {
  const auto n_layers = static_cast<int64_t>(spec.layers.size());
  const std::vector<std::string> types =
      read_layer_types(config, n_layers, {"full_attention", "sliding_attention"});
  if (!config.boolean_or("use_sliding_window", false) || !config.has("sliding_window")) return;
  const int64_t window = config.integer("sliding_window", 1, kMaxContext);
  const int64_t first = config.integer_or("max_window_layers", 0, kMaxLayers, 28);
  for (int64_t i = 0; i < n_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    if (types.empty() ? i < first : types[at] == "full_attention") continue;
    spec.layers[at].attention.sliding_window = window;
  }
}

}  // namespace assay
