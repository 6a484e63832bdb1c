#include "runtime/math.h"
#include "runtime/ops/causal_conv.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {

void causal_conv_step(const float* weight, int kernel, int64_t n, int64_t begin, int64_t end,
                      const float* x, float* history, float* y) {
  for (int64_t c = begin; c < end; ++c) {
    const float* w = weight + c * kernel;
    float sum = 0.0f;
    for (int j = 0; j + 1 < kernel; ++j) {
      float& past = history[j * n + c];
      sum = fused(w[j], past, sum);
      past = j + 2 < kernel ? history[(j + 1) * n + c] : x[c];
    }
    y[c] = fused(w[kernel - 1], x[c], sum);
  }
  vector_kernels().silu(y + begin, end - begin);
}

}  // namespace assay
