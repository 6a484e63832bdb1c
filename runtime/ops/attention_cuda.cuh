#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "runtime/ops/attention_cuda.h"
#include "runtime/ops/common_cuda.cuh"

// Pieces of the attention kernels.

namespace assay::cuda {

inline constexpr int kSegmentKeys = 128;

template <CacheType kType>
struct Element;
template <>
struct Element<CacheType::kF16> {
  using Type = __half;
  static __device__ __forceinline__ float widen(Type v) { return __half2float(v); }
  static __device__ __forceinline__ Type round(float v) { return __float2half_rn(v); }
};
template <>
struct Element<CacheType::kBF16> {
  using Type = __nv_bfloat16;
  static __device__ __forceinline__ float widen(Type v) { return __bfloat162float(v); }
  static __device__ __forceinline__ Type round(float v) { return __float2bfloat16_rn(v); }
};
template <>
struct Element<CacheType::kF32> {
  using Type = float;
  static __device__ __forceinline__ float widen(Type v) { return v; }
  static __device__ __forceinline__ Type round(float v) { return v; }
};

/// Element i of a head after RoPE.
__device__ __forceinline__ float rotated(const AttentionArguments& a, const float* head, int i,
                                         int position) {
  const float x = __ldcg(head + i);
  const int half = a.rotary_dims / 2;
  if (i >= a.rotary_dims) return x;
  const int pair = i < half ? i : i - half;
  const size_t at = static_cast<size_t>(position) * half + pair;
  const float c = __ldg(a.rope_cos + at), s = __ldg(a.rope_sin + at);
  if (i < half) return __fsub_rn(__fmul_rn(x, c), __fmul_rn(__ldcg(head + i + half), s));
  return __fadd_rn(__fmul_rn(x, c), __fmul_rn(__ldcg(head + pair), s));
}

__device__ __forceinline__ int lane_major(int i, int head_dim) {
  return (i % 32) * (head_dim / 32) + i / 32;
}

/// Stores one token's K (rotated) and V of one KV head; `key_copy` and `value_copy`, if given, get
/// the same rows.
template <CacheType kType>
__device__ __forceinline__ void store_kv(const AttentionArguments& a, int token, int kv_head,
                                         int position, typename Element<kType>::Type* key_copy,
                                         typename Element<kType>::Type* value_copy) {
  using E = Element<kType>;
  const float* row = a.qkv + static_cast<size_t>(token) * a.qkv_stride;
  const size_t at =
      ((static_cast<size_t>(a.sequences[token]) * a.n_kv_heads + kv_head) * a.capacity + position) *
      a.head_dim;
  auto* keys = static_cast<typename E::Type*>(a.keys) + at;
  auto* values = static_cast<typename E::Type*>(a.values) + at;
  for (int i = static_cast<int>(threadIdx.x); i < a.head_dim; i += static_cast<int>(blockDim.x)) {
    const auto k = E::round(rotated(a, row + a.k_offset + kv_head * a.head_dim, i, position));
    const auto v = E::round(__ldcg(row + a.v_offset + kv_head * a.head_dim + i));
    if (is_not_finite(E::widen(k))) report_fault(a.fault, a.fault_op, i, E::widen(k));
    if (is_not_finite(E::widen(v))) report_fault(a.fault, a.fault_op, i, E::widen(v));
    const int to = lane_major(i, a.head_dim);
    keys[to] = k;
    values[i] = v;
    if (key_copy != nullptr) {
      key_copy[to] = k;
      value_copy[i] = v;
    }
  }
}

/// The five folds of kSums lane sums at once by recursive halving, kSums a power of two up to 32:
/// lane i ends with sum i / (32 / kSums) in acc[0]. A template per step: in a loop over masks the
/// compiler would keep acc in memory.
template <int kSums, int kMask, int kSize>
__device__ __forceinline__ void fold_dots(float (&acc)[kSize], int lane) {
  constexpr int kHalf = kSums / 2;
  if constexpr (kHalf == 0) {
    acc[0] = __fadd_rn(acc[0], __shfl_xor_sync(0xffffffffu, acc[0], kMask));
  } else {
    const bool upper = (lane & kMask) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float keep = upper ? acc[i + kHalf] : acc[i];
      const float send = upper ? acc[i] : acc[i + kHalf];
      acc[i] = __fadd_rn(keep, __shfl_xor_sync(0xffffffffu, send, kMask));
    }
  }
  if constexpr (kMask > 1) fold_dots<(kHalf > 0 ? kHalf : 1), kMask / 2>(acc, lane);
}

