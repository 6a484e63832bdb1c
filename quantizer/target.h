#pragma once

#include <vector>

#include "quantizer/quantize.h"

namespace assay {

/// W* = W + α·(W D)(H + λI)^-1 (out_features, in_features), rounded to fp32: the weights whose
/// outputs on the quantized stream come nearest to those of W on the 16-bit stream, for α = 1.
/// fp64; W D is a chain over ascending columns, the inverse two substitutions with the factor, each
/// with the unknowns in the order in which they are found (quantization.md, step 2).
/// Needs problem.drift and a factor with `upper`. Rows are independent.
std::vector<float> two_stream_target(const LayerProblem& problem, double alpha);

/// Σ‖X W^T − X̃ Ŵ^T‖² less the part that no Ŵ changes: with e = W − Ŵ it is e·H·e^T + 2·W D e^T,
/// summed over rows. `quantized` (out_features, in_features) is Ŵ.
double output_distance(const LayerProblem& problem, std::span<const float> quantized, double loss);

/// Bytes per thread.
uint64_t target_peak_bytes(int64_t columns);

}  // namespace assay
