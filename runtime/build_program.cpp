#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>

#include "convert/core/error.h"
#include "runtime/program.h"

namespace assay {
namespace {

/// Appends ops and the slots that they need. Op names follow the modules of the checkpoint, without
/// "model." in front.
class Builder {
 public:
  Builder(const ModelSpec& spec, const std::vector<TensorEntry>& tensors) {
    program_.spec = spec;
    for (const TensorEntry& tensor : tensors) {
      tensors_[{tensor.role, tensor.layer, tensor.expert}] = &tensor;
    }
  }

  Program build();

 private:
  struct LayerRegisters {
    Register h, normed, input;  // residual stream, its norm, that as block int16
  };

  /// The register of this name and width; made on first use.
  Register f32(const std::string& name, int64_t columns) { return find(name, columns, false); }
  Register block(const std::string& name, int64_t columns, int slots = 1) {
    return find(name, columns, true, slots);
  }
  Register find(const std::string& name, int64_t columns, bool block_int16, int slots = 1);
  int64_t columns(Register r) const {
    return program_.registers[static_cast<size_t>(r.index)].columns;
  }

  const TensorEntry& entry(Role role, int layer, int expert) const;
  int add_matrix(Role role, int layer, int64_t out_features, int64_t in_features, int expert = -1);
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
  bool is_kv_source(int layer) const;
  /// The layer's cache; its own, or that of the layer that it shares.
  int cache_layer_of(const AttentionSpec& spec);
  void add_delta_net(const DeltaNetSpec& spec, const LayerRegisters& r);
  void add_mlp(const MlpSpec& spec, const LayerRegisters& r);
  void add_activation(Activation activation, Register gate, Register up, Register out,
                      const std::string& module);
  /// One matrix of each expert, (out's columns per slot, in's).
  void add_expert_linear(Register in, Register ids, Register out, int top_k, Role weight,
                         const std::string& name, int n_experts);
  void add_experts(const MoeSpec& spec, Register router_input, Register input,
                   const std::string& module, Register out);
  void add_experts_beside(const MoeSpec& spec, const LayerRegisters& r, Register y);
  void add_per_layer_inputs(const LayerRegisters& r);
  void add_per_layer_input(const LayerRegisters& r);
  void add_head(Register h);

