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

/// One group of a thread block on its way: planes of 64 tokens (256 bytes each), then the codes of
/// eight tiles.
template <MatrixKind kKind>
struct GemmStage {
  static constexpr int kPlaneWords = kGemmTokens * 16;
  static constexpr int kCodeWords = kBlockTiles * kWords<kKind> * 32;
  uint4 planes[kPlaneWords];
  uint4 codes[kCodeWords];
};

inline constexpr int kGemmStages = 3;

__device__ __forceinline__ void copy_word(const uint4* from, uint4* to) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

/// Starts the copies of one group; an empty group of copies past the end keeps the count.
template <MatrixKind kKind>
__device__ __forceinline__ void copy_group(const DeviceMatrix& m, const DeviceActivations& x,
                                           int first_tile, int first_token, int tokens, int group,
                                           GemmStage<kKind>& to) {
  if (group < m.groups) {
    for (int i = static_cast<int>(threadIdx.x); i < GemmStage<kKind>::kPlaneWords;
         i += kGemmThreads) {
      const int token = min(first_token + i / 16, tokens - 1);
      copy_word(reinterpret_cast<const uint4*>(x.planes) +
                    (static_cast<size_t>(token) * x.groups + group) * 16 + i % 16,
                to.planes + i);
    }
    constexpr int kTileWords = kWords<kKind> * 32;
    for (int i = static_cast<int>(threadIdx.x); i < GemmStage<kKind>::kCodeWords;
         i += kGemmThreads) {
      const int tile = min(first_tile + i / kTileWords, m.tiles - 1);
      copy_word(
          m.codes + (static_cast<size_t>(tile) * m.groups + group) * kTileWords + i % kTileWords,
          to.codes + i);
    }
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <MatrixKind kKind, int kPieces>
__global__ __launch_bounds__(kGemmThreads) void gemm_kernel(const __grid_constant__ DeviceMatrix m,
                                                            const DeviceActivations x,
                                                            const float* bias, float* out,
                                                            int out_stride, int tokens,
                                                            Epilogue epilogue, int32_t fault_op,
                                                            DeviceFault* fault) {
  extern __shared__ uint4 shared_words[];
  auto* stages = reinterpret_cast<GemmStage<kKind>*>(shared_words);
  constexpr int kPer = kWords<kKind>, kGroups = kQuantumGroups<kKind>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_token = static_cast<int>(blockIdx.x) * kGemmTokens, warp_token = (warp & 1) * 32;
  const int block_tile = static_cast<int>(blockIdx.y) * kBlockTiles;
  const int warp_tile = (warp >> 1) * kRowTiles, first_tile = block_tile + warp_tile;
  const int plane = (lane / 4) & 1;

  float segment[kRowTiles][kQuads][2] = {}, total[kRowTiles][kQuads][2] = {};
  QuantumScales<kKind, kPieces> scales[kRowTiles], next_scales[kRowTiles];
  uint32_t worst = 0;
  const auto load_next_scales = [&](int group) {
    if (group >= m.groups) return;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      load_scales<kKind, kPieces>(m, min(first_tile + i, m.tiles - 1), group, lane, next_scales[i]);
  };
  load_next_scales(0);
#pragma unroll
  for (int i = 0; i < kGemmStages - 1; ++i)
    copy_group<kKind>(m, x, block_tile, first_token, tokens, i, stages[i]);

  for (int group = 0, slot = 0; group < m.groups;
       ++group, slot = slot + 1 == kGemmStages ? 0 : slot + 1) {
    if (group % kGroups == 0) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) scales[i] = next_scales[i];
      load_next_scales(group + kGroups);
    }
    asm volatile("cp.async.wait_group %0;" ::"n"(kGemmStages - 2) : "memory");
    __syncthreads();
    const int ahead = slot == 0 ? kGemmStages - 1 : slot - 1;
    copy_group<kKind>(m, x, block_tile, first_token, tokens, group + kGemmStages - 1,
                      stages[ahead]);

    uint4 codes[kRowTiles][kPer];
    GroupWeights<kKind, kPieces> weights[kRowTiles];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int w = 0; w < kPer; ++w)
        codes[i][w] = stages[slot].codes[((warp_tile + i) * kPer + w) * 32 + lane];
#pragma unroll
      for (int inside = 0; inside < kGroups; ++inside)
        if (group % kGroups == inside)
          decode_scales<kKind, kPieces>(m, scales[i], inside, min(first_tile + i, m.tiles - 1),
                                        group, lane, weights[i]);
    }
    const uint4* operand = stages[slot].planes + warp_token * 16 + plane * 4 + lane % 4;
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
    // Thread blocks of the same rows are neighbours: their codes come from the cache.
    const dim3 grid(static_cast<unsigned>((tokens + kGemmTokens - 1) / kGemmTokens),
                    static_cast<unsigned>((matrix.tiles + kBlockTiles - 1) / kBlockTiles));
    constexpr size_t kShared = sizeof(GemmStage<kKind>) * kGemmStages;
    static const cudaError_t configured = cudaFuncSetAttribute(
        gemm_kernel<kKind, kPieces>, cudaFuncAttributeMaxDynamicSharedMemorySize,
        static_cast<int>(kShared));
    ASSAY_CUDA(configured);
    gemm_kernel<kKind, kPieces><<<grid, kGemmThreads, kShared, stream>>>(
        matrix, x, bias, out, out_stride, tokens, epilogue, fault_op, fault);
    ASSAY_CUDA(cudaGetLastError());
  }
};

void run_gemm_group4(const GemmLaunch& launch);  // linear_gemm_group4_cuda.cu
void run_gemm_group8(const GemmLaunch& launch);  // linear_gemm_group8_cuda.cu

}  // namespace assay::cuda
