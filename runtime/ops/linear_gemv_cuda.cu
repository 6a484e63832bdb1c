#include <algorithm>

#include "runtime/device/cuda_support.h"
#include "runtime/ops/linear_cuda.cuh"

namespace assay::cuda {
namespace {

constexpr int kThreads = 256;  // of the norm kernel
constexpr int kWarps = kThreads / 32;

/// Threads of a thread block of the vector kernel: as many as the registers of the class allow.
template <KernelClass kClass>
constexpr int kThreadsOf = kClass == KernelClass::kPlain   ? 512
                           : kClass == KernelClass::kSuper ? 384
                                                           : 256;

/// Shared memory of one thread block: activations of up to four tokens, then segment sums.
struct SharedLayout {
  int planes, sums16, sums32, sums128, scales, x, partial, segment_sums, bytes;
};

__host__ __device__ SharedLayout shared_layout(int columns, int groups, int tokens, int sums) {
  SharedLayout at{};
  int offset = 0;
  const auto take = [&offset](int bytes) {
    const int here = offset;
    offset += (bytes + 15) / 16 * 16;
    return here;
  };
  at.planes = take(tokens * groups * 256);
  at.sums16 = take(tokens * groups * 32);
  at.sums32 = take(tokens * groups * 16);
  at.sums128 = take(tokens * groups * 4);
  at.scales = take(tokens * groups * 4);
  at.x = take(groups * kGroupColumns * 4);
  at.partial = take((columns + 255) / 256 * 4);
  at.segment_sums = take(sums * 4);
  at.bytes = offset;
  return at;
}

/// Four columns of a group per lane; 0 past the end.
__device__ __forceinline__ void load_columns(const float* x, int group, int lane, int columns,
                                             float (&y)[4]) {
  const int first = group * kGroupColumns + lane * 4;
  if (columns % 4 == 0 && first < columns) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(x + first));
    y[0] = v.x;
    y[1] = v.y;
    y[2] = v.z;
    y[3] = v.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) y[i] = first + i < columns ? __ldcg(x + first + i) : 0.0f;
}

/// Norm and quantization of all tokens into shared memory; every thread block does it for itself.
template <int kBlockWarps>
__device__ __forceinline__ void prepare_inputs(const GemvArguments& a, int columns, int groups,
                                               const SharedLayout& at, uint8_t* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float* x = reinterpret_cast<float*>(shared + at.x);
  for (int token = 0; token < a.tokens; ++token) {
    const float* from = a.x + static_cast<size_t>(token) * columns;
    const GroupTarget target{reinterpret_cast<uint32_t*>(shared + at.planes) + token * groups * 64,
                             reinterpret_cast<int32_t*>(shared + at.sums16) + token * groups * 8,
                             reinterpret_cast<int32_t*>(shared + at.sums32) + token * groups * 4,
                             reinterpret_cast<int32_t*>(shared + at.sums128) + token * groups,
                             reinterpret_cast<float*>(shared + at.scales) + token * groups};
    float y[4];
    if (a.norm_weight == nullptr) {
      for (int group = warp; group < groups; group += kBlockWarps) {
        load_columns(from, group, lane, columns, y);
        quantize_group(y, group, lane, target, a.fault_op, a.fault);
      }
      continue;
    }
    for (int group = warp; group < groups; group += kBlockWarps) {
      load_columns(from, group, lane, columns, y);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[group * kGroupColumns + lane * 4 + i] = y[i];
    }
    __syncthreads();
    const float r =
        inverse_rms(x, columns, a.eps, a.inverse_n, reinterpret_cast<float*>(shared + at.partial));
    for (int group = warp; group < groups; group += kBlockWarps) {
      const int first = group * kGroupColumns + lane * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        y[i] = first + i < columns
                   ? __fmul_rn(__fmul_rn(x[first + i], r), __ldg(a.norm_weight + first + i))
                   : 0.0f;
      quantize_group(y, group, lane, target, a.fault_op, a.fault);
    }
    __syncthreads();
  }
  __syncthreads();
}

