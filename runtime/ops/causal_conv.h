#pragma once

#include <cstdint>

namespace assay {

/// One token of a causal convolution per channel, with silu (transformers' modeling_qwen3_5.py):
/// y_c = silu(Σ_j w[c][j]·u_(t − kernel + 1 + j)[c]), a chain from +0 over ascending j with fma;
/// inputs before the first are zeros. weight (n, kernel); history (kernel − 1, n): the inputs
/// before this one, oldest first, replaced by those of the next. x, y (n); channels [begin, end).
void causal_conv_step(const float* weight, int kernel, int64_t n, int64_t begin, int64_t end,
                      const float* x, float* history, float* y);

}  // namespace assay