/// The queries of one thread block, in shared memory.
struct Queries {
  float* q;       // (n, head_dim) lane-major, rotated
  float* scores;  // (n, 128): scores, then exp(score − m)
  float* maxima;  // (n) of the segment
  float* sums;    // (n) of the segment
  int n;
};

/// Keys [first, last] of a segment that query i sees; empty if last < first.
struct Visible {
  int first, last;
};

/// Scores to exp(score − m), with m and l of the segment; a warp per query.
template <int kWarps, typename Range>
__device__ __forceinline__ void segment_softmax(const Queries& queries, int thread,
                                                const Range& range) {
  const int warp = thread / 32, lane = thread % 32;
  for (int query = warp; query < queries.n; query += kWarps) {
    const Visible seen = range(query);
    if (seen.last < seen.first) continue;
    float* scores = queries.scores + query * kSegmentKeys;
    float m = __uint_as_float(0xff800000u);
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const int key = block * 32 + lane;
      if (key >= seen.first && key <= seen.last) m = fmaxf(m, scores[key]);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, mask));
    float l = 0.0f;
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const int key = block * 32 + lane;
      if (key >= seen.first && key <= seen.last) {
        const float p = exp_canonical(__fsub_rn(scores[key], m));
        scores[key] = p;
        l = __fadd_rn(l, p);
      }
    }
    l = fold_lanes(l);
    if (lane == 0) {
      queries.maxima[query] = m;
      queries.sums[query] = l;
    }
  }
}

/// Starts the copy of a segment's rows to shared memory, as one group of asynchronous copies.
template <int kThreads, typename T>
__device__ __forceinline__ void stage(const T* from, T* to, int n_elements, int thread) {
  constexpr int kPer = 16 / static_cast<int>(sizeof(T));
  for (int i = thread; i < n_elements / kPer; i += kThreads) {
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to + i * kPer));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from + i * kPer)
                 : "memory");
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `kPending` groups of copies are under way, for all threads.
template <int kPending>
__device__ __forceinline__ void wait_staged() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  __syncthreads();
}

__host__ __device__ inline int align16(int bytes) { return (bytes + 15) / 16 * 16; }

/// Elements of the cache that lie side by side, as they come from memory: 2 to 16 bytes in whole
/// registers.
template <CacheType kType, int kCount>
struct Packed {
  static constexpr int kBytes = static_cast<int>(sizeof(typename Element<kType>::Type)) * kCount;
  static constexpr int kWords = kBytes < 4 ? 1 : kBytes / 4;
  uint32_t words[kWords];

  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (kType == CacheType::kF32) return __uint_as_float(words[i]);
    const uint32_t word = words[i / 2];
    if constexpr (kType == CacheType::kBF16)
      return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
    return scale_value(i % 2 == 0 ? word & 0xffffu : word >> 16, ScaleType::kF16);
  }
  __device__ __forceinline__ static Packed from_shared(const void* from) {
    Packed to;
    if constexpr (kBytes == 2) to.words[0] = *static_cast<const uint16_t*>(from);
    if constexpr (kBytes == 4) to.words[0] = *static_cast<const uint32_t*>(from);
    if constexpr (kBytes == 8) to.set(*static_cast<const uint2*>(from));
    if constexpr (kBytes == 16) to.set(*static_cast<const uint4*>(from));
    return to;
  }
  /// Reads past L1.
  __device__ __forceinline__ static Packed from_global(const void* from) {
    Packed to;
    if constexpr (kBytes == 2) to.words[0] = __ldcg(static_cast<const unsigned short*>(from));
    if constexpr (kBytes == 4) to.words[0] = __ldcg(static_cast<const unsigned int*>(from));
    if constexpr (kBytes == 8) to.set(__ldcg(static_cast<const uint2*>(from)));
    if constexpr (kBytes == 16) to.set(__ldcg(static_cast<const uint4*>(from)));
    return to;
  }

 private:
  __device__ __forceinline__ void set(const uint2& v) { words[0] = v.x, words[1] = v.y; }
  __device__ __forceinline__ void set(const uint4& v) {
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  }
};

