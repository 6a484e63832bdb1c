#include <algorithm>
#include <string>

#include "convert/core/error.h"
#include "runtime/program.h"

namespace assay {
namespace {

/// Appends ops and the slots that they need. Op names follow the modules of the checkpoint, without
/// "model." in front.
class Builder {
 public:
  Builder(const ModelSpec& spec, const std::vector<TensorEntry>& tensors) : tensors_(tensors) {
    program_.spec = spec;
  }

  Program build();

 private:
  struct LayerRegisters {
    Register h, normed, input;  // residual stream, its norm, that as block int16
  };

  /// The register of this name and width; made on first use.
  Register f32(const std::string& name, int64_t columns) { return find(name, columns, false); }
  Register block(const std::string& name, int64_t columns) { return find(name, columns, true); }
  Register find(const std::string& name, int64_t columns, bool block_int16);

  const TensorEntry& entry(Role role, int layer) const;
  int add_matrix(Role role, int layer, int64_t out_features, int64_t in_features);
  int add_vector(Role role, int layer, int64_t size);
  int add_rope(const RopeSpec& rope);

  void begin_layer(int layer) {
    layer_ = layer;
    prefix_ = layer < 0 ? "" : "layers." + std::to_string(layer) + ".";
  }
  template <class Kind>
  void add(Kind kind, const std::string& name) {
    program_.ops.push_back({std::move(kind), prefix_ + name, layer_});
  }
  void add_linear(Register in, Register out, Role weight, std::optional<Role> bias,
                  const std::string& name);
  void add_layer(const LayerSpec& spec, const LayerRegisters& r);
  void add_attention(const AttentionSpec& spec, const LayerRegisters& r);
  void add_head_norms(const AttentionSpec& spec, Register q, Register k, Register v);
  void add_delta_net(const DeltaNetSpec& spec, const LayerRegisters& r);
  void add_mlp(const MlpSpec& spec, const LayerRegisters& r);
  void add_head(Register h);

