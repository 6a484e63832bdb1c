#pragma once

#include <cstdint>
#include <string_view>

namespace assay {

// What a tensor is for, one row each: its name and the part of the model that it belongs to.
// Norms "output" stand behind attention, MLP or experts, before the residual sum. kExpertNorm is
// the one before the experts where an MLP runs beside them, kBesideMlpNorm that behind this MLP.
#define ASSAY_ROLES(ROLE)                                                         \
  ROLE(kTokenEmbedding, "token_embedding", "embedding")                           \
  ROLE(kOutputNorm, "output_norm", "norms")                                       \
  ROLE(kHead, "head", "head")                                                     \
  ROLE(kAttentionNorm, "attention_norm", "norms")                                 \
  ROLE(kQProj, "q_proj", "attention")                                             \
  ROLE(kKProj, "k_proj", "attention")                                             \
  ROLE(kVProj, "v_proj", "attention")                                             \
  ROLE(kOProj, "o_proj", "attention")                                             \
  ROLE(kQBias, "q_bias", "attention")                                             \
  ROLE(kKBias, "k_bias", "attention")                                             \
  ROLE(kVBias, "v_bias", "attention")                                             \
  ROLE(kOBias, "o_bias", "attention")                                             \
  ROLE(kMlpNorm, "mlp_norm", "norms")                                             \
  ROLE(kGateProj, "gate_proj", "MLP")                                             \
  ROLE(kUpProj, "up_proj", "MLP")                                                 \
  ROLE(kDownProj, "down_proj", "MLP")                                             \
  ROLE(kGateBias, "gate_bias", "MLP")                                             \
  ROLE(kUpBias, "up_bias", "MLP")                                                 \
  ROLE(kDownBias, "down_bias", "MLP")                                             \
  ROLE(kQNorm, "q_norm", "norms")                                                 \
  ROLE(kKNorm, "k_norm", "norms")                                                 \
  ROLE(kAttentionOutputNorm, "attention_output_norm", "norms")                    \
  ROLE(kMlpOutputNorm, "mlp_output_norm", "norms")                                \
  ROLE(kOutputScale, "output_scale", "norms")                                     \
  ROLE(kDeltaQkvProj, "delta_qkv_proj", "delta net")                              \
  ROLE(kDeltaZProj, "delta_z_proj", "delta net")                                  \
  ROLE(kDeltaAProj, "delta_a_proj", "delta net")                                  \
  ROLE(kDeltaBProj, "delta_b_proj", "delta net")                                  \
  ROLE(kDeltaConv, "delta_conv", "delta net")                                     \
  ROLE(kDeltaDecay, "delta_decay", "delta net") /* ops use -exp(A_log) */         \
  ROLE(kDeltaStepBias, "delta_step_bias", "delta net")                            \
  ROLE(kDeltaNorm, "delta_norm", "norms")                                         \
  ROLE(kDeltaOutProj, "delta_out_proj", "delta net")                              \
  ROLE(kRouter, "router", "router")                                               \
  ROLE(kRouterScale, "router_scale", "router") /* of the router's normed input */ \
  ROLE(kExpertScale, "expert_scale", "router") /* one number per expert */        \
  ROLE(kExpertGateProj, "expert_gate_proj", "experts")                            \
  ROLE(kExpertUpProj, "expert_up_proj", "experts")                                \
  ROLE(kExpertDownProj, "expert_down_proj", "experts")                            \
  ROLE(kExpertNorm, "expert_norm", "norms")                                       \
  ROLE(kExpertOutputNorm, "expert_output_norm", "norms")                          \
  ROLE(kBesideMlpNorm, "beside_mlp_norm", "norms")                                \
  ROLE(kPerLayerEmbedding, "per_layer_embedding", "embedding")                    \
  ROLE(kPerLayerModelProj, "per_layer_model_proj", "per-layer input")             \
  ROLE(kPerLayerModelNorm, "per_layer_model_norm", "norms")                       \
  ROLE(kPerLayerGate, "per_layer_gate", "per-layer input")                        \
  ROLE(kPerLayerProj, "per_layer_proj", "per-layer input")                        \
  ROLE(kPerLayerNorm, "per_layer_norm", "norms")                                  \
  ROLE(kPredictionProj, "prediction_proj", "prediction")                          \
  ROLE(kPredictionTokenNorm, "prediction_token_norm", "norms")                    \
  ROLE(kPredictionStateNorm, "prediction_state_norm", "norms")                    \
  ROLE(kPredictionNorm, "prediction_norm", "norms")

/// What a tensor is for. One name over all families and files.
enum class Role : uint8_t {
#define ASSAY_ROLE_CONSTANT(constant, name, part) constant,
  ASSAY_ROLES(ASSAY_ROLE_CONSTANT)
#undef ASSAY_ROLE_CONSTANT
};
std::string_view role_name(Role role);  // "q_proj"
std::string_view role_part(Role role);  // "attention"

}  // namespace assay