/// A warp's codes and scales that are on their way.
template <MatrixKind kKind, int kPieces>
struct Quantum {
  uint4 codes[kQuantumGroups<kKind> * kWords<kKind>];
  QuantumScales<kKind, kPieces> scales;
};

template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void load_quantum(const DeviceMatrix& m, int tile, int group, int lane,
                                             Quantum<kKind, kPieces>& q) {
  constexpr int kGroups = kQuantumGroups<kKind>, kPer = kWords<kKind>;
  const uint4* from = m.codes + (static_cast<size_t>(tile) * m.groups + group) * (kPer * 32) + lane;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int w = 0; w < kPer; ++w)
      q.codes[g * kPer + w] =
          group + g < m.groups ? __ldcs(from + (g * kPer + w) * 32) : make_uint4(0, 0, 0, 0);
  }
  load_scales<kKind, kPieces>(m, tile, group, lane, q.scales);
}

template <MatrixKind kKind, int kPieces, int kBlockThreads>
__device__ __forceinline__ void run_share(const GemvArguments& a, const DeviceMatrix& m,
                                          const BlockShare& share, uint8_t* shared) {
  constexpr int kGroups = kQuantumGroups<kKind>, kPer = kWords<kKind>;
  constexpr int kBlockWarps = kBlockThreads / 32;
  constexpr int kQuanta = kSegmentGroups / kGroups;  // per segment
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_units = (share.end - share.begin) * m.segments;
  const SharedLayout at = shared_layout(m.columns, m.groups, a.tokens,
                                        a.most_tiles * m.segments * kTileRows * a.tokens);
  float* segment_sums = reinterpret_cast<float*>(shared + at.segment_sums);

  // A warp takes units (tile, segment) warp, warp + kBlockWarps, …; its next quantum is always on
  // its way.
  int unit = warp, quantum = 0;
  int tile = share.begin + unit / m.segments, segment = unit % m.segments;
  Quantum<kKind, kPieces> next;
  if (unit < n_units) load_quantum<kKind, kPieces>(m, tile, segment * kSegmentGroups, lane, next);

  wait_for_inputs();
  prepare_inputs<kBlockWarps>(a, m.columns, m.groups, at, shared);

  const int multiple = a.tokens > 1 ? 1 : 0;
  const int operand_token = multiple * min(lane / 8, a.tokens - 1), plane = (lane / 4) & 1;
  const int fold_token = multiple * min(lane % 4, a.tokens - 1);
  const uint4* planes = reinterpret_cast<const uint4*>(shared + at.planes) +
                        operand_token * m.groups * 16 + plane * 4 + lane % 4;
  const int32_t* sums16 =
      reinterpret_cast<const int32_t*>(shared + at.sums16) + fold_token * m.groups * 8;
  const int32_t* sums32 =
      reinterpret_cast<const int32_t*>(shared + at.sums32) + fold_token * m.groups * 4;
  const int32_t* sums128 =
      reinterpret_cast<const int32_t*>(shared + at.sums128) + fold_token * m.groups;
  const float* scales = reinterpret_cast<const float*>(shared + at.scales) + fold_token * m.groups;

  uint32_t worst = 0;
  float acc[2] = {0.0f, 0.0f};
  while (unit < n_units) {
    const Quantum<kKind, kPieces> now = next;
    const int now_unit = unit, now_tile = tile,
              now_group = segment * kSegmentGroups + quantum * kGroups;
    const bool last = quantum + 1 == kQuanta;
    if (last) {
      quantum = 0;
      unit += kBlockWarps;
      segment += kBlockWarps;
      while (segment >= m.segments) {
        segment -= m.segments;
        ++tile;
      }
    } else {
      ++quantum;
    }
    if (unit < n_units)
      load_quantum<kKind, kPieces>(m, tile, segment * kSegmentGroups + quantum * kGroups, lane,
                                   next);
    const auto add = [&](auto&& present) {
      // Products of several groups overlap where a group alone has too few independent ones.
      constexpr int kBatch = GroupSums<kKind, kPieces>::kCount >= 4 ? 1 : kGroups;
#pragma unroll
      for (int base = 0; base < kGroups; base += kBatch) {
        GroupSums<kKind, kPieces> sums[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int group = now_group + base + i;
          if (!present(base + i)) continue;
          const uint4 first = planes[group * 16], second = planes[group * 16 + 8];
          const uint32_t b[8] = {first.x,  first.y,  first.z,  first.w,
                                 second.x, second.y, second.z, second.w};
          multiply_group<kKind, kPieces>(now.codes + (base + i) * kPer, b, sums[i]);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int group = now_group + base + i;
          if (!present(base + i)) continue;
          GroupWeights<kKind, kPieces> weights;
          decode_scales<kKind, kPieces>(m, now.scales, base + i, now_tile, group, lane, weights);
          const GroupInput input = load_input<kKind, kPieces>(scales, sums128, sums32, sums16,
                                                              static_cast<size_t>(group));
          fold_group<kKind, kPieces>(sums[i], weights, input, acc, worst);
        }
      }
    };
    if (now_group + kGroups <= m.groups) {
      add([](int) { return true; });  // no branches: the products of all groups overlap
    } else {
      add([&](int g) { return now_group + g < m.groups; });
    }
    if (last) {
      const int token = lane % 4;
      if (token < a.tokens) {
        float* to = segment_sums + (token * n_units + now_unit) * kTileRows;
        to[lane / 4] = acc[0];
        to[lane / 4 + 8] = acc[1];
      }
      acc[0] = acc[1] = 0.0f;
    }
  }
  if (worst >= 0x7f800000u)
    report_fault(a.fault, a.fault_op, share.begin * kTileRows, __uint_as_float(worst));
  __syncthreads();

  // Segment sums in ascending order; the total starts as the first.
  const int n_tiles = share.end - share.begin;
  const auto total = [&](int token, int row_tile, int row) {
    const float* from = segment_sums + (token * n_units + row_tile * m.segments) * kTileRows + row;
    float sum = from[0];
    for (int s = 1; s < m.segments; ++s) sum = __fadd_rn(sum, from[s * kTileRows]);
    return sum;
  };
  const float* bias = a.bias[share.matrix];
  float* out = a.out + a.out_offset[share.matrix];
  if (a.epilogue == Epilogue::kSwiGlu) {
    for (int i = static_cast<int>(threadIdx.x); i < n_tiles * 8 * a.tokens; i += kBlockThreads) {
      const int token = i / (n_tiles * 8), row_tile = i % (n_tiles * 8) / 8, row = i % 8;
      const float gate = total(token, row_tile, row), up = total(token, row_tile, row + 8);
      const int to = (share.begin + row_tile) * 8 + row;
      if (to < m.rows / 2)
        out[static_cast<size_t>(token) * a.out_stride + to] = __fmul_rn(silu_canonical(gate), up);
    }
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < n_tiles * kTileRows * a.tokens;
       i += kBlockThreads) {
    const int token = i / (n_tiles * kTileRows), row_tile = i % (n_tiles * kTileRows) / kTileRows,
              row = i % kTileRows;
    const int to = (share.begin + row_tile) * kTileRows + row;
    if (to >= m.rows) continue;
    float y = total(token, row_tile, row);
    if (bias != nullptr) y = __fadd_rn(y, __ldg(bias + to));
    float* target = out + static_cast<size_t>(token) * a.out_stride + to;
    *target = a.epilogue == Epilogue::kAddTo ? __fadd_rn(__ldcg(target), y) : y;
  }
}

