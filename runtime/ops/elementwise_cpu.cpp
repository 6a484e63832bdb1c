#include "runtime/math.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {

void swiglu_reference(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = silu_canonical(gate[i]) * up[i];
}

void geglu_reference(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = gelu_tanh_canonical(gate[i]) * up[i];
}

void softcap_reference(float* x, float c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = softcap_canonical(x[i], c);
}

void silu_reference(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = silu_canonical(x[i]);
}

void sigmoid_gate_reference(float* x, const float* gate, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] * sigmoid_canonical(gate[i]);
}

void geglu(const float* gate, const float* up, int64_t n, float* out) {
  vector_kernels().geglu(gate, up, n, out);
}

void softcap(float* x, float c, int64_t n) { vector_kernels().softcap(x, c, n); }

void sigmoid_gate(float* x, const float* gate, int64_t n) {
  vector_kernels().sigmoid_gate(x, gate, n);
}

void scale(const float* x, float factor, int64_t n, float* y) {
  vector_kernels().scale(x, factor, n, y);
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
