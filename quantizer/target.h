#pragma once

#include <vector>

#include "quantizer/quantize.h"

namespace assay {

/// W* = W + (α·W D + β·E)(H + λI)^-1 (out_features, in_features), rounded to fp32: for α = β = 1
/// the weights with which the quantized stream comes nearest to the 16-bit one after this linear,
/// and after the sum that its output goes into. fp64; W D is a chain over ascending columns, the
/// inverse two substitutions with the factor (quantization.md, step 2). β counts where the problem
/// has a residual_drift. Needs problem.drift and a factor with `upper`. Rows are independent.
std::vector<float> two_stream_target(const LayerProblem& problem, double alpha,
                                     double residual_alpha);

/// Σ‖(S + X W^T) − (S̃ + X̃ Ŵ^T)‖² less the part that no Ŵ changes: with e = W − Ŵ it is
/// e·H·e^T + 2·(W D + E) e^T, summed over rows. `quantized` (out_features, in_features) is Ŵ,
/// `loss` the first term.
double output_distance(const LayerProblem& problem, std::span<const float> quantized, double loss);

/// Bytes per thread.
uint64_t target_peak_bytes(int64_t columns);

}  // namespace assay
