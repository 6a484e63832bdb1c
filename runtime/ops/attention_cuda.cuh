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

/// The five folds of 32 lane sums at once by recursive halving: lane i ends with sum i in acc[0].
/// A template per step: in a loop over masks the compiler would keep acc in memory.
template <int kMask>
__device__ __forceinline__ void fold_32_dots(float (&acc)[32], int lane) {
  const bool upper = (lane & kMask) != 0;
#pragma unroll
  for (int i = 0; i < kMask; ++i) {
    const float keep = upper ? acc[i + kMask] : acc[i];
    const float send = upper ? acc[i] : acc[i + kMask];
    acc[i] = __fadd_rn(keep, __shfl_xor_sync(0xffffffffu, send, kMask));
  }
  if constexpr (kMask > 1) fold_32_dots<kMask / 2>(acc, lane);
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
__device__ __forceinline__ void segment_softmax(const Queries& queries, const Range& range) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
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
__device__ __forceinline__ void stage(const T* from, T* to, int n_elements) {
  constexpr int kPer = 16 / static_cast<int>(sizeof(T));
  for (int i = static_cast<int>(threadIdx.x); i < n_elements / kPer; i += kThreads) {
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

/// A lane's elements of one key row.
template <CacheType kType, int kPerLane>
struct alignas(sizeof(typename Element<kType>::Type) * kPerLane) KeyElements {
  typename Element<kType>::Type v[kPerLane];
};

/// Reads past L1.
template <typename T>
__device__ __forceinline__ T load_past_l1(const T* from) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  T to;
  if constexpr (sizeof(T) == 2) {
    const auto v = __ldcg(reinterpret_cast<const unsigned short*>(from));
    memcpy(&to, &v, sizeof(T));
  } else if constexpr (sizeof(T) == 4) {
    const auto v = __ldcg(reinterpret_cast<const unsigned int*>(from));
    memcpy(&to, &v, sizeof(T));
  } else if constexpr (sizeof(T) == 8) {
    const auto v = __ldcg(reinterpret_cast<const uint2*>(from));
    memcpy(&to, &v, sizeof(T));
  } else {
    const auto v = __ldcg(reinterpret_cast<const uint4*>(from));
    memcpy(&to, &v, sizeof(T));
  }
  return to;
}

/// kKeys key rows of one segment, a lane's elements of each.
template <CacheType kType, int kPerLane, int kKeys>
struct KeyRows {
  KeyElements<kType, kPerLane> rows[kKeys];

  __device__ void load(const typename Element<kType>::Type* segment, int first_key, int last_key,
                       int head_dim, int lane) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
      if (first_key + j <= last_key)
        rows[j] = load_past_l1(reinterpret_cast<const KeyElements<kType, kPerLane>*>(
            segment + (first_key + j) * head_dim + lane * kPerLane));
  }
};

/// Scores of the warp's kKeys keys for all queries, so many queries at once that there are 32 sums.
/// `fresh` is the row of the key `fresh_key`, which may not be in the cache yet.
template <CacheType kType, int kPerLane, int kKeys>
__device__ __forceinline__ void decode_scores(const AttentionArguments& a, const Queries& queries,
                                              KeyRows<kType, kPerLane, kKeys>& keys,
                                              const typename Element<kType>::Type* fresh,
                                              int fresh_key, int head_dim, Visible seen) {
  using E = Element<kType>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kQueries = 32 / kKeys;
  const int first_key = warp * kKeys;
  if (first_key > seen.last || first_key + kKeys - 1 < seen.first) return;
#pragma unroll
  for (int j = 0; j < kKeys; ++j)
    if (first_key + j == fresh_key)
      keys.rows[j] =
          *reinterpret_cast<const KeyElements<kType, kPerLane>*>(fresh + lane * kPerLane);
#pragma unroll 1
  for (int query = 0; query < queries.n; query += kQueries) {
    float acc[32];
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      float q[kPerLane];
      const float* from = queries.q + min(query + i, queries.n - 1) * head_dim + lane * kPerLane;
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) q[k] = from[k];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        float sum = 0.0f;
        if (first_key + j <= seen.last) {
#pragma unroll
          for (int k = 0; k < kPerLane; ++k)
            sum = __fmaf_rn(q[k], E::widen(keys.rows[j].v[k]), sum);
        }
        acc[i * kKeys + j] = sum;
      }
    }
    fold_32_dots<16>(acc, lane);
    const int key = first_key + lane % kKeys, mine = query + lane / kKeys;
    if (key >= seen.first && key <= seen.last && mine < queries.n) {
      const float score = __fmul_rn(acc[0], a.scale);
      if (is_not_finite(score)) report_fault(a.fault, a.fault_op, key, score);
      queries.scores[mine * kSegmentKeys + key] = score;
    }
  }
}

/// o of one segment for dimensions 2·pair and 2·pair + 1: a chain over ascending keys each.
template <CacheType kType>
__device__ __forceinline__ float2 pair_output(const float* p,
                                              const typename Element<kType>::Type* values,
                                              int head_dim, int pair, Visible seen) {
  using E = Element<kType>;
  struct alignas(2 * sizeof(typename E::Type)) Pair {
    typename E::Type x, y;
  };
  float2 o = make_float2(0.0f, 0.0f);
  const Pair* column = reinterpret_cast<const Pair*>(values) + pair;
  const int stride = head_dim / 2;
  const auto add = [&](float weight, const Pair& v) {
    o.x = __fmaf_rn(weight, E::widen(v.x), o.x);
    o.y = __fmaf_rn(weight, E::widen(v.y), o.y);
  };
  int key = seen.first;
  for (; key % 8 != 0 && key <= seen.last; ++key) add(p[key], column[key * stride]);
  for (; key + 7 <= seen.last; key += 8) {
    const float4 first = *reinterpret_cast<const float4*>(p + key);
    const float4 second = *reinterpret_cast<const float4*>(p + key + 4);
    Pair v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = column[(key + i) * stride];
    add(first.x, v[0]);
    add(first.y, v[1]);
    add(first.z, v[2]);
    add(first.w, v[3]);
    add(second.x, v[4]);
    add(second.y, v[5]);
    add(second.z, v[6]);
    add(second.w, v[7]);
  }
  for (; key <= seen.last; ++key) add(p[key], column[key * stride]);
  return o;
}

}  // namespace assay::cuda
