#include <cstring>

#include "convert/core/dtype.h"
#include "runtime/math.h"
#include "runtime/ops/kv_write.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {

int64_t round_to_cache_reference(const float* x, int64_t n, KvType type, void* out) {
  if (type == KvType::kF32) {
    std::memcpy(out, x, static_cast<size_t>(n) * sizeof(float));
    for (int64_t i = 0; i < n; ++i) {
      if (is_not_finite(x[i])) return i;
    }
    return -1;
  }
  auto* bits = static_cast<uint16_t*>(out);
  const uint16_t exponent = type == KvType::kF16 ? 0x7c00u : 0x7f80u;
  for (int64_t i = 0; i < n; ++i) {
    bits[i] = type == KvType::kF16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
    if ((bits[i] & exponent) == exponent) return i;
  }
  return -1;
}

int64_t round_to_cache(const float* x, int64_t n, KvType type, void* out) {
  if (vector_kernels().round_to_cache(x, n, type, out)) return -1;
  return round_to_cache_reference(x, n, type, out);
}

int64_t kv_write(const float* k, const float* v, int n_kv_heads, int head_dim, int layer,
                 int sequence, int64_t position, KvCache& cache) {
  const auto row = static_cast<uint64_t>(position % cache.rows(layer)) *
                   static_cast<uint64_t>(head_dim) * kv_type_bytes(cache.type());
  for (const bool value : {false, true}) {
    const float* x = value ? v : k;
    for (int head = 0; head < n_kv_heads; ++head) {
      const int64_t first = static_cast<int64_t>(head) * head_dim;
      std::byte* rows =
          value ? cache.values(layer, sequence, head) : cache.keys(layer, sequence, head);
      const int64_t bad = round_to_cache(x + first, head_dim, cache.type(), rows + row);
      if (bad >= 0) {
        return (value ? static_cast<int64_t>(n_kv_heads) * head_dim : 0) + first + bad;
      }
    }
  }
  return -1;
}

}  // namespace assay
