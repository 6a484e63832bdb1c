#include "runtime/device/cuda_support.h"
#include "runtime/ops/attention_cuda.cuh"

namespace assay::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostSharedBytes = 226 * 1024;  // of 227 KB; the rest is for static variables

/// The lane's part of q·k for 32 keys: a chain over its elements. kPerLane 0: any number.
template <CacheType kType, int kPerLane>
__device__ __forceinline__ void key_dots(const float* q, const typename Element<kType>::Type* keys,
                                         int head_dim, int n_keys, float (&acc)[32]) {
  using E = Element<kType>;
  if constexpr (kPerLane == 0) {
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      acc[j] = 0.0f;
      if (j >= n_keys) continue;
      for (int k = 0; k < head_dim / 32; ++k)
        acc[j] = __fmaf_rn(q[k], E::widen(keys[j * head_dim + k]), acc[j]);
    }
  } else {
    struct alignas(sizeof(typename E::Type) * kPerLane) Elements {
      typename E::Type v[kPerLane];
    };
    float x[kPerLane];
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) x[k] = q[k];
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      acc[j] = 0.0f;
      if (j >= n_keys) continue;
      const Elements row = *reinterpret_cast<const Elements*>(keys + j * head_dim);
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) acc[j] = __fmaf_rn(x[k], E::widen(row.v[k]), acc[j]);
    }
  }
}

/// m and l of one segment for all queries. `range(i)` gives visible keys relative to the segment.
template <CacheType kType, typename Range>
__device__ __forceinline__ void segment_scores(const AttentionArguments& a, const Queries& queries,
                                               const typename Element<kType>::Type* keys,
                                               const Range& range) {
  using E = Element<kType>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int per_lane = a.head_dim / 32;
  for (int task = warp; task < queries.n * 4; task += kWarps) {
    const int query = task / 4, block = task % 4;
    const Visible seen = range(query);
    if (seen.last < block * 32 || seen.first > block * 32 + 31) continue;
    float acc[32];
    const float* q = queries.q + query * a.head_dim + lane * per_lane;
    const auto* k = keys + static_cast<size_t>(block) * 32 * a.head_dim + lane * per_lane;
    const int n_keys = min(32, seen.last - block * 32 + 1);
    switch (per_lane) {
      case 2:
        key_dots<kType, 2>(q, k, a.head_dim, n_keys, acc);
        break;
      case 4:
        key_dots<kType, 4>(q, k, a.head_dim, n_keys, acc);
        break;
      default:
        key_dots<kType, 0>(q, k, a.head_dim, n_keys, acc);
    }
    fold_32_dots<16>(acc, lane);
    const int key = block * 32 + lane;
    if (key >= seen.first && key <= seen.last) {
      const float score = __fmul_rn(acc[0], a.scale);
      if (is_not_finite(score)) report_fault(a.fault, a.fault_op, key, score);
      queries.scores[query * kSegmentKeys + key] = score;
    }
  }
  __syncthreads();
  segment_softmax<kWarps>(queries, range);
  __syncthreads();
}

/// o of one segment for query `query`, dimension i: a chain over ascending keys.
template <CacheType kType>
__device__ __forceinline__ float segment_output(const AttentionArguments& a, const Queries& queries,
                                                const typename Element<kType>::Type* values,
                                                int query, int i, Visible seen) {
  const float* p = queries.scores + query * kSegmentKeys;
  float o = 0.0f;
#pragma unroll 8
  for (int key = seen.first; key <= seen.last; ++key)
    o = __fmaf_rn(p[key], Element<kType>::widen(values[key * a.head_dim + i]), o);
  return o;
}

/// Waits until at most `kPending` groups of copies are under way, for all threads.
template <int kPending>
__device__ __forceinline__ void wait_staged() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  __syncthreads();
}

struct SharedLayout {
  int q, scores, maxima, sums, keys, values, bytes;
};

__host__ __device__ inline int align16(int bytes) { return (bytes + 15) / 16 * 16; }

