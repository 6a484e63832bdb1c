#include "runtime/math.h"
#include "runtime/ops/elementwise.h"

namespace assay {

void swiglu_reference(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = silu_canonical(gate[i]) * up[i];
}

void swiglu(const float* gate, const float* up, int64_t n, float* out) {
  swiglu_reference(gate, up, n, out);
}

void add(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] + y[i];
}

int64_t find_not_finite(const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (is_not_finite(x[i])) return i;
  }
  return -1;
}

}  // namespace assay
