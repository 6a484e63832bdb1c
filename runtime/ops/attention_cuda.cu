#include <algorithm>

#include "runtime/device/cuda_support.h"
#include "runtime/ops/attention_cuda.cuh"

namespace assay::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Decode: one thread block takes the segments split, split + splits, … of a token and KV head.

constexpr int kWarpKeys =
    kSegmentKeys / kWarps;  // keys of a segment whose scores one warp computes

struct DecodeLayout {
  int q, scores, maxima, sums, new_key, new_value, values, n_buffers, coefficients, bytes;
};

__host__ __device__ inline DecodeLayout decode_layout(int per_kv, int head_dim, int element_bytes,
                                                      int max_segments, int half_shared) {
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
  at.n_buffers = at.values + 2 * rows <= half_shared ? 2 : 1;
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
      const float4 factors =
          merge_factors(partial + (static_cast<size_t>(head) * a.max_segments + s) * stride,
                        s < n_segments, s == 0, lane, before);
      if (s < n_segments) coefficients[head * a.max_segments + s] = factors;
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
                             2) void decode_kernel(const __grid_constant__ AttentionArguments a,
                                                   int half_shared) {
  using E = Element<kType>;
  using T = typename E::Type;
  extern __shared__ uint4 shared_words[];
  uint8_t* shared = reinterpret_cast<uint8_t*>(shared_words);
  __shared__ bool is_last;
  launch_dependents();
  const int kv_head = static_cast<int>(blockIdx.x), split = static_cast<int>(blockIdx.y),
            token = static_cast<int>(blockIdx.z);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int per_kv = a.n_heads / a.n_kv_heads, first_head = kv_head * per_kv;
  const DecodeLayout at =
      decode_layout(per_kv, a.head_dim, static_cast<int>(sizeof(T)), a.max_segments, half_shared);
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
                    n_rows * a.head_dim, thread);
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
                                              a.head_dim, seen, thread);
    T* segment_values = values + buffer * buffer_elements;
    if (newest)
      for (int i = static_cast<int>(threadIdx.x); i < a.head_dim; i += kThreads)
        segment_values[seen.last * a.head_dim + i] = new_value[i];
    const bool ahead = more && at.n_buffers == 2;
    if (ahead) start(s + a.splits, buffer ^ 1);
    __syncthreads();
    segment_softmax<kWarps>(queries, thread, [&](int) { return seen; });
    if (ahead)
      wait_staged<1>();
    else
      wait_staged<0>();
    for (int i = static_cast<int>(threadIdx.x); i < per_kv * a.head_dim / 2; i += kThreads) {
      const int head = i / (a.head_dim / 2), pair = i % (a.head_dim / 2);
      float o[2];
      segment_output<kType, 2>(queries.scores + head * kSegmentKeys, segment_values + 2 * pair,
                               a.head_dim, seen, o);
      if (n_segments == 1) {
        out[2 * i] = __fdiv_rn(o[0], queries.sums[head]);
        out[2 * i + 1] = __fdiv_rn(o[1], queries.sums[head]);
        continue;
      }
      float* to = partial + (static_cast<size_t>(head) * a.max_segments + s) * (a.head_dim + 2);
      *reinterpret_cast<float2*>(to + 2 + 2 * pair) = make_float2(o[0], o[1]);
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

/// Shared memory of one of two thread blocks on a multiprocessor.
int half_shared() {
  const DeviceLimits& limits = current_limits();
  return std::min(limits.block_shared, limits.multi_shared / 2 - limits.reserved_shared);
}

template <CacheType kType, int kPerLane>
void decode(const AttentionArguments& a, bool dependent, cudaStream_t stream) {
  using T = typename Element<kType>::Type;
  const int per_kv = a.n_heads / a.n_kv_heads, element_bytes = static_cast<int>(sizeof(T));
  const int half = half_shared();
  const int bytes = decode_layout(per_kv, a.head_dim, element_bytes, a.max_segments, half).bytes;
  allow_shared(reinterpret_cast<const void*>(decode_kernel<kType, kPerLane>), bytes,
               "attention of a decode step");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(a.n_kv_heads), static_cast<unsigned>(a.splits),
                        static_cast<unsigned>(a.tokens));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  ASSAY_CUDA(cudaLaunchKernelEx(&config, decode_kernel<kType, kPerLane>, a, half));
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

}  // namespace assay::cuda