/// Of the prefill kernel.
__host__ __device__ inline SharedLayout shared_layout(int n_queries, int head_dim,
                                                      int element_bytes) {
  SharedLayout at{};
  at.scores = align16(n_queries * head_dim * 4);
  at.maxima = at.scores + n_queries * kSegmentKeys * 4;
  at.sums = at.maxima + align16(n_queries * 4);
  at.keys = at.sums + align16(n_queries * 4);
  at.values = at.keys + kSegmentKeys * head_dim * element_bytes;
  at.bytes = at.values + kSegmentKeys * head_dim * element_bytes;
  return at;
}

__device__ __forceinline__ Queries queries_at(uint8_t* shared, const SharedLayout& at, int n) {
  return {reinterpret_cast<float*>(shared + at.q), reinterpret_cast<float*>(shared + at.scores),
          reinterpret_cast<float*>(shared + at.maxima), reinterpret_cast<float*>(shared + at.sums),
          n};
}

// Decode: one thread block takes the segments split, split + splits, … of a token and KV head.

constexpr int kWarpKeys =
    kSegmentKeys / kWarps;  // keys of a segment whose scores one warp computes

struct DecodeLayout {
  int q, scores, maxima, sums, new_key, new_value, values, n_buffers, coefficients, bytes;
};

__host__ __device__ inline DecodeLayout decode_layout(int per_kv, int head_dim, int element_bytes,
                                                      int max_segments) {
  DecodeLayout at{};
  const int rows = kSegmentKeys * head_dim * element_bytes;
  at.scores = align16(per_kv * head_dim * 4);
  at.maxima = at.scores + per_kv * kSegmentKeys * 4;
  at.sums = at.maxima + align16(per_kv * 4);
  at.new_key = at.sums + align16(per_kv * 4);
  at.new_value = at.new_key + align16(head_dim * element_bytes);
  at.coefficients = at.new_value + align16(head_dim * element_bytes);
  at.values = at.coefficients + per_kv * max_segments * 16;
  // A second buffer only where half a multiprocessor has room for it.
  at.n_buffers = at.values + 2 * rows <= 112 * 1024 ? 2 : 1;
  at.bytes = at.values + at.n_buffers * rows;
  return at;
}

/// Merges the segments of all heads of a KV head in ascending order; by the thread block that came
/// last.
__device__ __forceinline__ void merge_segments(const AttentionArguments& a, const float* partial,
                                               int n_segments, int per_kv, float* out,
                                               float4* coefficients) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int stride = a.head_dim + 2;
  // Running maxima first, so that all factors a = exp(m − m'), b = exp(m_seg − m') come at once.
  for (int head = warp; head < per_kv; head += kWarps) {
    float before = __uint_as_float(0xff800000u);
    for (int base = 0; base < n_segments; base += 32) {
      const int s = base + lane;
      const float* from = partial + (static_cast<size_t>(head) * a.max_segments + s) * stride;
      const float m = s < n_segments ? __ldcg(from) : __uint_as_float(0xff800000u);
      const float l = s < n_segments ? __ldcg(from + 1) : 0.0f;
      float running = m;
#pragma unroll
      for (int step = 1; step < 32; step <<= 1) {
        const float other = __shfl_up_sync(0xffffffffu, running, step);
        if (lane >= step) running = fmaxf(running, other);
      }
      running = fmaxf(running, before);
      float previous = __shfl_up_sync(0xffffffffu, running, 1);
      if (lane == 0) previous = before;
      if (s < n_segments)
        coefficients[head * a.max_segments + s] =
            s == 0 ? make_float4(0.0f, 0.0f, l, 0.0f)
                   : make_float4(exp_canonical(__fsub_rn(previous, running)),
                                 exp_canonical(__fsub_rn(m, running)), l, 0.0f);
      before = __shfl_sync(0xffffffffu, running, 31);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < per_kv * a.head_dim; i += kThreads) {
    const int head = i / a.head_dim, dim = i % a.head_dim;
    const float* from = partial + static_cast<size_t>(head) * a.max_segments * stride + 2 + dim;
    const float4* factors = coefficients + head * a.max_segments;
    float l = factors[0].z, o = __ldcg(from);
    constexpr int kBatch = 16;
    for (int base = 1; base < n_segments; base += kBatch) {
      float loaded[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        loaded[k] =
            base + k < n_segments ? __ldcg(from + static_cast<size_t>(base + k) * stride) : 0.0f;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (base + k >= n_segments) break;
        const float4 factor = factors[base + k];
        l = __fadd_rn(__fmul_rn(l, factor.x), __fmul_rn(factor.z, factor.y));
        o = __fadd_rn(__fmul_rn(o, factor.x), __fmul_rn(loaded[k], factor.y));
      }
    }
    out[i] = __fdiv_rn(o, l);
  }
}

