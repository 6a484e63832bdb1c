#include "runtime/math.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {

void swiglu_reference(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = silu_canonical(gate[i]) * up[i];
}

void swiglu(const float* gate, const float* up, int64_t n, float* out) {
  vector_kernels().swiglu(gate, up, n, out);
}

void add(float* x, const float* y, int64_t n) { vector_kernels().add(x, y, n); }

int64_t find_not_finite(const float* x, int64_t n) {
  if (vector_kernels().all_finite(x, n)) return -1;
  for (int64_t i = 0; i < n; ++i) {
    if (is_not_finite(x[i])) return i;
  }
  return -1;
}

}  // namespace assay