  std::map<std::tuple<Role, int, int>, const TensorEntry*> tensors_;  // role, layer, expert
  Program program_;
  std::map<int, int> cache_of_layer_;  // index into Program::cache_layers
  int layer_ = -1;
  std::string prefix_;
};

Register Builder::find(const std::string& name, int64_t columns, bool block_int16, int slots) {
  auto& registers = program_.registers;
  for (size_t i = 0; i < registers.size(); ++i) {
    const RegisterSpec& r = registers[i];
    if (r.name == name && r.columns == columns && r.block_int16 == block_int16 &&
        r.slots == slots) {
      return {static_cast<int>(i)};
    }
  }
  registers.push_back({name, columns, block_int16, slots});
  return {static_cast<int>(registers.size()) - 1};
}

const TensorEntry& Builder::entry(Role role, int layer, int expert) const {
  const auto found = tensors_.find({role, layer, expert});
  if (found != tensors_.end()) return *found->second;
  throw FormatError("model \"" + program_.spec.family + "\" has no tensor for " +
                    std::string(role_name(role)) +
                    (layer < 0 ? "" : " of layer " + std::to_string(layer)));
}

int Builder::add_matrix(Role role, int layer, int64_t out_features, int64_t in_features,
                        int expert) {
  // A tied head reads the embedding's tensor, but is a matrix of its own: packed, never quantized.
  const bool tied = role == Role::kHead && program_.spec.tied_head;
  const TensorEntry& tensor = entry(tied ? Role::kTokenEmbedding : role, layer, expert);
  program_.matrices.push_back({role, layer, tensor.module_name(), out_features, in_features,
                               tensor.quantizable && !tied, expert});
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
  op.matrix = add_matrix(weight, layer_, columns(out), columns(in));
  if (bias) op.bias = add_vector(*bias, layer_, columns(out));
  add(op, name);
}

std::optional<Role> when(bool present, Role role) {
  return present ? std::optional(role) : std::nullopt;
}

/// Norms per head, before the rotation. v of a layer without v_proj is the raw k.
void Builder::add_head_norms(const AttentionSpec& spec, Register q, Register k, Register v) {
  const auto eps = static_cast<float>(program_.spec.rms_norm_eps);
  const bool own_kv = !spec.kv_source;
  if (spec.v_norm && own_kv) {
    add(RmsNormOp{spec.k_is_v ? k : v, v, -1, eps, spec.n_kv_heads}, "self_attn.v_norm");
  }
  if (!spec.qk_norm) return;
  add(RmsNormOp{q, q, add_vector(Role::kQNorm, layer_, spec.head_dim), eps, spec.n_heads},
      "self_attn.q_norm");
  if (!own_kv) return;
  add(RmsNormOp{k, k, add_vector(Role::kKNorm, layer_, spec.head_dim), eps, spec.n_kv_heads},
      "self_attn.k_norm");
}

bool Builder::is_kv_source(int layer) const {
  return std::any_of(program_.spec.layers.begin(), program_.spec.layers.end(),
                     [&](const LayerSpec& other) { return other.attention.kv_source == layer; });
}

int Builder::cache_layer_of(const AttentionSpec& spec) {
  if (spec.kv_source) return cache_of_layer_.at(*spec.kv_source);
  const auto cache_layer = static_cast<int>(program_.cache_layers.size());
  program_.cache_layers.push_back({spec.n_kv_heads, spec.head_dim, spec.sliding_window});
  cache_of_layer_[layer_] = cache_layer;
  return cache_layer;
}

void Builder::add_attention(const AttentionSpec& spec, const LayerRegisters& r) {
  const int64_t q_columns = int64_t{spec.n_heads} * spec.head_dim;
  const int64_t kv_columns = int64_t{spec.n_kv_heads} * spec.head_dim;
  const Register q = f32("q", q_columns);
  // Keys and values that later layers share stay in registers of their own until those have run.
  const int source = spec.kv_source.value_or(layer_);
  const std::string shared = is_kv_source(source) ? "_of_" + std::to_string(source) : "";
  const Register k = f32("k" + shared, kv_columns);
  const Register v = f32("v" + shared, kv_columns);
  const Register out = f32("attention", q_columns);
  const Register out_block = block("attention_q", q_columns);
  const Register y = f32("y", program_.spec.hidden_size);
  const int rope = add_rope(spec.rope);
  const int cache_layer = cache_layer_of(spec);

  const Register q_gate = spec.output_gate ? f32("q_gate", 2 * q_columns) : q;
  add_linear(r.input, q_gate, Role::kQProj, when(spec.qkv_bias, Role::kQBias), "self_attn.q_proj");
  if (!spec.kv_source) {
    add_linear(r.input, k, Role::kKProj, when(spec.qkv_bias, Role::kKBias), "self_attn.k_proj");
  }
  if (!spec.kv_source && !spec.k_is_v) {
    add_linear(r.input, v, Role::kVProj, when(spec.qkv_bias, Role::kVBias), "self_attn.v_proj");
  }
  const Register gate = spec.output_gate ? f32("attention_gate", q_columns) : Register{};
  if (spec.output_gate) {
    add(SplitGateOp{q_gate, q, gate, spec.n_heads, spec.head_dim}, "self_attn.split_gate");
  }
  add_head_norms(spec, q, k, v);
  add(RopeOp{q, spec.n_heads, spec.head_dim, rope}, "self_attn.rope_q");
  if (!spec.kv_source) {
    add(RopeOp{k, spec.n_kv_heads, spec.head_dim, rope}, "self_attn.rope_k");
  }
  // A layer that shares writes again what is there: so that it can also run apart from its source.
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
  add_activation(spec.activation, gate, up, activated, "mlp");
  add(QuantizeOp{activated, activated_block}, "mlp.down_proj.input");
  add_linear(activated_block, y, Role::kDownProj, when(spec.bias, Role::kDownBias),
             "mlp.down_proj");
}

void Builder::add_activation(Activation activation, Register gate, Register up, Register out,
                             const std::string& module) {
  if (activation == Activation::kSilu) {
    add(SwiGluOp{gate, up, out}, module + ".swiglu");
  } else {
    add(GeGluOp{gate, up, out}, module + ".geglu");
  }
}

void Builder::add_expert_linear(Register in, Register ids, Register out, int top_k, Role weight,
                                const std::string& name, int n_experts) {
  ExpertLinearOp op{in, ids, out, -1, n_experts};
  const int64_t in_features = program_.registers[static_cast<size_t>(in.index)].slot_columns();
  for (int e = 0; e < n_experts; ++e) {
    const int matrix = add_matrix(weight, layer_, columns(out) / top_k, in_features, e);
    if (e == 0) op.first_matrix = matrix;
  }
  add(op, name);
}

// The experts' input is quantized apart from the router's: what calibration captures there comes
// with the routes already known.
void Builder::add_experts(const MoeSpec& spec, Register router_input, Register input,
                          const std::string& module, Register out) {
  const int k = spec.top_k;
  const int64_t hidden = program_.spec.hidden_size;
  const int64_t inner = k * spec.intermediate_size;
  const Register logits = f32("router_logits", spec.n_experts);
  const Register ids = f32("expert_ids", k);
  const Register weights = f32("expert_weights", k);
  const Register input_block = block("expert_input_q", hidden);
  const Register gate = f32("expert_gate", inner);
  const Register up = f32("expert_up", inner);
  const Register activated = f32("expert_activated", inner);
  const Register activated_block = block("expert_activated_q", inner, k);
  const Register outputs = f32("expert_outputs", k * hidden);

  const bool scaled = spec.beside_mlp;
  add_linear(router_input, logits, Role::kRouter, std::nullopt,
             scaled ? "router.proj" : "mlp.gate");
  add(RouteOp{logits, ids, weights, spec.normalize,
              scaled ? add_vector(Role::kExpertScale, layer_, spec.n_experts) : -1},
      module + ".route");
  add(QuantizeOp{input, input_block}, module + ".gate_up_proj.input");
  add_expert_linear(input_block, ids, gate, k, Role::kExpertGateProj, module + ".gate_proj",
                    spec.n_experts);
  add_expert_linear(input_block, ids, up, k, Role::kExpertUpProj, module + ".up_proj",
                    spec.n_experts);
  add_activation(spec.activation, gate, up, activated, module);
  add(QuantizeOp{activated, activated_block}, module + ".down_proj.input");
  add_expert_linear(activated_block, ids, outputs, k, Role::kExpertDownProj, module + ".down_proj",
                    spec.n_experts);
  add(WeightedSumOp{outputs, weights, out}, module + ".sum");
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
  if (spec.mlp.intermediate_size > 0) {
    add(QuantizeOp{r.normed, r.input}, "mlp.gate_up_proj.input");
    add_mlp(spec.mlp, r);
  }
  if (spec.moe && !spec.moe->beside_mlp) {
    add(QuantizeOp{r.normed, r.input}, "mlp.gate.input");
    add_experts(*spec.moe, r.input, r.normed, "mlp.experts", y);
  }
  if (spec.moe && spec.moe->beside_mlp) add_experts_beside(*spec.moe, r, y);
  if (spec.sandwich_norms) {
    add(RmsNormOp{y, y, add_vector(Role::kMlpOutputNorm, layer_, hidden), eps},
        "post_feedforward_layernorm");
  }
  add(AddOp{r.h, y}, "mlp.residual");
  if (program_.spec.per_layer_input_size > 0) add_per_layer_input(r);
  if (spec.output_scale) {
    add(ScaleOp{r.h, 1.0f, add_vector(Role::kOutputScale, layer_, 1)}, "layer_scalar");
  }
}

// y is the MLP's output; router and experts read the residual stream as it was before the MLP.
void Builder::add_experts_beside(const MoeSpec& spec, const LayerRegisters& r, Register y) {
  const auto eps = static_cast<float>(program_.spec.rms_norm_eps);
  const int64_t hidden = program_.spec.hidden_size;
  const Register sum = f32("expert_sum", hidden);
  add(RmsNormOp{y, y, add_vector(Role::kBesideMlpNorm, layer_, hidden), eps},
      "post_feedforward_layernorm_1");
  add(RmsNormOp{r.h, r.normed, add_vector(Role::kRouterScale, layer_, hidden), eps}, "router.norm");
  add(ScaleOp{r.normed, static_cast<float>(1.0 / std::sqrt(static_cast<double>(hidden)))},
      "router.scale");
  add(QuantizeOp{r.normed, r.input}, "router.proj.input");
  const Register input = f32("expert_input", hidden);
  add(RmsNormOp{r.h, input, add_vector(Role::kExpertNorm, layer_, hidden), eps},
      "pre_feedforward_layernorm_2");
  add_experts(spec, r.input, input, "experts", sum);
  add(RmsNormOp{sum, sum, add_vector(Role::kExpertOutputNorm, layer_, hidden), eps},
      "post_feedforward_layernorm_2");
  add(AddOp{y, sum}, "experts.beside");
}

// What each layer gets beside the residual stream: half from the token alone, half from its
// embedding.
void Builder::add_per_layer_inputs(const LayerRegisters& r) {
  const ModelSpec& spec = program_.spec;
  const auto eps = static_cast<float>(spec.rms_norm_eps);
  const auto n_layers = static_cast<int>(spec.layers.size());
  const int64_t all = n_layers * spec.per_layer_input_size;
  const Register inputs = f32("per_layer_inputs", all);
  const Register context = f32("per_layer_context", all);
  add(EmbedOp{add_matrix(Role::kPerLayerEmbedding, -1, spec.vocab_size, all), inputs},
      "embed_tokens_per_layer");
  const auto size = static_cast<double>(spec.per_layer_input_size);
  add(ScaleOp{inputs, static_cast<float>(std::sqrt(size))}, "embed_per_layer_scale");
  add(QuantizeOp{r.h, r.input}, "per_layer_model_projection.input");
  add_linear(r.input, context, Role::kPerLayerModelProj, std::nullopt,
             "per_layer_model_projection");
  add(ScaleOp{context, static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.hidden_size)))},
      "per_layer_projection_scale");
  add(RmsNormOp{context, context,
                add_vector(Role::kPerLayerModelNorm, -1, spec.per_layer_input_size), eps, n_layers},
      "per_layer_projection_norm");
  add(AddOp{inputs, context}, "per_layer_inputs.add");
  add(ScaleOp{inputs, static_cast<float>(1.0 / std::sqrt(2.0))}, "per_layer_inputs.scale");
}

