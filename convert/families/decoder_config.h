#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "convert/families/config_reader.h"
#include "convert/model_spec.h"

namespace assay {

// What the config.json of every decoder family says in the same words. All of these throw
// FormatError or UnsupportedError naming the key, what was found and what is allowed.

/// Defaults of a family's config class; 0: the key is derived or required.
struct DecoderDefaults {
  int64_t n_heads = 0;     // 0: required
  int64_t n_kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;    // 0: hidden_size / heads
  int64_t context_length = 0;
  bool tied_head = false;
  int64_t vocab_size = 0;  // 0: required
};

/// family, vocab_size, hidden_size, max_position_embeddings, rms_norm_eps, tie_word_embeddings.
ModelSpec read_decoder_sizes(const ConfigReader& config, std::string_view family,
                             const DecoderDefaults& defaults);

/// num_attention_heads, num_key_value_heads, head_dim, and the scale 1/sqrt(head_dim).
AttentionSpec read_heads(const ConfigReader& config, int64_t hidden_size,
                         const DecoderDefaults& defaults);

/// Throws UnsupportedError unless `key` (absent: the first) is one of `allowed`.
void require_activation(const ConfigReader& config, std::string_view key,
                        std::initializer_list<std::string_view> allowed);

/// bos_token_id, and as stop ids the union of eos_token_id of both files (case B54).
void read_special_ids(const ConfigReader& config, const Json& generation_config, ModelSpec& spec);

/// num_hidden_layers.
int64_t read_layer_count(const ConfigReader& config);

/// All of that but the activation and the special ids: a decoder whose layers are copies of one,
/// with an MLP of intermediate_size, and no more than rope in its attention.
ModelSpec read_dense_decoder(const ConfigReader& config, std::string_view family,
                             const DecoderDefaults& defaults);

/// `layer_types`: one string per layer, each in `allowed`; empty if absent.
std::vector<std::string> read_layer_types(const ConfigReader& config, int64_t n_layers,
                                          std::initializer_list<std::string_view> allowed);

/// Qwen2 and Qwen3: the window holds only with use_sliding_window, and then for the layers from
/// max_window_layers on, or those that layer_types names (transformers' modeling_qwen2.py).
void read_qwen_windows(const ConfigReader& config, ModelSpec& spec);

}  // namespace assay
