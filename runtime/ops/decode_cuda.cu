#include "runtime/device/cuda_support.h"
#include "runtime/ops/common_cuda.cuh"
#include "runtime/ops/decode_cuda.h"

namespace assay::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGreedyBlocks = 64;

/// One element of a packed matrix, decoded.
__device__ float packed_value(const DeviceMatrix& m, int row, int column) {
  const int tile = row / kTileRows, r = row % kTileRows, half = r / 8;
  const int group = column / kGroupColumns, inside = column % kGroupColumns;
  const int block = inside / 32, upper = inside % 32 / 16, t = inside % 16 / 4, byte = inside % 4;
  const int lane = (r % 8) * 4 + t;
  const int in_segment = group % kSegmentGroups;
  const std::byte* scales = unit_at(m, tile, group / kSegmentGroups);
  const std::byte* extra = scales + m.extra_at;
  const uint32_t* codes = reinterpret_cast<const uint32_t*>(
      scales + m.header_bytes + in_segment * words_per_group(m.kind) * 16);
  int code;
  if (m.kind == MatrixKind::kGroup8) {
    const uint32_t word = codes[((half * 2 + block / 2) * 32 + lane) * 4 + (block & 1) * 2 + upper];
    code = static_cast<int>((word >> (8 * byte)) & 0xffu);
  } else {
    const bool pairs = has_block_pairs(m.kind);
    const uint32_t word = codes[(half * 32 + lane) * 4 + (pairs ? block / 2 * 2 + upper : block)];
    code = static_cast<int>((word >> (8 * byte + 4 * (pairs ? block & 1 : upper))) & 0xfu);
    if (m.kind == MatrixKind::kSuper6) {
      const uint32_t high = codes[(64 + lane) * 4 + half * 2 + block / 2];
      code |= static_cast<int>((high >> (8 * byte + (block & 1) * 4 + upper * 2)) & 3u) << 4;
    }
  }
  if (m.kind == MatrixKind::kSuper4) {
    const uint32_t* super =
        reinterpret_cast<const uint32_t*>(scales) + r * 8 + (in_segment / 2) * 4;
    const bool second = in_segment & 1;
    const uint32_t sub = (second ? super[3] : super[1]) & 0xffffffu;
    const uint32_t mins =
        second ? (super[1] >> 24) | ((super[2] >> 24) << 8) | ((super[3] >> 24) << 16)
               : super[2] & 0xffffffu;
    const float scale = __fmul_rn(scale_value(super[0] & 0xffffu, ScaleType::kF16),
                                  __int2float_rn(static_cast<int>((sub >> (6 * block)) & 63u)));
    const float minimum = __fmul_rn(scale_value(super[0] >> 16, ScaleType::kF16),
                                    __int2float_rn(static_cast<int>((mins >> (6 * block)) & 63u)));
    return __fsub_rn(__fmul_rn(scale, __int2float_rn(code)), minimum);
  }
  if (m.kind == MatrixKind::kSuper6) {
    const int sub =
        reinterpret_cast<const int8_t*>(scales)[r * 32 + in_segment * 8 + block * 2 + upper];
    const float d = scale_value(reinterpret_cast<const uint16_t*>(extra)[r * 2 + in_segment / 2],
                                ScaleType::kF16);
    return __fmul_rn(__fmul_rn(d, __int2float_rn(sub)), __int2float_rn(code - 32));
  }
  const int at = (r * kSegmentGroups + in_segment) * m.pieces + block / (4 / m.pieces);
  const float scale =
      m.scale_type == ScaleType::kF32
          ? reinterpret_cast<const float*>(scales)[at]
          : scale_value(reinterpret_cast<const uint16_t*>(scales)[at], m.scale_type);
  if (m.kind == MatrixKind::kAffine4) {
    const float minimum = scale_value(reinterpret_cast<const uint16_t*>(extra)[at], m.scale_type);
    return __fadd_rn(__fmul_rn(scale, __int2float_rn(code)), minimum);
  }
  const int zero =
      m.zero_constant >= 0 ? m.zero_constant : reinterpret_cast<const uint8_t*>(extra)[at];
  return __fmul_rn(scale, __int2float_rn(code - zero));
}

__global__ __launch_bounds__(kThreads) void embed_kernel(const __grid_constant__ DeviceMatrix table,
                                                         const void* raw, ScaleType raw_type,
                                                         const int32_t* token_ids, float* out,
                                                         int columns) {
  launch_dependents();
  wait_for_inputs();
  const int token = static_cast<int>(blockIdx.y);
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (column >= columns) return;
  const int id = __ldcg(token_ids + token);
  const size_t at = static_cast<size_t>(id) * columns + column;
  float value;
  if (raw == nullptr)
    value = packed_value(table, id, column);
  else if (raw_type == ScaleType::kF32)
    value = static_cast<const float*>(raw)[at];
  else
    value = scale_value(static_cast<const uint16_t*>(raw)[at], raw_type);
  out[static_cast<size_t>(token) * columns + column] = value;
}

__global__ __launch_bounds__(kThreads) void select_kernel(const float* in, const int32_t* rows,
                                                          float* out, int columns) {
  const int i = static_cast<int>(blockIdx.y);
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (column < columns)
    out[static_cast<size_t>(i) * columns + column] =
        in[static_cast<size_t>(rows[i]) * columns + column];
}

__global__ __launch_bounds__(kThreads) void swiglu_kernel(const float* gate, const float* up,
                                                          int in_stride, float* out, int columns) {
  const int token = static_cast<int>(blockIdx.y);
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (column >= columns) return;
  const size_t from = static_cast<size_t>(token) * in_stride + column;
  out[static_cast<size_t>(token) * columns + column] =
      __fmul_rn(silu_canonical(__ldcg(gate + from)), __ldcg(up + from));
}

