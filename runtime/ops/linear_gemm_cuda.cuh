#pragma once

#include "runtime/device/cuda_support.h"
#include "runtime/ops/linear_cuda.cuh"

// The matrix kernel, a template over kinds; instantiated in several files to keep each quick to
// build.

namespace assay::cuda {

inline constexpr int kGemmThreads = 256;
inline constexpr int kGemmTokens = 64;  // of a thread block: two halves of 32
inline constexpr int kQuads = 8;        // of a warp: 8 × 4 tokens
inline constexpr int kRowTiles = 2;     // of a warp: 2 × 16 rows
inline constexpr int kBlockTiles = 8;   // of a thread block: four warps of two tiles

/// Copies one group of 64 tokens' planes to shared memory: 256 bytes a token.
__device__ __forceinline__ void copy_planes(const DeviceActivations& x, int first_token, int tokens,
                                            int group, uint4* to) {
  for (int i = static_cast<int>(threadIdx.x); i < kGemmTokens * 16; i += kGemmThreads) {
    const int token = min(first_token + i / 16, tokens - 1);
    const uint4* from = reinterpret_cast<const uint4*>(x.planes) +
                        (static_cast<size_t>(token) * x.groups + group) * 16 + i % 16;
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to + i));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Scales of one group for the lane's rows, straight from memory.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void load_group_weights(const DeviceMatrix& m, int tile, int group,
                                                   int lane, GroupWeights<kKind, kPieces>& to) {
  constexpr int kGroups = kQuantumGroups<kKind>;
  QuantumScales<kKind, kPieces> scales;
  load_scales<kKind, kPieces>(m, tile, group / kGroups * kGroups, lane, scales);
#pragma unroll
  for (int inside = 0; inside < kGroups; ++inside)
    if (group % kGroups == inside)
      decode_scales<kKind, kPieces>(m, scales, inside, tile, group, lane, to);
}

template <MatrixKind kKind, int kPieces>
__global__ __launch_bounds__(kGemmThreads) void gemm_kernel(const __grid_constant__ DeviceMatrix m,
                                                            const DeviceActivations x,
                                                            const float* bias, float* out,
                                                            int out_stride, int tokens,
                                                            Epilogue epilogue, int32_t fault_op,
                                                            DeviceFault* fault) {
  __shared__ uint4 planes[2][kGemmTokens * 16];
  constexpr int kPer = kWords<kKind>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_token = static_cast<int>(blockIdx.y) * kGemmTokens, warp_token = (warp & 1) * 32;
  const int first_tile = static_cast<int>(blockIdx.x) * kBlockTiles + (warp >> 1) * kRowTiles;
  const int plane = (lane / 4) & 1;

  float segment[kRowTiles][kQuads][2] = {}, total[kRowTiles][kQuads][2] = {};
  uint32_t worst = 0;

  copy_planes(x, first_token, tokens, 0, planes[0]);
  for (int group = 0; group < m.groups; ++group) {
    uint4 codes[kRowTiles][kPer];
    GroupWeights<kKind, kPieces> weights[kRowTiles];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      const int tile = min(first_tile + i, m.tiles - 1);
      const uint4* from =
          m.codes + (static_cast<size_t>(tile) * m.groups + group) * (kPer * 32) + lane;
#pragma unroll
      for (int w = 0; w < kPer; ++w) codes[i][w] = __ldg(from + w * 32);
      load_group_weights<kKind, kPieces>(m, tile, group, lane, weights[i]);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    if (group + 1 < m.groups)
      copy_planes(x, first_token, tokens, group + 1, planes[(group + 1) & 1]);
    const uint4* operand = planes[group & 1] + warp_token * 16 + plane * 4 + lane % 4;
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const uint4* at = operand + (quad * 4 + lane / 8) * 16;
      const uint4 first = at[0], second = at[8];
      const uint32_t b[8] = {first.x,  first.y,  first.z,  first.w,
                             second.x, second.y, second.z, second.w};
      const int token = min(first_token + warp_token + quad * 4 + lane % 4, tokens - 1);
      const GroupInput input = load_input<kKind, kPieces>(
          x.scales, x.sums128, x.sums32, x.sums16, static_cast<size_t>(token) * x.groups + group);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        GroupSums<kKind, kPieces> sums;
        multiply_group<kKind, kPieces>(codes[i], b, sums);
        fold_group<kKind, kPieces>(sums, weights[i], input, segment[i][quad], worst);
      }
    }
    if (group % kSegmentGroups == kSegmentGroups - 1 || group + 1 == m.groups) {
      const bool first = group < kSegmentGroups;
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int quad = 0; quad < kQuads; ++quad)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            total[i][quad][half] = first ? segment[i][quad][half]
                                         : __fadd_rn(total[i][quad][half], segment[i][quad][half]);
            segment[i][quad][half] = 0.0f;
          }
    }
  }
  if (worst >= 0x7f800000u)
    report_fault(fault, fault_op, first_tile * kTileRows, __uint_as_float(worst));

#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    const int tile = first_tile + i;
    if (tile >= m.tiles) break;
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const int token = first_token + warp_token + quad * 4 + lane % 4;
      if (token >= tokens) continue;
      float* row = out + static_cast<size_t>(token) * out_stride;
      if (epilogue == Epilogue::kSwiGlu) {
        const int to = tile * 8 + lane / 4;
        if (to < m.rows / 2)
          row[to] = __fmul_rn(silu_canonical(total[i][quad][0]), total[i][quad][1]);
        continue;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int to = tile * kTileRows + lane / 4 + 8 * half;
        if (to >= m.rows) continue;
        float y = total[i][quad][half];
        if (bias != nullptr) y = __fadd_rn(y, __ldg(bias + to));
        row[to] = epilogue == Epilogue::kAddTo ? __fadd_rn(row[to], y) : y;
      }
    }
  }
}

/// Everything that a launch hands to the kernel.
struct GemmLaunch {
  const DeviceMatrix& matrix;
  const DeviceActivations& x;
  const float* bias;
  float* out;
  int32_t out_stride;
  int32_t tokens;
  Epilogue epilogue;
  int32_t fault_op;
  DeviceFault* fault;
  cudaStream_t stream;

  template <MatrixKind kKind, int kPieces>
  void run() const {
    const dim3 grid(static_cast<unsigned>((matrix.tiles + kBlockTiles - 1) / kBlockTiles),
                    static_cast<unsigned>((tokens + kGemmTokens - 1) / kGemmTokens));
    gemm_kernel<kKind, kPieces><<<grid, kGemmThreads, 0, stream>>>(
        matrix, x, bias, out, out_stride, tokens, epilogue, fault_op, fault);
    ASSAY_CUDA(cudaGetLastError());
  }
};

void run_gemm_group4(const GemmLaunch& launch);  // linear_gemm_group4_cuda.cu
void run_gemm_group8(const GemmLaunch& launch);  // linear_gemm_group8_cuda.cu

}  // namespace assay::cuda