template <KernelClass kClass>
__global__ __launch_bounds__(kThreadsOf<kClass>,
                             1) void gemv_kernel(const __grid_constant__ GemvArguments a) {
  extern __shared__ uint4 shared_words[];
  uint8_t* shared = reinterpret_cast<uint8_t*>(shared_words);
  launch_dependents();
  const BlockShare share = a.shares[blockIdx.x];
  const DeviceMatrix& m = a.matrices[share.matrix];
  dispatch_kind<kClass>(m, [&]<MatrixKind kKind, int kPieces>() {
    run_share<kKind, kPieces, kThreadsOf<kClass>>(a, m, share, shared);
  });
}

__global__ __launch_bounds__(kThreads) void norm_quantize_kernel(
    const float* x, int x_stride, const float* norm_weight, float eps, float inverse_n, int columns,
    DeviceActivations out, int32_t fault_op, DeviceFault* fault) {
  extern __shared__ float row[];
  const int token = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kThreads)
    row[i] = __ldcg(x + static_cast<size_t>(token) * x_stride + i);
  __syncthreads();
  float r = 1.0f;
  if (norm_weight != nullptr) r = inverse_rms(row, columns, eps, inverse_n, row + columns);
  const size_t groups = static_cast<size_t>(out.groups);
  const GroupTarget target{reinterpret_cast<uint32_t*>(out.planes) + token * groups * 64,
                           out.sums16 + token * groups * 8, out.sums32 + token * groups * 4,
                           out.sums128 + token * groups, out.scales + token * groups};
  for (int group = warp; group < out.groups; group += kWarps) {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = group * kGroupColumns + lane * 4 + i;
      y[i] = 0.0f;
      if (column < columns) {
        y[i] = row[column];
        if (norm_weight != nullptr)
          y[i] = __fmul_rn(__fmul_rn(y[i], r), __ldg(norm_weight + column));
      }
    }
    quantize_group(y, group, lane, target, fault_op, fault);
  }
}

}  // namespace