template <CacheType kType, int kPerLane>
__global__ __launch_bounds__(kThreads,
                             2) void decode_kernel(const __grid_constant__ AttentionArguments a) {
  using E = Element<kType>;
  using T = typename E::Type;
  extern __shared__ uint4 shared_words[];
  uint8_t* shared = reinterpret_cast<uint8_t*>(shared_words);
  __shared__ bool is_last;
  launch_dependents();
  const int kv_head = static_cast<int>(blockIdx.x), split = static_cast<int>(blockIdx.y),
            token = static_cast<int>(blockIdx.z);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int per_kv = a.n_heads / a.n_kv_heads, first_head = kv_head * per_kv;
  const DecodeLayout at =
      decode_layout(per_kv, a.head_dim, static_cast<int>(sizeof(T)), a.max_segments);
  const Queries queries = {reinterpret_cast<float*>(shared + at.q),
                           reinterpret_cast<float*>(shared + at.scores),
                           reinterpret_cast<float*>(shared + at.maxima),
                           reinterpret_cast<float*>(shared + at.sums), per_kv};
  T* new_key = reinterpret_cast<T*>(shared + at.new_key);
  T* new_value = reinterpret_cast<T*>(shared + at.new_value);
  T* values = reinterpret_cast<T*>(shared + at.values);
  const int buffer_elements = kSegmentKeys * a.head_dim;

  wait_for_inputs();
  const int position = __ldcg(a.positions + token), sequence = __ldcg(a.sequences + token);
  const int first_position = a.window > 0 ? max(0, position - a.window + 1) : 0;
  const int first_segment = first_position / kSegmentKeys, last_segment = position / kSegmentKeys;
  const int n_segments = last_segment - first_segment + 1, n_active = min(a.splits, n_segments);
  if (split >= n_active) return;

  const size_t cache = (static_cast<size_t>(sequence) * a.n_kv_heads + kv_head) *
                       static_cast<size_t>(a.capacity) * a.head_dim;
  const auto seen_of = [&](int s) {
    const int base = (first_segment + s) * kSegmentKeys;
    return Visible{max(0, first_position - base), min(kSegmentKeys - 1, position - base)};
  };
  // The row of this position comes from new_key and new_value: it may not be in the cache yet.
  KeyRows<kType, kPerLane, kWarpKeys> rows;
  const auto start = [&](int s, int buffer) {
    const size_t base = cache + static_cast<size_t>(first_segment + s) * kSegmentKeys * a.head_dim;
    const int n_rows = seen_of(s).last + (s + 1 == n_segments ? 0 : 1);
    rows.load(static_cast<const T*>(a.keys) + base, warp * kWarpKeys, n_rows - 1, a.head_dim, lane);
    stage<kThreads>(static_cast<const T*>(a.values) + base, values + buffer * buffer_elements,
                    n_rows * a.head_dim);
  };
  start(split, 0);
  if (split == (n_segments - 1) % a.splits)
    store_kv<kType>(a, token, kv_head, position, new_key, new_value);
  const float* q_row = a.qkv + static_cast<size_t>(token) * a.qkv_stride + first_head * a.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < per_kv * a.head_dim; i += kThreads) {
    const int head = i / a.head_dim, dim = i % a.head_dim;
    queries.q[head * a.head_dim + lane_major(dim, a.head_dim)] =
        rotated(a, q_row + head * a.head_dim, dim, position);
  }
  __syncthreads();

  float* partial = a.partial + (static_cast<size_t>(token) * a.n_heads + first_head) *
                                   static_cast<size_t>(a.max_segments) * (a.head_dim + 2);
  float* out = a.out + (static_cast<size_t>(token) * a.n_heads + first_head) * a.head_dim;
  int buffer = 0;
  for (int s = split; s < n_segments; s += a.splits) {
    const Visible seen = seen_of(s);
    const bool newest = s + 1 == n_segments, more = s + a.splits < n_segments;
    decode_scores<kType, kPerLane, kWarpKeys>(a, queries, rows, new_key, newest ? seen.last : -1,
                                              a.head_dim, seen);
    T* segment_values = values + buffer * buffer_elements;
    if (newest)
      for (int i = static_cast<int>(threadIdx.x); i < a.head_dim; i += kThreads)
        segment_values[seen.last * a.head_dim + i] = new_value[i];
    const bool ahead = more && at.n_buffers == 2;
    if (ahead) start(s + a.splits, buffer ^ 1);
    __syncthreads();
    segment_softmax<kWarps>(queries, [&](int) { return seen; });
    if (ahead)
      wait_staged<1>();
    else
      wait_staged<0>();
    for (int i = static_cast<int>(threadIdx.x); i < per_kv * a.head_dim / 2; i += kThreads) {
      const int head = i / (a.head_dim / 2), pair = i % (a.head_dim / 2);
      const float2 o = pair_output<kType>(queries.scores + head * kSegmentKeys, segment_values,
                                          a.head_dim, pair, seen);
      if (n_segments == 1) {
        out[2 * i] = __fdiv_rn(o.x, queries.sums[head]);
        out[2 * i + 1] = __fdiv_rn(o.y, queries.sums[head]);
        continue;
      }
      float* to = partial + (static_cast<size_t>(head) * a.max_segments + s) * (a.head_dim + 2);
      *reinterpret_cast<float2*>(to + 2 + 2 * pair) = o;
      if (pair == 0)
        *reinterpret_cast<float2*>(to) = make_float2(queries.maxima[head], queries.sums[head]);
    }
    if (!more) break;
    __syncthreads();
    if (ahead)
      buffer ^= 1;
    else
      start(s + a.splits, 0);
  }
  if (n_segments == 1) return;

  // The last thread block of this KV head merges the segments in ascending order.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* counter = a.counters + token * a.n_kv_heads + kv_head;
    is_last = atomicAdd(counter, 1) == n_active - 1;
    if (is_last) *counter = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  merge_segments(a, partial, n_segments, per_kv, out,
                 reinterpret_cast<float4*>(shared + at.coefficients));
}

