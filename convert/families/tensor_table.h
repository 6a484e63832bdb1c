#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "convert/families/family.h"

namespace assay {

/// Builds the tensor list of a decoder in canonical order: the names that all families share
/// (transformers' modeling_llama.py) stand here, a family adds what is its own.
class TensorTable {
 public:
  explicit TensorTable(const ModelSpec& spec) : spec_(spec) {}

  void add_embedding();
  /// Final norm, and the head unless it is tied.
  void add_output(GgufTransform norm_transform = GgufTransform::kNone);
  /// Layer that the next calls add to; names below are within it.
  void begin_layer(int layer);
  /// The same for a block that predicts further tokens: a layer of "mtp" in the folder, the next
  /// one behind the model's in GGUF.
  void begin_prediction_block(int block);
  /// What stands in front of the first of these blocks and behind the last: the norms of the next
  /// token's embedding and of the hidden state, the linear that joins both, the norm behind.
  void add_prediction_parts(GgufTransform norm);

  /// A vector `<hf_module>.weight`.
  void add_norm(Role role, const std::string& hf_module, const std::string& gguf_module,
                int64_t size, GgufTransform transform = GgufTransform::kNone);
  /// A linear `<hf_module>.weight`; it may be quantized unless `quantizable` is false.
  TensorEntry& add_linear(Role role, const std::string& hf_module, const std::string& gguf_module,
                          int64_t rows, int64_t columns, bool quantizable = true);
  /// Any tensor of the layer, by its full names within it.
  TensorEntry& add(Role role, const std::string& hf_name, const std::string& gguf_name,
                   Shape shape);

  /// q, k, v, o with their biases, then the norms of q and k, as the spec has them. `rope` is the
  /// transform of q and k, `norm` that of their norms.
  void add_attention(const AttentionSpec& spec, GgufTransform rope = GgufTransform::kNone,
                     GgufTransform norm = GgufTransform::kNone);
  /// gate, up, down with their biases.
  void add_mlp(const MlpSpec& spec);

  /// gate, up, down of each expert of `hf_module`. GGUF stacks the experts of a layer. With `fused`
  /// it does so with gate and up in one tensor, and folders do likewise ("gate_up_proj"), which any
  /// folder may.
  void add_experts(const MoeSpec& spec, const std::string& hf_module, bool fused);
  /// Attention and MLP of Gemma: a norm before and behind each.
  void add_sandwich_layer(const LayerSpec& spec, GgufTransform norm = GgufTransform::kNone);

  std::vector<TensorEntry> take() { return std::move(table_); }

 private:
  void add_projection(Role role, Role bias_role, const std::string& hf_module,
                      const std::string& gguf_module, int64_t rows, int64_t columns, bool bias,
                      GgufTransform transform, int n_heads);

  const ModelSpec& spec_;
  std::vector<TensorEntry> table_;
  int layer_ = -1;
  std::string hf_prefix_ = "model.";
  std::string gguf_prefix_;
};

/// Family::tensors of decoders whose layers are attention and MLP with one norm before each.
std::vector<TensorEntry> dense_tensors(const ModelSpec& spec,
                                       GgufTransform rope = GgufTransform::kNone);

/// Family::ignores_tensor of models whose old files hold caches of the rotary embedding.
bool is_rotary_cache(std::string_view hf_name);

}  // namespace assay