/// kKeys key rows of one segment, a lane's elements of each.
template <CacheType kType, int kPerLane, int kKeys>
struct KeyRows {
  using Row = Packed<kType, kPerLane>;
  Row rows[kKeys];

  /// Rows past `last_key` are read as that one; without any they are 0.
  __device__ __forceinline__ void load(const typename Element<kType>::Type* segment, int first_key,
                                       int last_key, int head_dim, int lane) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      rows[j] = Row{};
      if (last_key >= 0)
        rows[j] =
            Row::from_global(segment + min(first_key + j, last_key) * head_dim + lane * kPerLane);
    }
  }
};

/// Scores of the warp's keys first_key … first_key + kKeys − 1 for the queries query … query +
/// kQueries − 1.
template <CacheType kType, int kPerLane, int kKeys, int kQueries>
__device__ __forceinline__ void scores_of(const AttentionArguments& a, const Queries& queries,
                                          const KeyRows<kType, kPerLane, kKeys>& keys, int query,
                                          int first_key, int head_dim, Visible seen, int lane) {
  constexpr int kSums = kQueries * kKeys, kLanes = 32 / kSums;  // lanes that end with one sum
  float q[kQueries][kPerLane], acc[kSums];
#pragma unroll
  for (int i = 0; i < kQueries; ++i)
#pragma unroll
    for (int k = 0; k < kPerLane; ++k)
      q[i][k] = queries.q[(query + i) * head_dim + lane * kPerLane + k];
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
#pragma unroll
    for (int i = 0; i < kQueries; ++i) acc[i * kKeys + j] = 0.0f;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      const float element = keys.rows[j][k];
#pragma unroll
      for (int i = 0; i < kQueries; ++i)
        acc[i * kKeys + j] = __fmaf_rn(q[i][k], element, acc[i * kKeys + j]);
    }
  }
  fold_dots<kSums, 16>(acc, lane);
  const int sum = lane / kLanes, key = first_key + sum % kKeys;
  if (lane % kLanes == 0 && key >= seen.first && key <= seen.last) {
    const float score = __fmul_rn(acc[0], a.scale);
    if (is_not_finite(score)) report_fault(a.fault, a.fault_op, key, score);
    queries.scores[(query + sum / kKeys) * kSegmentKeys + key] = score;
  }
}