template <CacheType kType>
__global__ __launch_bounds__(128) void store_kernel(const __grid_constant__ AttentionArguments a) {
  const int token = static_cast<int>(blockIdx.x);
  store_kv<kType>(a, token, static_cast<int>(blockIdx.y), a.positions[token], nullptr, nullptr);
}

/// Queries of consecutive tokens of one sequence and the heads of one KV head share the staged
/// keys.
template <CacheType kType>
__global__ __launch_bounds__(kThreads) void prefill_kernel(
    const __grid_constant__ AttentionArguments a, int tile_tokens) {
  using E = Element<kType>;
  using T = typename E::Type;
  extern __shared__ uint4 shared_words[];
  uint8_t* shared = reinterpret_cast<uint8_t*>(shared_words);
  const int kv_head = static_cast<int>(blockIdx.y), per_kv = a.n_heads / a.n_kv_heads;
  const int first_head = kv_head * per_kv;
  const int tile_begin = static_cast<int>(blockIdx.x) * tile_tokens;
  const int tile_end = min(tile_begin + tile_tokens, a.tokens);
  const SharedLayout at =
      shared_layout(tile_tokens * per_kv, a.head_dim, static_cast<int>(sizeof(T)));
  T* keys = reinterpret_cast<T*>(shared + at.keys);
  T* values = reinterpret_cast<T*>(shared + at.values);
  constexpr int kMost = kQueryTile * kMaxHeadDim / kThreads;  // outputs of a thread

  // Tokens of one tile may belong to several sequences: each run of one sequence by itself.
  for (int begin = tile_begin; begin < tile_end;) {
    const int sequence = a.sequences[begin];
    int end = begin + 1;
    while (end < tile_end && a.sequences[end] == sequence &&
           a.positions[end] == a.positions[end - 1] + 1)
      ++end;
    const int n_queries = (end - begin) * per_kv;
    const Queries queries = queries_at(shared, at, n_queries);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < n_queries * a.head_dim; i += kThreads) {
      const int query = i / a.head_dim, dim = i % a.head_dim;
      const int token = begin + query / per_kv, head = first_head + query % per_kv;
      queries.q[query * a.head_dim + lane_major(dim, a.head_dim)] =
          rotated(a, a.qkv + static_cast<size_t>(token) * a.qkv_stride + head * a.head_dim, dim,
                  a.positions[token]);
    }
    const int first_position = a.positions[begin], last_position = a.positions[end - 1];
    const int first_key = a.window > 0 ? max(0, first_position - a.window + 1) : 0;
    const size_t cache = (static_cast<size_t>(sequence) * a.n_kv_heads + kv_head) *
                         static_cast<size_t>(a.capacity) * a.head_dim;
    float m[kMost], l[kMost], o[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) m[i] = l[i] = o[i] = 0.0f;
    uint32_t started = 0;
    for (int segment = first_key / kSegmentKeys; segment <= last_position / kSegmentKeys;
         ++segment) {
      const int base = segment * kSegmentKeys;
      const auto range = [&](int query) {
        const int position = first_position + query / per_kv;
        const int first = a.window > 0 ? max(0, position - a.window + 1) : 0;
        return Visible{max(0, first - base), min(kSegmentKeys - 1, position - base)};
      };
      const int n_elements = (min(kSegmentKeys - 1, last_position - base) + 1) * a.head_dim;
      __syncthreads();
      stage<kThreads>(
          static_cast<const T*>(a.keys) + cache + static_cast<size_t>(base) * a.head_dim, keys,
          n_elements);
      stage<kThreads>(
          static_cast<const T*>(a.values) + cache + static_cast<size_t>(base) * a.head_dim, values,
          n_elements);
      wait_staged<1>();
      segment_scores<kType>(a, queries, keys, range);
      wait_staged<0>();
#pragma unroll
      for (int k = 0; k < kMost; ++k) {
        const int i = k * kThreads + static_cast<int>(threadIdx.x);
        if (i >= n_queries * a.head_dim) break;
        const int query = i / a.head_dim, dim = i % a.head_dim;
        const Visible seen = range(query);
        if (seen.last < seen.first) continue;
        const float o_segment = segment_output<kType>(a, queries, values, query, dim, seen);
        const float m_segment = queries.maxima[query], l_segment = queries.sums[query];
        if ((started >> k & 1u) == 0) {
          started |= 1u << k;
          m[k] = m_segment;
          l[k] = l_segment;
          o[k] = o_segment;
        } else {
          const float top = fmaxf(m[k], m_segment);
          const float x = exp_canonical(__fsub_rn(m[k], top)),
                      y = exp_canonical(__fsub_rn(m_segment, top));
          l[k] = __fadd_rn(__fmul_rn(l[k], x), __fmul_rn(l_segment, y));
          o[k] = __fadd_rn(__fmul_rn(o[k], x), __fmul_rn(o_segment, y));
          m[k] = top;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const int i = k * kThreads + static_cast<int>(threadIdx.x);
      if (i >= n_queries * a.head_dim) break;
      const int query = i / a.head_dim, dim = i % a.head_dim;
      const int token = begin + query / per_kv, head = first_head + query % per_kv;
      a.out[(static_cast<size_t>(token) * a.n_heads + head) * a.head_dim + dim] =
          __fdiv_rn(o[k], l[k]);
    }
    begin = end;
  }
}

template <CacheType kType, int kPerLane>
void decode(const AttentionArguments& a, bool dependent, cudaStream_t stream) {
  using T = typename Element<kType>::Type;
  static const cudaError_t configured = configure_shared(
      reinterpret_cast<const void*>(decode_kernel<kType, kPerLane>), kMostSharedBytes);
  ASSAY_CUDA(configured);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(a.n_kv_heads), static_cast<unsigned>(a.splits),
                        static_cast<unsigned>(a.tokens));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes =
      static_cast<size_t>(decode_layout(a.n_heads / a.n_kv_heads, a.head_dim,
                                        static_cast<int>(sizeof(T)), a.max_segments)
                              .bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  ASSAY_CUDA(cudaLaunchKernelEx(&config, decode_kernel<kType, kPerLane>, a));
}

template <CacheType kType>
void decode(const AttentionArguments& a, bool dependent, cudaStream_t stream) {
  switch (a.head_dim) {
    case 32:
      return decode<kType, 1>(a, dependent, stream);
    case 64:
      return decode<kType, 2>(a, dependent, stream);
    case 128:
      return decode<kType, 4>(a, dependent, stream);
    case 256:
      if constexpr (kType != CacheType::kF32) return decode<kType, 8>(a, dependent, stream);
  }
  throw UnsupportedError("cuda: decode attention has no kernel for heads of " +
                         std::to_string(a.head_dim) + " dimensions; use --device cpu");
}

template <CacheType kType>
void prefill(const AttentionArguments& a, cudaStream_t stream) {
  using T = typename Element<kType>::Type;
  static const cudaError_t configured = cudaFuncSetAttribute(
      prefill_kernel<kType>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
  ASSAY_CUDA(configured);
  store_kernel<kType><<<dim3(static_cast<unsigned>(a.tokens), static_cast<unsigned>(a.n_kv_heads)),
                        128, 0, stream>>>(a);
  ASSAY_CUDA(cudaGetLastError());
  const int per_kv = a.n_heads / a.n_kv_heads;
  const int tile_tokens = per_kv >= kQueryTile ? 1 : kQueryTile / per_kv;
  const auto bytes = static_cast<size_t>(
      shared_layout(tile_tokens * per_kv, a.head_dim, static_cast<int>(sizeof(T))).bytes);
  const dim3 grid(static_cast<unsigned>((a.tokens + tile_tokens - 1) / tile_tokens),
                  static_cast<unsigned>(a.n_kv_heads));
  prefill_kernel<kType><<<grid, kThreads, bytes, stream>>>(a, tile_tokens);
  ASSAY_CUDA(cudaGetLastError());
}

}  // namespace

void launch_decode_attention(const AttentionArguments& a, bool dependent, cudaStream_t stream) {
  switch (a.cache_type) {
    case CacheType::kF16:
      return decode<CacheType::kF16>(a, dependent, stream);
    case CacheType::kBF16:
      return decode<CacheType::kBF16>(a, dependent, stream);
    case CacheType::kF32:
      return decode<CacheType::kF32>(a, dependent, stream);
  }
}

void launch_prefill_attention(const AttentionArguments& a, cudaStream_t stream) {
  switch (a.cache_type) {
    case CacheType::kF16:
      return prefill<CacheType::kF16>(a, stream);
    case CacheType::kBF16:
      return prefill<CacheType::kBF16>(a, stream);
    case CacheType::kF32:
      return prefill<CacheType::kF32>(a, stream);
  }
}

}  // namespace assay::cuda
