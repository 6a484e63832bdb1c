#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/kv_cache.h"

namespace assay {

inline constexpr int64_t kAttentionSegment = 128;  // absolute positions per segment

/// One query of one head over the visible positions of its cache (arithmetic.md §5).
/// q     (head_dim) fp32
/// keys, values  (positions, head_dim) in the cache type
/// first, last   visible positions, inclusive; last is the query's own
/// out   (head_dim)
/// scores: lane dot of q and k, times scale. Segments are absolute; each gives m, l (lane sum of
/// exp(score − m), position j in lane j mod 32) and o (chain over ascending positions of p·v);
/// segments merge in ascending order with rounded products. Result o / l. Returns false if a score
/// or result is not finite.
bool attend(const float* q, const void* keys, const void* values, KvType type, int64_t first,
            int64_t last, int head_dim, float scale, float* out);

/// One query of attend_many; fields as the arguments of attend.
struct AttentionQuery {
  const float* q = nullptr;
  float* out = nullptr;
  int64_t first = 0;
  int64_t last = 0;
};

/// attend for queries of any heads and positions that read the same cache rows: each segment is
/// widened once for all. Bits as of attend for each alone. Returns −1, or the index of the first
/// query with a score or result that is not finite.
/// `ring`: rows after which positions begin anew (KvCache::rows); 0: there are as many as
/// positions.
int64_t attend_many(std::span<const AttentionQuery> queries, const void* keys, const void* values,
                    KvType type, int head_dim, float scale, int64_t ring = 0);

/// The same, one value at a time: the oracle of the tests.
bool attend_reference(const float* q, const void* keys, const void* values, KvType type,
                      int64_t first, int64_t last, int head_dim, float scale, float* out);

}  // namespace assay