  const std::vector<TensorEntry>& tensors_;
  Program program_;
  int layer_ = -1;
  std::string prefix_;
};

Register Builder::find(const std::string& name, int64_t columns, bool block_int16) {
  auto& registers = program_.registers;
  for (size_t i = 0; i < registers.size(); ++i) {
    const RegisterSpec& r = registers[i];
    if (r.name == name && r.columns == columns && r.block_int16 == block_int16) {
      return {static_cast<int>(i)};
    }
  }
  registers.push_back({name, columns, block_int16});
  return {static_cast<int>(registers.size()) - 1};
}

const TensorEntry& Builder::entry(Role role, int layer) const {
  for (const TensorEntry& tensor : tensors_) {
    if (tensor.role == role && tensor.layer == layer) return tensor;
  }
  throw FormatError("model \"" + program_.spec.family + "\" has no tensor for " +
                    std::string(role_name(role)) +
                    (layer < 0 ? "" : " of layer " + std::to_string(layer)));
}

int Builder::add_matrix(Role role, int layer, int64_t out_features, int64_t in_features) {
  // A tied head reads the embedding's tensor, but is a matrix of its own: packed, never quantized.
  const bool tied = role == Role::kHead && program_.spec.tied_head;
  const TensorEntry& tensor = entry(tied ? Role::kTokenEmbedding : role, layer);
  program_.matrices.push_back(
      {role, layer, tensor.module_name(), out_features, in_features, tensor.quantizable && !tied});
  return static_cast<int>(program_.matrices.size()) - 1;
}

int Builder::add_vector(Role role, int layer, int64_t size) {
  program_.vectors.push_back({role, layer, size});
  return static_cast<int>(program_.vectors.size()) - 1;
}

int Builder::add_rope(const RopeSpec& rope) {
  auto& ropes = program_.ropes;
  const auto found = std::find(ropes.begin(), ropes.end(), rope);
  if (found != ropes.end()) return static_cast<int>(found - ropes.begin());
  ropes.push_back(rope);
  return static_cast<int>(ropes.size()) - 1;
}

void Builder::add_linear(Register in, Register out, Role weight, std::optional<Role> bias,
                         const std::string& name) {
  LinearOp op{in, out, -1, std::nullopt};
  const int64_t out_features = program_.registers[static_cast<size_t>(out.index)].columns;
  const int64_t in_features = program_.registers[static_cast<size_t>(in.index)].columns;
  op.matrix = add_matrix(weight, layer_, out_features, in_features);
  if (bias) op.bias = add_vector(*bias, layer_, out_features);
  add(op, name);
}

std::optional<Role> when(bool present, Role role) {
  return present ? std::optional(role) : std::nullopt;
}

/// Norms per head, before the rotation. v of a layer without v_proj is the raw k.
void Builder::add_head_norms(const AttentionSpec& spec, Register q, Register k, Register v) {
  const auto eps = static_cast<float>(program_.spec.rms_norm_eps);
  if (spec.v_norm) {
    add(RmsNormOp{spec.k_is_v ? k : v, v, -1, eps, spec.n_kv_heads}, "self_attn.v_norm");
  }
  if (!spec.qk_norm) return;
  add(RmsNormOp{q, q, add_vector(Role::kQNorm, layer_, spec.head_dim), eps, spec.n_heads},
      "self_attn.q_norm");
  add(RmsNormOp{k, k, add_vector(Role::kKNorm, layer_, spec.head_dim), eps, spec.n_kv_heads},
      "self_attn.k_norm");
}

void Builder::add_attention(const AttentionSpec& spec, const LayerRegisters& r) {
  const int64_t q_columns = int64_t{spec.n_heads} * spec.head_dim;
  const int64_t kv_columns = int64_t{spec.n_kv_heads} * spec.head_dim;
  const Register q = f32("q", q_columns);
  const Register k = f32("k", kv_columns);
  const Register v = f32("v", kv_columns);
  const Register out = f32("attention", q_columns);
  const Register out_block = block("attention_q", q_columns);
  const Register y = f32("y", program_.spec.hidden_size);
  const int rope = add_rope(spec.rope);
  const auto cache_layer = static_cast<int>(program_.cache_layers.size());
  program_.cache_layers.push_back({spec.n_kv_heads, spec.head_dim, spec.sliding_window});

  const Register q_gate = spec.output_gate ? f32("q_gate", 2 * q_columns) : q;
  add_linear(r.input, q_gate, Role::kQProj, when(spec.qkv_bias, Role::kQBias), "self_attn.q_proj");
  add_linear(r.input, k, Role::kKProj, when(spec.qkv_bias, Role::kKBias), "self_attn.k_proj");
  if (!spec.k_is_v) {
    add_linear(r.input, v, Role::kVProj, when(spec.qkv_bias, Role::kVBias), "self_attn.v_proj");
  }
  const Register gate = spec.output_gate ? f32("attention_gate", q_columns) : Register{};
  if (spec.output_gate) {
    add(SplitGateOp{q_gate, q, gate, spec.n_heads, spec.head_dim}, "self_attn.split_gate");
  }
  add_head_norms(spec, q, k, v);
  add(RopeOp{q, spec.n_heads, spec.head_dim, rope}, "self_attn.rope_q");
  add(RopeOp{k, spec.n_kv_heads, spec.head_dim, rope}, "self_attn.rope_k");
  add(KvWriteOp{k, v, cache_layer}, "self_attn.kv_write");
  add(AttentionOp{q, out, cache_layer, spec.n_heads, spec.n_kv_heads, spec.head_dim,
                  static_cast<float>(spec.scale), spec.sliding_window},
      "self_attn.attention");
  if (spec.output_gate) add(SigmoidGateOp{out, gate}, "self_attn.gate");
  add(QuantizeOp{out, out_block}, "self_attn.o_proj.input");
  add_linear(out_block, y, Role::kOProj, when(spec.o_bias, Role::kOBias), "self_attn.o_proj");
}

void Builder::add_delta_net(const DeltaNetSpec& spec, const LayerRegisters& r) {
  const auto eps = static_cast<float>(program_.spec.rms_norm_eps);
  const Register qkv = f32("delta_qkv", spec.conv_columns());
  const Register convolved = f32("delta_conv", spec.conv_columns());
  const Register z = f32("delta_z", spec.value_columns());
  const Register a = f32("delta_a", spec.n_value_heads);
  const Register b = f32("delta_b", spec.n_value_heads);
  const Register out = f32("delta_out", spec.value_columns());
  const Register out_block = block("delta_out_q", spec.value_columns());
  const auto state = static_cast<int>(program_.state_layers.size());
  program_.state_layers.push_back({spec});

  add_linear(r.input, qkv, Role::kDeltaQkvProj, std::nullopt, "linear_attn.in_proj_qkv");
  add_linear(r.input, z, Role::kDeltaZProj, std::nullopt, "linear_attn.in_proj_z");
  add_linear(r.input, b, Role::kDeltaBProj, std::nullopt, "linear_attn.in_proj_b");
  add_linear(r.input, a, Role::kDeltaAProj, std::nullopt, "linear_attn.in_proj_a");
  add(CausalConvOp{qkv, convolved,
                   add_vector(Role::kDeltaConv, layer_, spec.conv_columns() * spec.conv_kernel),
                   state},
      "linear_attn.conv1d");
  add(DeltaNetOp{convolved, a, b, out, add_vector(Role::kDeltaDecay, layer_, spec.n_value_heads),
                 add_vector(Role::kDeltaStepBias, layer_, spec.n_value_heads), state},
      "linear_attn.recurrence");
  add(GatedNormOp{out, z, out, add_vector(Role::kDeltaNorm, layer_, spec.value_dim), eps,
                  spec.n_value_heads},
      "linear_attn.norm");
  add(QuantizeOp{out, out_block}, "linear_attn.out_proj.input");
  add_linear(out_block, f32("y", program_.spec.hidden_size), Role::kDeltaOutProj, std::nullopt,
             "linear_attn.out_proj");
}

void Builder::add_mlp(const MlpSpec& spec, const LayerRegisters& r) {
  const Register gate = f32("gate", spec.intermediate_size);
  const Register up = f32("up", spec.intermediate_size);
  const Register activated = f32("activated", spec.intermediate_size);
  const Register activated_block = block("activated_q", spec.intermediate_size);
  const Register y = f32("y", program_.spec.hidden_size);

  add_linear(r.input, gate, Role::kGateProj, when(spec.bias, Role::kGateBias), "mlp.gate_proj");
  add_linear(r.input, up, Role::kUpProj, when(spec.bias, Role::kUpBias), "mlp.up_proj");
  if (spec.activation == Activation::kSilu) {
    add(SwiGluOp{gate, up, activated}, "mlp.swiglu");
  } else {
    add(GeGluOp{gate, up, activated}, "mlp.geglu");
  }
  add(QuantizeOp{activated, activated_block}, "mlp.down_proj.input");
  add_linear(activated_block, y, Role::kDownProj, when(spec.bias, Role::kDownBias),
             "mlp.down_proj");
}

void Builder::add_layer(const LayerSpec& spec, const LayerRegisters& r) {
  const auto eps = static_cast<float>(program_.spec.rms_norm_eps);
  const int64_t hidden = program_.spec.hidden_size;
  add(RmsNormOp{r.h, r.normed, add_vector(Role::kAttentionNorm, layer_, hidden), eps},
      "input_layernorm");
  add(QuantizeOp{r.normed, r.input},
      spec.delta_net ? "linear_attn.in_proj.input" : "self_attn.qkv_proj.input");
  if (spec.delta_net) {
    add_delta_net(*spec.delta_net, r);
  } else {
    add_attention(spec.attention, r);
  }
  const Register y = f32("y", hidden);
  if (spec.sandwich_norms) {
    add(RmsNormOp{y, y, add_vector(Role::kAttentionOutputNorm, layer_, hidden), eps},
        "post_attention_layernorm");
  }
  add(AddOp{r.h, y}, spec.delta_net ? "linear_attn.residual" : "self_attn.residual");
  add(RmsNormOp{r.h, r.normed, add_vector(Role::kMlpNorm, layer_, hidden), eps},
      spec.sandwich_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm");
  add(QuantizeOp{r.normed, r.input}, "mlp.gate_up_proj.input");
  add_mlp(spec.mlp, r);
  if (spec.sandwich_norms) {
    add(RmsNormOp{y, y, add_vector(Role::kMlpOutputNorm, layer_, hidden), eps},
        "post_feedforward_layernorm");
  }
  add(AddOp{r.h, y}, "mlp.residual");
  if (spec.output_scale) {
    add(ScaleOp{r.h, 1.0f, add_vector(Role::kOutputScale, layer_, 1)}, "layer_scalar");
  }
}

void Builder::add_head(Register h) {
  const int64_t hidden = program_.spec.hidden_size;
  const auto eps = static_cast<float>(program_.spec.rms_norm_eps);
  const Register selected = f32("selected", hidden);
  const Register normed = f32("final_norm", hidden);
  const Register input = block("final_norm_q", hidden);
  program_.logits = f32("logits", program_.spec.vocab_size);
  add(SelectRowsOp{h, selected}, "select_rows");
  add(RmsNormOp{selected, normed, add_vector(Role::kOutputNorm, -1, hidden), eps}, "norm");
  add(QuantizeOp{normed, input}, "lm_head.input");
  add_linear(input, program_.logits, Role::kHead, std::nullopt, "lm_head");
  if (program_.spec.final_softcap) {
    add(SoftcapOp{program_.logits, static_cast<float>(*program_.spec.final_softcap)},
        "final_softcap");
  }
}

Program Builder::build() {
  const int64_t hidden = program_.spec.hidden_size;
  const LayerRegisters r{f32("h", hidden), f32("normed", hidden), block("normed_q", hidden)};
  program_.residual = r.h;
  begin_layer(-1);
  add(EmbedOp{add_matrix(Role::kTokenEmbedding, -1, program_.spec.vocab_size, hidden), r.h},
      "embed_tokens");
  if (program_.spec.embedding_scale) {
    add(ScaleOp{r.h, static_cast<float>(*program_.spec.embedding_scale)}, "embed_scale");
  }
  for (size_t i = 0; i < program_.spec.layers.size(); ++i) {
    begin_layer(static_cast<int>(i));
    const auto begin = static_cast<int>(program_.ops.size());
    add_layer(program_.spec.layers[i], r);
    program_.layers.push_back({begin, static_cast<int>(program_.ops.size())});
  }
  begin_layer(-1);
  add_head(r.h);
  return std::move(program_);
}

}  // namespace

Program build_program(const ModelSpec& spec, const std::vector<TensorEntry>& tensors) {
  return Builder(spec, tensors).build();
}

}  // namespace assay
