#pragma once

#include "quantizer/quantize.h"

namespace assay {

// The functions behind algorithms/registry.cpp, one per file.

LayerResult quantize_gptq(const LayerProblem& problem, const QuantizeOptions& options);
LayerResult quantize_rtn(const LayerProblem& problem, const QuantizeOptions& options);

}  // namespace assay