/// Scores of the warp's kKeys keys for all queries, at most 32 sums at once. `fresh` is the row of
/// the key `fresh_key`, which may not be in the cache yet.
template <CacheType kType, int kPerLane, int kKeys>
__device__ __forceinline__ void decode_scores(const AttentionArguments& a, const Queries& queries,
                                              KeyRows<kType, kPerLane, kKeys>& keys,
                                              const typename Element<kType>::Type* fresh,
                                              int fresh_key, int head_dim, Visible seen,
                                              int thread) {
  const int warp = thread / 32, lane = thread % 32;
  const int first_key = warp * kKeys;
  if (first_key > seen.last || first_key + kKeys - 1 < seen.first) return;
#pragma unroll
  for (int j = 0; j < kKeys; ++j)
    if (first_key + j == fresh_key)
      keys.rows[j] = Packed<kType, kPerLane>::from_shared(fresh + lane * kPerLane);
  constexpr int kMost = 32 / kKeys;
  int query = 0;
#pragma unroll 1
  for (; query + kMost <= queries.n; query += kMost)
    scores_of<kType, kPerLane, kKeys, kMost>(a, queries, keys, query, first_key, head_dim, seen,
                                             lane);
#pragma unroll 1
  for (; query < queries.n; ++query)
    scores_of<kType, kPerLane, kKeys, 1>(a, queries, keys, query, first_key, head_dim, seen, lane);
}

/// With what a lane's segment, of 32 in ascending order, is merged into those before it: l·x + z·y
/// for l, and likewise for o; for the first of all, l = z. `from` are its m and l; `there` tells
/// whether there is such a segment. `largest` is the largest m before these 32, and then of all.
__device__ __forceinline__ float4 merge_factors(const float* from, bool there, bool first, int lane,
                                                float& largest) {
  const float m = there ? __ldcg(from) : __uint_as_float(0xff800000u);
  const float l = there ? __ldcg(from + 1) : 0.0f;
  float running = m;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const float other = __shfl_up_sync(0xffffffffu, running, step);
    if (lane >= step) running = fmaxf(running, other);
  }
  running = fmaxf(running, largest);
  float previous = __shfl_up_sync(0xffffffffu, running, 1);
  if (lane == 0) previous = largest;
  largest = __shfl_sync(0xffffffffu, running, 31);
  if (first || !there) return make_float4(0.0f, 0.0f, l, 0.0f);
  return make_float4(exp_canonical(__fsub_rn(previous, running)),
                     exp_canonical(__fsub_rn(m, running)), l, 0.0f);
}

/// o of one segment for kDims dimensions from `values` on, a chain over ascending keys each. Rows
/// are whole segments, though no more than `seen` is used.
template <CacheType kType, int kDims>
__device__ __forceinline__ void segment_output(const float* p,
                                               const typename Element<kType>::Type* values,
                                               int head_dim, Visible seen, float (&o)[kDims]) {
  constexpr int kBatch = 8;
  struct Batch {
    Packed<kType, kDims> v[kBatch];
    float4 p[2];
  };
  const auto load = [&](int key, Batch& to) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      to.v[i] = Packed<kType, kDims>::from_shared(values + (key + i) * head_dim);
    to.p[0] = *reinterpret_cast<const float4*>(p + key);
    to.p[1] = *reinterpret_cast<const float4*>(p + key + 4);
  };
  const auto add = [&](int key, const Batch& from) {
    const float weights[kBatch] = {from.p[0].x, from.p[0].y, from.p[0].z, from.p[0].w,
                                   from.p[1].x, from.p[1].y, from.p[1].z, from.p[1].w};
    const bool whole = key >= seen.first && key + kBatch - 1 <= seen.last;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (!whole && (key + i < seen.first || key + i > seen.last)) continue;
#pragma unroll
      for (int d = 0; d < kDims; ++d) o[d] = __fmaf_rn(weights[i], from.v[i][d], o[d]);
    }
  };
#pragma unroll
  for (float& sum : o) sum = 0.0f;
  // The next batch is on its way while one is added; read again where there is none, as what is
  // written on one path alone would take registers on all.
  Batch even, odd;
  int key = seen.first / kBatch * kBatch;
  const int last = seen.last / kBatch * kBatch;
  load(key, even);
#pragma unroll 1
  while (true) {
    load(min(key + kBatch, last), odd);
    add(key, even);
    key += kBatch;
    if (key > last) break;
    load(min(key + kBatch, last), even);
    add(key, odd);
    key += kBatch;
    if (key > last) break;
  }
}

}  // namespace assay::cuda