/// Larger value, or equal value and lower id.
__device__ __forceinline__ void keep_better(float& value, int& id, float other_value,
                                            int other_id) {
  if (other_value > value || (other_value == value && other_id < id)) {
    value = other_value;
    id = other_id;
  }
}

/// Best of all threads of the block; result in thread 0.
__device__ void reduce_best(float& value, int& id) {
  __shared__ float values[kThreads / 32];
  __shared__ int ids[kThreads / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int mask = 16; mask > 0; mask >>= 1)
    keep_better(value, id, __shfl_xor_sync(0xffffffffu, value, mask),
                __shfl_xor_sync(0xffffffffu, id, mask));
  __syncthreads();
  if (lane == 0) {
    values[warp] = value;
    ids[warp] = id;
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < kThreads / 32; ++w) keep_better(value, id, values[w], ids[w]);
}

__global__ __launch_bounds__(kThreads) void greedy_kernel(const float* logits, int vocab_size,
                                                          DecodeState state, float* partial,
                                                          int32_t* counters, int32_t fault_op,
                                                          DeviceFault* fault) {
  __shared__ bool is_last;
  launch_dependents();
  wait_for_inputs();
  const int token = static_cast<int>(blockIdx.y), tokens = static_cast<int>(gridDim.y);
  const float* row = logits + static_cast<size_t>(token) * vocab_size;
  float value = __uint_as_float(0xff800000u);
  int id = 0x7fffffff;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
       i < vocab_size; i += kGreedyBlocks * kThreads) {
    const float logit = __ldcg(row + i);
    if (is_not_finite(logit)) report_fault(fault, fault_op, i, logit);
    keep_better(value, id, logit, i);
  }
  reduce_best(value, id);
  float* values = partial + token * 2 * kGreedyBlocks;
  int* ids = reinterpret_cast<int*>(values + kGreedyBlocks);
  if (threadIdx.x == 0) {
    values[blockIdx.x] = value;
    ids[blockIdx.x] = id;
    __threadfence();
    is_last = atomicAdd(counters + token, 1) == kGreedyBlocks - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  value = __uint_as_float(0xff800000u);
  id = 0x7fffffff;
  if (threadIdx.x < kGreedyBlocks) {
    value = __ldcg(values + threadIdx.x);
    id = __ldcg(ids + threadIdx.x);
  }
  reduce_best(value, id);
  if (threadIdx.x == 0) {
    counters[token] = 0;
    state.token_ids[token] = id;
    state.positions[token] += 1;
    state.generated[static_cast<size_t>(__ldcg(state.step)) * tokens + token] = id;
    // The step counter belongs to the last token's last block; each token waits for nothing else.
    __threadfence();
    if (atomicAdd(counters + tokens, 1) == tokens - 1) {
      counters[tokens] = 0;
      *state.step += 1;
    }
  }
}

__global__ __launch_bounds__(kThreads) void check_kernel(const float* values, int64_t n,
                                                         int32_t fault_op, DeviceFault* fault) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    if (is_not_finite(values[i])) report_fault(fault, fault_op, static_cast<int32_t>(i), values[i]);
}

template <typename... Parameters, typename... Values>
void launch(void (*kernel)(Parameters...), dim3 grid, bool dependent, cudaStream_t stream,
            Values... values) {
  // As the kernels beside it in a decode step, so that they can overlap.
  ASSAY_CUDA(configure_shared(reinterpret_cast<const void*>(kernel), 0));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  ASSAY_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(values)...));
}

dim3 column_grid(int columns, int rows) {
  return dim3(static_cast<unsigned>((columns + kThreads - 1) / kThreads),
              static_cast<unsigned>(rows));
}

}  // namespace

void launch_embed(const DeviceMatrix& table, const void* raw, ScaleType raw_type,
                  const int32_t* token_ids, float* out, int32_t columns, int32_t tokens,
                  bool dependent, cudaStream_t stream) {
  launch(embed_kernel, column_grid(columns, tokens), dependent, stream, table, raw, raw_type,
         token_ids, out, columns);
}

void launch_select_rows(const float* in, const int32_t* rows, float* out, int32_t columns,
                        int32_t n, cudaStream_t stream) {
  launch(select_kernel, column_grid(columns, n), false, stream, in, rows, out, columns);
}

void launch_swiglu(const float* gate, const float* up, int32_t in_stride, float* out,
                   int32_t columns, int32_t tokens, cudaStream_t stream) {
  launch(swiglu_kernel, column_grid(columns, tokens), false, stream, gate, up, in_stride, out,
         columns);
}

void launch_greedy(const float* logits, int32_t vocab_size, int32_t tokens, DecodeState state,
                   float* partial, int32_t* counters, int32_t fault_op, DeviceFault* fault,
                   bool dependent, cudaStream_t stream) {
  launch(greedy_kernel, dim3(kGreedyBlocks, static_cast<unsigned>(tokens)), dependent, stream,
         logits, vocab_size, state, partial, counters, fault_op, fault);
}

void launch_check_finite(const float* values, int64_t n, int32_t fault_op, DeviceFault* fault,
                         cudaStream_t stream) {
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  launch(check_kernel,
         dim3(static_cast<unsigned>(blocks < 1024 ? (blocks > 0 ? blocks : 1) : 1024)), false,
         stream, values, n, fault_op, fault);
}

}  // namespace assay::cuda
