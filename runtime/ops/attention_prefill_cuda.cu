#include "runtime/ops/attention_prefill_cuda.cuh"

namespace assay::cuda {
namespace {

// Attention of a prompt for any head size: what the tiles do not have.

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGeneralQueries = 16;  // of one thread block

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
    fold_dots<32, 16>(acc, lane);
    const int key = block * 32 + lane;
    if (key >= seen.first && key <= seen.last) {
      const float score = __fmul_rn(acc[0], a.scale);
      if (is_not_finite(score)) report_fault(a.fault, a.fault_op, key, score);
      queries.scores[query * kSegmentKeys + key] = score;
    }
  }
  __syncthreads();
  segment_softmax<kWarps>(queries, static_cast<int>(threadIdx.x), range);
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

struct SharedLayout {
  int q, scores, maxima, sums, keys, values, bytes;
};

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

template <CacheType kType>
__global__ __launch_bounds__(128) void store_kernel(const __grid_constant__ AttentionArguments a) {
  const int token = static_cast<int>(blockIdx.x);
  store_kv<kType>(a, token, static_cast<int>(blockIdx.y), a.positions[token], nullptr, nullptr);
}

/// Queries of consecutive tokens of one sequence and heads of one KV head share the staged keys.
template <CacheType kType>
__global__ __launch_bounds__(kThreads) void general_kernel(
    const __grid_constant__ AttentionArguments a, TileShape shape) {
  using E = Element<kType>;
  using T = typename E::Type;
  extern __shared__ uint4 shared_words[];
  uint8_t* shared = reinterpret_cast<uint8_t*>(shared_words);
  const BlockTile tile(a, shape);
  const SharedLayout at =
      shared_layout(shape.tokens * shape.heads, a.head_dim, static_cast<int>(sizeof(T)));
  T* keys = reinterpret_cast<T*>(shared + at.keys);
  T* values = reinterpret_cast<T*>(shared + at.values);
  constexpr int kMost = kGeneralQueries * kMaxHeadDim / kThreads;  // outputs of a thread

  // Tokens of one tile may belong to several sequences: each run of one sequence by itself.
  for (int begin = tile.begin; begin < tile.end;) {
    const int end = run_end(a, begin, tile.end);
    const int n_queries = (end - begin) * tile.n_heads;
    const Queries queries = queries_at(shared, at, n_queries);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < n_queries * a.head_dim; i += kThreads) {
      const int query = i / a.head_dim, dim = i % a.head_dim;
      const int token = begin + query / tile.n_heads;
      const int head = tile.first_head + query % tile.n_heads;
      queries.q[query * a.head_dim + lane_major(dim, a.head_dim)] =
          rotated(a, a.qkv + static_cast<size_t>(token) * a.qkv_stride + head * a.head_dim, dim,
                  a.positions[token]);
    }
    const int first_position = a.positions[begin], last_position = a.positions[end - 1];
    const int first_key = a.window > 0 ? max(0, first_position - a.window + 1) : 0;
    const size_t cache = (static_cast<size_t>(a.sequences[begin]) * a.n_kv_heads + tile.kv_head) *
                         static_cast<size_t>(a.capacity) * a.head_dim;
    float m[kMost], l[kMost], o[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) m[i] = l[i] = o[i] = 0.0f;
    uint32_t started = 0;
    for (int segment = first_key / kSegmentKeys; segment <= last_position / kSegmentKeys;
         ++segment) {
      const int base = segment * kSegmentKeys;
      const auto range = [&](int query) {
        const int position = first_position + query / tile.n_heads;
        const int first = a.window > 0 ? max(0, position - a.window + 1) : 0;
        return Visible{max(0, first - base), min(kSegmentKeys - 1, position - base)};
      };
      const int n_elements = (min(kSegmentKeys - 1, last_position - base) + 1) * a.head_dim;
      __syncthreads();
      stage<kThreads>(
          static_cast<const T*>(a.keys) + cache + static_cast<size_t>(base) * a.head_dim, keys,
          n_elements, static_cast<int>(threadIdx.x));
      stage<kThreads>(
          static_cast<const T*>(a.values) + cache + static_cast<size_t>(base) * a.head_dim, values,
          n_elements, static_cast<int>(threadIdx.x));
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
      const int token = begin + query / tile.n_heads;
      const int head = tile.first_head + query % tile.n_heads;
      a.out[(static_cast<size_t>(token) * a.n_heads + head) * a.head_dim + dim] =
          __fdiv_rn(o[k], l[k]);
    }
    begin = end;
  }
}

template <CacheType kType>
void run_general(const AttentionArguments& a, cudaStream_t stream) {
  const TileShape shape = tile_shape(a, kGeneralQueries);
  const int bytes = shared_layout(shape.tokens * shape.heads, a.head_dim,
                                  static_cast<int>(sizeof(typename Element<kType>::Type)))
                        .bytes;
  allow_shared(reinterpret_cast<const void*>(general_kernel<kType>), bytes,
               "attention of a prompt with heads of this size and cache type");
  general_kernel<kType>
      <<<tile_grid(a, shape), kThreads, static_cast<size_t>(bytes), stream>>>(a, shape);
  ASSAY_CUDA(cudaGetLastError());
}

template <CacheType kType>
void run(const AttentionArguments& a, cudaStream_t stream) {
  store_kernel<kType><<<dim3(static_cast<unsigned>(a.tokens), static_cast<unsigned>(a.n_kv_heads)),
                        128, 0, stream>>>(a);
  ASSAY_CUDA(cudaGetLastError());
  if (!run_tiles<kType>(a, stream)) run_general<kType>(a, stream);
}

}  // namespace

void launch_prefill_attention(const AttentionArguments& a, cudaStream_t stream) {
  switch (a.cache_type) {
    case CacheType::kF16:
      return run<CacheType::kF16>(a, stream);
    case CacheType::kBF16:
      return run<CacheType::kBF16>(a, stream);
    case CacheType::kF32:
      return run<CacheType::kF32>(a, stream);
  }
}

}  // namespace assay::cuda