void Builder::add_per_layer_input(const LayerRegisters& r) {
  const ModelSpec& spec = program_.spec;
  const int64_t n = spec.per_layer_input_size;
  const Register inputs = f32("per_layer_inputs", static_cast<int64_t>(spec.layers.size()) * n);
  const Register own = f32("per_layer_input", n);
  const Register gate = f32("per_layer_gate", n);
  const Register gated = block("per_layer_gate_q", n);
  const Register y = f32("y", spec.hidden_size);
  add(QuantizeOp{r.h, r.input}, "per_layer_input_gate.input");
  add_linear(r.input, gate, Role::kPerLayerGate, std::nullopt, "per_layer_input_gate");
  add(SliceOp{inputs, own, layer_ * n}, "per_layer_input");
  add(GeGluOp{gate, own, gate}, "per_layer_input.geglu");
  add(QuantizeOp{gate, gated}, "per_layer_projection.input");
  add_linear(gated, y, Role::kPerLayerProj, std::nullopt, "per_layer_projection");
  add(RmsNormOp{y, y, add_vector(Role::kPerLayerNorm, layer_, spec.hidden_size),
                static_cast<float>(spec.rms_norm_eps)},
      "post_per_layer_input_norm");
  add(AddOp{r.h, y}, "per_layer_input.residual");
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
  if (program_.spec.per_layer_input_size > 0) add_per_layer_inputs(r);
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
