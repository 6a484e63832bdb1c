#include "convert/families/tensor_table.h"

#include <fmt/format.h>

namespace assay {

TensorEntry& TensorTable::add(Role role, const std::string& hf_name, const std::string& gguf_name,
                              Shape shape) {
  TensorEntry entry;
  entry.role = role;
  entry.layer = layer_;
  entry.hf_name = hf_prefix_ + hf_name;
  entry.gguf_name = gguf_prefix_ + gguf_name;
  entry.shape = std::move(shape);
  table_.push_back(std::move(entry));
  return table_.back();
}

void TensorTable::begin_layer(int layer) {
  layer_ = layer;
  hf_prefix_ = fmt::format("model.layers.{}.", layer);
  gguf_prefix_ = fmt::format("blk.{}.", layer);
}

void TensorTable::begin_prediction_block(int block) {
  begin_layer(static_cast<int>(spec_.layers.size()) + block);
  hf_prefix_ = fmt::format("mtp.layers.{}.", block);
}

void TensorTable::add_prediction_parts(GgufTransform norm) {
  begin_prediction_block(0);
  hf_prefix_ = "mtp.";
  const int64_t hidden = spec_.hidden_size;
  add_linear(Role::kPredictionProj, "fc", "nextn.eh_proj", hidden, 2 * hidden, false);
  add_norm(Role::kPredictionTokenNorm, "pre_fc_norm_embedding", "nextn.enorm", hidden, norm);
  add_norm(Role::kPredictionStateNorm, "pre_fc_norm_hidden", "nextn.hnorm", hidden, norm);
  add_norm(Role::kPredictionNorm, "norm", "nextn.shared_head_norm", hidden, norm);
}

void TensorTable::add_norm(Role role, const std::string& hf_module, const std::string& gguf_module,
                           int64_t size, GgufTransform transform) {
  add(role, hf_module + ".weight", gguf_module + ".weight", {size}).gguf_transform = transform;
}

TensorEntry& TensorTable::add_linear(Role role, const std::string& hf_module,
                                     const std::string& gguf_module, int64_t rows, int64_t columns,
                                     bool quantizable) {
  TensorEntry& entry = add(role, hf_module + ".weight", gguf_module + ".weight", {rows, columns});
  entry.quantizable = quantizable;
  return entry;
}

void TensorTable::add_embedding() {
  add(Role::kTokenEmbedding, "embed_tokens.weight", "token_embd.weight",
      {spec_.vocab_size, spec_.hidden_size});
}

void TensorTable::add_output(GgufTransform norm_transform) {
  layer_ = -1;
  hf_prefix_ = "model.";
  gguf_prefix_.clear();
  add_norm(Role::kOutputNorm, "norm", "output_norm", spec_.hidden_size, norm_transform);
  if (spec_.tied_head) return;
  hf_prefix_.clear();
  add(Role::kHead, "lm_head.weight", "output.weight", {spec_.vocab_size, spec_.hidden_size});
}

void TensorTable::add_projection(Role role, Role bias_role, const std::string& hf_module,
                                 const std::string& gguf_module, int64_t rows, int64_t columns,
                                 bool bias, GgufTransform transform, int n_heads) {
  TensorEntry& weight = add_linear(role, hf_module, gguf_module, rows, columns);
  weight.gguf_transform = transform;
  weight.n_heads = n_heads;
  if (!bias) return;
  TensorEntry& entry = add(bias_role, hf_module + ".bias", gguf_module + ".bias", {rows});
  entry.gguf_transform = transform;
  entry.n_heads = n_heads;
}

void TensorTable::add_attention(const AttentionSpec& spec, GgufTransform rope, GgufTransform norm) {
  const int64_t hidden = spec_.hidden_size;
  const int64_t q_columns = int64_t{spec.n_heads} * spec.head_dim;
  const int64_t kv_rows = int64_t{spec.n_kv_heads} * spec.head_dim;
  add_projection(Role::kQProj, Role::kQBias, "self_attn.q_proj", "attn_q",
                 spec.output_gate ? 2 * q_columns : q_columns, hidden, spec.qkv_bias, rope,
                 spec.n_heads);
  const bool own_kv = !spec.kv_source;
  if (own_kv) {
    add_projection(Role::kKProj, Role::kKBias, "self_attn.k_proj", "attn_k", kv_rows, hidden,
                   spec.qkv_bias, rope, spec.n_kv_heads);
  }
  if (own_kv && !spec.k_is_v) {
    add_projection(Role::kVProj, Role::kVBias, "self_attn.v_proj", "attn_v", kv_rows, hidden,
                   spec.qkv_bias, GgufTransform::kNone, 0);
  }
  add_projection(Role::kOProj, Role::kOBias, "self_attn.o_proj", "attn_output", hidden, q_columns,
                 spec.o_bias, GgufTransform::kNone, 0);
  if (!spec.qk_norm) return;
  add_norm(Role::kQNorm, "self_attn.q_norm", "attn_q_norm", spec.head_dim, norm);
  if (own_kv) add_norm(Role::kKNorm, "self_attn.k_norm", "attn_k_norm", spec.head_dim, norm);
}

void TensorTable::add_mlp(const MlpSpec& spec) {
  const int64_t hidden = spec_.hidden_size;
  const int64_t inner = spec.intermediate_size;
  add_projection(Role::kGateProj, Role::kGateBias, "mlp.gate_proj", "ffn_gate", inner, hidden,
                 spec.bias, GgufTransform::kNone, 0);
  add_projection(Role::kUpProj, Role::kUpBias, "mlp.up_proj", "ffn_up", inner, hidden, spec.bias,
                 GgufTransform::kNone, 0);
  add_projection(Role::kDownProj, Role::kDownBias, "mlp.down_proj", "ffn_down", hidden, inner,
                 spec.bias, GgufTransform::kNone, 0);
}

void TensorTable::add_experts(const MoeSpec& spec, const std::string& hf_module, bool fused) {
  const int64_t hidden = spec_.hidden_size;
  const int64_t inner = spec.intermediate_size;
  const int64_t n = spec.n_experts;
  const Shape both{n, 2 * inner, hidden};
  const TensorSlice gate_up{hf_prefix_ + hf_module + ".gate_up_proj", both};
  const TensorSlice down{hf_prefix_ + hf_module + ".down_proj", {n, hidden, inner}};
  const auto add_expert = [&](Role role, int64_t expert, const std::string& hf_name, Shape shape,
                              TensorSlice hf_stack, TensorSlice gguf_stack) {
    TensorEntry& entry =
        add(role, fmt::format("{}.{}.{}.weight", hf_module, expert, hf_name), "", std::move(shape));
    entry.expert = static_cast<int>(expert);
    entry.quantizable = true;
    entry.hf_stack = std::move(hf_stack);
    entry.stacked_in_folder = fused;
    entry.gguf_name = gguf_stack.name;
    entry.gguf_stack = std::move(gguf_stack);
  };
  const auto at = [](TensorSlice stack, int64_t first_row) {
    stack.first_row = first_row;
    return stack;
  };
  const auto gguf = [&](const char* name, Shape shape) {
    return TensorSlice{gguf_prefix_ + name + ".weight", std::move(shape)};
  };
  const Shape one{n, inner, hidden};
  const TensorSlice gguf_both = gguf("ffn_gate_up_exps", both);
  const TensorSlice gguf_gate = fused ? gguf_both : gguf("ffn_gate_exps", one);
  const TensorSlice gguf_up = fused ? gguf_both : gguf("ffn_up_exps", one);
  const TensorSlice gguf_down = gguf("ffn_down_exps", {n, hidden, inner});
  const int64_t stride = fused ? 2 * inner : inner;
  for (int64_t e = 0; e < n; ++e) {
    add_expert(Role::kExpertGateProj, e, "gate_proj", {inner, hidden}, at(gate_up, e * 2 * inner),
               at(gguf_gate, e * stride));
    add_expert(Role::kExpertUpProj, e, "up_proj", {inner, hidden},
               at(gate_up, e * 2 * inner + inner), at(gguf_up, e * stride + (fused ? inner : 0)));
    add_expert(Role::kExpertDownProj, e, "down_proj", {hidden, inner}, at(down, e * hidden),
               at(gguf_down, e * hidden));
  }
}

void TensorTable::add_sandwich_layer(const LayerSpec& spec, GgufTransform norm) {
  const int64_t hidden = spec_.hidden_size;
  add_norm(Role::kAttentionNorm, "input_layernorm", "attn_norm", hidden, norm);
  add_attention(spec.attention, GgufTransform::kNone, norm);
  add_norm(Role::kAttentionOutputNorm, "post_attention_layernorm", "post_attention_norm", hidden,
           norm);
  add_norm(Role::kMlpNorm, "pre_feedforward_layernorm", "ffn_norm", hidden, norm);
  add_mlp(spec.mlp);
  add_norm(Role::kMlpOutputNorm, "post_feedforward_layernorm", "post_ffw_norm", hidden, norm);
}

std::vector<TensorEntry> dense_tensors(const ModelSpec& spec, GgufTransform rope) {
  TensorTable table(spec);
  table.add_embedding();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    table.begin_layer(static_cast<int>(i));
    table.add_norm(Role::kAttentionNorm, "input_layernorm", "attn_norm", spec.hidden_size);
    table.add_attention(spec.layers[i].attention, rope);
    table.add_norm(Role::kMlpNorm, "post_attention_layernorm", "ffn_norm", spec.hidden_size);
    table.add_mlp(spec.layers[i].mlp);
  }
  table.add_output();
  return table.take();
}

bool is_rotary_cache(std::string_view hf_name) {
  return hf_name.starts_with("model.layers.") && hf_name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace assay
