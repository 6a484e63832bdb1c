#pragma once

#include <cstdint>

#include "convert/model_spec.h"

namespace assay {

/// One token of one value head of Gated DeltaNet.
struct DeltaNetStep {
  const float* q = nullptr;  // (key_dim) of the key head, as the convolution gives it
  const float* k = nullptr;  // (key_dim)
  const float* v = nullptr;  // (value_dim)
  float a = 0.0f;            // the head's projections and constants
  float b = 0.0f;
  float decay = 0.0f;  // −exp(A_log)
  float step_bias = 0.0f;
};

/// arithmetic.md §6, in this order: k = k / sqrt(Σk² + 1e-6), q = (q / sqrt(Σq² + 1e-6))·fp32(1 /
/// sqrt(key_dim)); α = exp(decay·softplus(a + step_bias)), β = sigmoid(b); then for every j:
/// S_j ← α·S_j; p = lane-sum S_j·k; u = β·(v_j − p); S_j ← fma(k, u, S_j); out_j = lane-sum S_j·q.
/// state (value_dim, key_dim): rows S_j. workspace: 2·key_dim floats.
void delta_net_step(const DeltaNetSpec& spec, const DeltaNetStep& step, float* state, float* out,
                    float* workspace);

}  // namespace assay