size_t gemv_shared_bytes(const GemvArguments& a) {
  int most = 0;
  for (const DeviceMatrix& m : a.matrices) {
    if (m.codes == nullptr) continue;
    most = std::max(most, shared_layout(m.columns, m.groups, a.tokens,
                                        a.most_tiles * m.segments * kTileRows * a.tokens)
                              .bytes);
  }
  return static_cast<size_t>(most);
}

namespace {

template <KernelClass kClass>
void launch_class(const GemvArguments& arguments, int grid, bool dependent, cudaStream_t stream) {
  static const cudaError_t configured = cudaFuncSetAttribute(
      gemv_kernel<kClass>, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
  ASSAY_CUDA(configured);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(kThreadsOf<kClass>);
  config.dynamicSmemBytes = gemv_shared_bytes(arguments);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  ASSAY_CUDA(cudaLaunchKernelEx(&config, gemv_kernel<kClass>, arguments));
}

}  // namespace

void launch_gemv(const GemvArguments& arguments, int grid, bool dependent, cudaStream_t stream) {
  KernelClass needed = KernelClass::kPlain;
  for (const DeviceMatrix& m : arguments.matrices)
    if (m.codes != nullptr) needed = std::max(needed, class_of(m.kind, m.pieces));
  switch (needed) {
    case KernelClass::kPlain:
      return launch_class<KernelClass::kPlain>(arguments, grid, dependent, stream);
    case KernelClass::kSuper:
      return launch_class<KernelClass::kSuper>(arguments, grid, dependent, stream);
    case KernelClass::kPieces:
      return launch_class<KernelClass::kPieces>(arguments, grid, dependent, stream);
  }
}

void launch_norm_quantize(const float* x, int32_t x_stride, const float* norm_weight, float eps,
                          float inverse_n, int32_t columns, int32_t tokens, DeviceActivations out,
                          int32_t fault_op, DeviceFault* fault, cudaStream_t stream) {
  static const cudaError_t configured = cudaFuncSetAttribute(
      norm_quantize_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
  ASSAY_CUDA(configured);
  const size_t shared_bytes =
      (static_cast<size_t>(columns) + static_cast<size_t>(columns + 255) / 256) * 4;
  norm_quantize_kernel<<<static_cast<unsigned>(tokens), kThreads, shared_bytes, stream>>>(
      x, x_stride, norm_weight, eps, inverse_n, columns, out, fault_op, fault);
  ASSAY_CUDA(cudaGetLastError());
}

}  // namespace assay::cuda
