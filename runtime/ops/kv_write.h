#pragma once

#include <cstdint>

#include "runtime/kv_cache.h"

namespace assay {

/// Rounds n fp32 values to the cache type, nearest even, and stores them at `out` (arithmetic.md
/// §5). Returns −1, or the index of the first value that is not finite after rounding: the caller
/// throws NumericError with op and layer.
int64_t round_to_cache(const float* x, int64_t n, KvType type, void* out);

/// The same, one value at a time: the oracle of the tests.
int64_t round_to_cache_reference(const float* x, int64_t n, KvType type, void* out);

/// Stores one token's K and V of every head at `position` of `sequence`.
/// k, v  (n_kv_heads, head_dim) fp32, K after RoPE
/// Returns −1, or the index within k (then v, counted on from n_kv_heads · head_dim) of the first
/// value that is not finite after rounding.
int64_t kv_write(const float* k, const float* v, int n_kv_heads, int head_dim, int layer,
                 int sequence, int64_t position, KvCache& cache);

}  // namespace assay
