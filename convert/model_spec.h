#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert/core/dtype.h"

namespace assay {

/// Rotary embedding of one layer. Source: transformers' modeling_rope_utils.py, arithmetic.md §4.
struct RopeSpec {
  enum class Kind : uint8_t { kDefault, kLinear, kLlama3, kYarn, kProportional };
  Kind kind = Kind::kDefault;
  double theta = 10000.0;
  int rotary_dims = 0;  // r, even, ≤ head_dim
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  int64_t original_context = 0;   // llama3, yarn: L
  double beta_fast = 32.0;        // yarn
  double beta_slow = 1.0;         // yarn
  bool truncate = true;           // yarn
  double attention_factor = 1.0;  // yarn: multiplies cos and sin; resolved from the config
  int n_rotated_pairs = 0;        // proportional: pairs from here on are not rotated

  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

struct AttentionSpec {
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  double scale = 0.0;                     // of the scores, before rounding to fp32
  std::optional<int64_t> sliding_window;  // keys that a query sees, itself included
  RopeSpec rope;
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;  // q and k: RMSNorm per head, before the rotation
  bool v_norm = false;   // v: RMSNorm per head without weights
  bool k_is_v = false;   // one projection gives k and v
  bool output_gate =
      false;  // q_proj gives, per head, query and gate; the result times sigmoid(gate)
  std::optional<int>
      kv_source;  // layer whose keys and values this one reads; it has none of its own
};

/// Gated DeltaNet in place of attention. Source: transformers' modeling_qwen3_5.py, arithmetic.md
/// §6.
struct DeltaNetSpec {
  int n_key_heads = 0;
  int n_value_heads = 0;  // a multiple of n_key_heads; head h reads key head h / (their ratio)
  int key_dim = 0;
  int value_dim = 0;
  int conv_kernel = 0;  // taps of the causal convolution

  int64_t key_columns() const { return int64_t{n_key_heads} * key_dim; }
  int64_t value_columns() const { return int64_t{n_value_heads} * value_dim; }
  int64_t conv_columns() const { return 2 * key_columns() + value_columns(); }
};

enum class Activation : uint8_t { kSilu, kGeluTanh };

struct MlpSpec {
  int64_t intermediate_size = 0;  // 0: there is none
  bool bias = false;
  Activation activation = Activation::kSilu;
};

/// Experts: small MLPs of which a router chooses a few for each token; ops/route.h. Source:
/// transformers' modeling_qwen3_moe.py, modeling_gemma4.py.
struct MoeSpec {
  int n_experts = 0;
  int top_k = 0;
  int64_t intermediate_size = 0;  // of one expert
  Activation activation = Activation::kSilu;
  bool normalize = true;  // weights of the chosen experts are divided by their sum
  /// The router and the experts read the residual stream through norms of their own, and an MLP
  /// runs beside them; both have a norm behind them.
  bool beside_mlp = false;
};

/// One decoder layer, as data. The runtime builds its ops from this alone; it never asks for a
/// family.
struct LayerSpec {
  AttentionSpec attention;
  std::optional<DeltaNetSpec> delta_net;  // then there is no attention
  MlpSpec mlp;
  std::optional<MoeSpec> moe;
  bool sandwich_norms = false;  // a norm behind attention and MLP, too, before the residual sum
  bool output_scale = false;    // the residual stream is multiplied by a stored number at the end
};

/// Everything a forward pass needs to know about a model except its tensors.
struct ModelSpec {
  std::string family;      // Family::name
  int64_t vocab_size = 0;  // rows of the embedding
  int64_t hidden_size = 0;
  int64_t context_length = 0;  // max_position_embeddings
  double rms_norm_eps = 1e-6;  // decimal of the config; kernels use the nearest fp32
  bool tied_head = false;
  std::optional<double> embedding_scale;  // rows of the embedding times this, rounded to fp32
  std::optional<double> final_softcap;    // logits become c·tanh(logit / c)
  /// Values that each layer gets for each token beside the residual stream; 0: none.
  int64_t per_layer_input_size = 0;
  DType source_dtype = DType::kBF16;  // dtype of the checkpoint's weights
  std::vector<LayerSpec> layers;
  /// Blocks behind the layers that predict further tokens (mtp, nextn). Files keep them; nothing
  /// here runs them.
  int n_prediction_blocks = 0;
  std::optional<int32_t> bos_id;
  std::vector<int32_t> stop_ids;  // union of config and generation_config (case B54), ascending
};

}  // namespace assay
