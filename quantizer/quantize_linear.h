#pragma once

#include "quantizer/quantize.h"

namespace assay {

/// Quantizes one linear with the algorithm that options name: the two streams' target in the place
/// of W where options and problem have one, grid, codes, the steps that improve both, and the
/// figures of the result. Throws NumericError with the module.
LayerResult quantize_linear(const LayerProblem& problem, const QuantizeOptions& options);

}  // namespace assay
