#pragma once

#include "runtime/device/cuda_support.h"
#include "runtime/ops/linear_cuda.cuh"

// The matrix kernel, a template over kinds; instantiated in several files to keep each quick to
// build.

namespace assay::cuda {

inline constexpr int kGemmThreads = 256;
inline constexpr int kGemmTokens = 64;  // of a thread block, all of them for every warp
inline constexpr int kQuads = kGemmTokens / 4;
inline constexpr int kBlockTiles =
    kGemmThreads / 32;  // of a thread block: a tile of 16 rows a warp
inline constexpr int kGemmStages = 3;

/// Sums over 32 columns that the fold reads; other kinds read those over 128.
template <MatrixKind kKind, int kPieces>
inline constexpr bool kReadsSums32 =
    kKind == MatrixKind::kSuper4 || kKind == MatrixKind::kAffine4 || kPieces > 1;

/// One group of a thread block on its way: planes of 64 tokens (256 bytes each), the codes of eight
/// tiles, sums and scales of the tokens.
template <MatrixKind kKind>
struct GemmStage {
  static constexpr int kPlaneWords = kGemmTokens * 16;
  static constexpr int kCodeWords = kBlockTiles * kWords<kKind> * 32;
  uint4 planes[kPlaneWords];
  uint4 codes[kCodeWords];
  int4 sums32[kGemmTokens];
  int32_t sums128[kGemmTokens];
  float scales[kGemmTokens];
};

template <int kBytes>
__device__ __forceinline__ void copy_bytes(const void* from, void* to) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
}

/// Starts the copies of one group; an empty group of copies past the end keeps the count.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void copy_group(const DeviceMatrix& m, const DeviceActivations& x,
                                           int first_tile, int first_token, int tokens, int group,
                                           GemmStage<kKind>& to) {
  const int thread = static_cast<int>(threadIdx.x);
  if (group < m.groups) {
    for (int i = thread; i < GemmStage<kKind>::kPlaneWords; i += kGemmThreads) {
      const int token = min(first_token + i / 16, tokens - 1);
      copy_bytes<16>(reinterpret_cast<const uint4*>(x.planes) +
                         (static_cast<size_t>(token) * x.groups + group) * 16 + i % 16,
                     to.planes + i);
    }
    constexpr int kTileWords = kWords<kKind> * 32;
    for (int i = thread; i < GemmStage<kKind>::kCodeWords; i += kGemmThreads) {
      const int tile = min(first_tile + i / kTileWords, m.tiles - 1);
      copy_bytes<16>(unit_at(m, tile, group / kSegmentGroups) + m.header_bytes +
                         (group % kSegmentGroups * kTileWords + i % kTileWords) * 16,
                     to.codes + i);
    }
    const int inside = thread % kGemmTokens;
    const size_t at = static_cast<size_t>(min(first_token + inside, tokens - 1)) * x.groups + group;
    if (thread < kGemmTokens) {
      copy_bytes<4>(x.scales + at, to.scales + inside);
    } else if (thread < 2 * kGemmTokens) {
      if constexpr (kReadsSums32<kKind, kPieces>)
        copy_bytes<16>(x.sums32 + at * 4, to.sums32 + inside);
      else if constexpr (kKind == MatrixKind::kGroup4 || kKind == MatrixKind::kGroup8)
        copy_bytes<4>(x.sums128 + at, to.sums128 + inside);
    }
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// K-quants: codes times their integer sub-scales, as two byte planes a0 + 256·a1 in operand order,
/// so that one chain of products covers all sub-blocks of a group. Q4_K: both unsigned, at most
/// 15·63; Q6_K: (code − 32)·sub-scale, both signed.
template <MatrixKind kKind>
struct ScaledCodes {
  uint32_t low[4][4], high[4][4];  // block of 32 columns, operand register

  template <int kPieces>
  __device__ __forceinline__ ScaledCodes(const uint4* words,
                                         const GroupWeights<kKind, kPieces>& w) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t a[4];
      code_operands<kKind>(words, j, a);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i & 1;
        const uint32_t even = a[i] & 0x00ff00ffu, odd = (a[i] >> 8) & 0x00ff00ffu;
        if constexpr (kKind == MatrixKind::kSuper4) {
          const uint32_t sub = (w.sub[half][0] >> (6 * j)) & 63u;
          const uint32_t x = even * sub, y = odd * sub;
          low[j][i] = __byte_perm(x, y, 0x6240);
          high[j][i] = __byte_perm(x, y, 0x7351);
        } else {
          // Each 16-bit half becomes (code − 32)·sub + 128 + 2^15, which is positive: nothing is
          // borrowed between the halves, and the two bytes are a0 and a1 but for their top bits.
          const int sub = static_cast<int8_t>(byte_of(w.sub[half], 2 * j + i / 2));
          const uint32_t offset = static_cast<uint32_t>(128 + 32768 - 32 * sub) * 65537u;
          const uint32_t x = even * static_cast<uint32_t>(sub) + offset,
                         y = odd * static_cast<uint32_t>(sub) + offset;
          low[j][i] = __byte_perm(x, y, 0x6240) ^ 0x80808080u;
          high[j][i] = __byte_perm(x, y, 0x7351) ^ 0x80808080u;
        }
      }
    }
  }
};

/// The bits of 1.5·2^23: an accumulator that starts there and moves by less than 2^22 holds, read
/// as a float, 1.5·2^23 + sum. Subtracting gives the sum exactly, without a conversion.
inline constexpr int kMagicBits = 0x4b400000;

__device__ __forceinline__ float magic_sum(int bits) {
  return __fsub_rn(__int_as_float(bits), 12582912.0f);
}

/// Adds one group of a K-quant to the segment sums of rows r and r + 8 for the lane's token.
/// |Σ a0·plane| ≤ 255·128·128 < 2^22, and Σ a0 + 256 Σ a1 rounds once, as float(H) does.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void fold_scaled(const ScaledCodes<kKind>& codes, const uint32_t (&b)[8],
                                            const GroupWeights<kKind, kPieces>& w,
                                            const int (&minima)[2][4], float x_scale,
                                            const int4& sums32, float (&acc)[2]) {
  int low[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
  int high[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if constexpr (kKind == MatrixKind::kSuper4) {
      mma_u8_s8(low, codes.low[j], b[2 * j], b[2 * j + 1]);
      mma_u8_s8(high, codes.high[j], b[2 * j], b[2 * j + 1]);
    } else {
      mma_s8_s8(low, codes.low[j], b[2 * j], b[2 * j + 1]);
      mma_s8_s8(high, codes.high[j], b[2 * j], b[2 * j + 1]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float h = __fmaf_rn(256.0f, magic_sum(high[2 * half]), magic_sum(low[2 * half]));
    const float l = __fmaf_rn(256.0f, magic_sum(high[2 * half + 1]), magic_sum(low[2 * half + 1]));
    acc[half] = __fmaf_rn(__fmaf_rn(256.0f, h, l), __fmul_rn(w.scale[half][0], x_scale), acc[half]);
    if constexpr (kKind == MatrixKind::kSuper4) {
      int minimum = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) minimum += minima[half][j] * component_of(sums32, j);
      acc[half] =
          __fmaf_rn(__int2float_rn(minimum), __fmul_rn(-w.minimum[half][0], x_scale), acc[half]);
    }
  }
}

template <MatrixKind kKind, int kPieces>
__global__ __launch_bounds__(kGemmThreads,
                             1) void gemm_kernel(const __grid_constant__ DeviceMatrix m,
                                                 const DeviceActivations x, const float* bias,
                                                 float* out, int out_stride, int tokens,
                                                 Epilogue epilogue, int32_t fault_op,
                                                 DeviceFault* fault) {
  extern __shared__ uint4 shared_words[];
  auto* stages = reinterpret_cast<GemmStage<kKind>*>(shared_words);
  constexpr int kPer = kWords<kKind>, kGroups = kQuantumGroups<kKind>;
  constexpr bool kSuper = kKind == MatrixKind::kSuper4 || kKind == MatrixKind::kSuper6;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_token = static_cast<int>(blockIdx.x) * kGemmTokens;
  const int block_tile = static_cast<int>(blockIdx.y) * kBlockTiles, tile = block_tile + warp;
  const int own_tile = min(tile, m.tiles - 1), plane = (lane / 4) & 1;

  float segment[kQuads][2] = {}, total[kQuads][2] = {};
  QuantumScales<kKind, kPieces> scales, next_scales;
  uint32_t worst = 0;
  load_scales<kKind, kPieces>(m, own_tile, 0, lane, next_scales);
#pragma unroll
  for (int i = 0; i < kGemmStages - 1; ++i)
    copy_group<kKind, kPieces>(m, x, block_tile, first_token, tokens, i, stages[i]);

  for (int group = 0, slot = 0; group < m.groups;
       ++group, slot = slot + 1 == kGemmStages ? 0 : slot + 1) {
    if (group % kGroups == 0) {
      scales = next_scales;
      if (group + kGroups < m.groups)
        load_scales<kKind, kPieces>(m, own_tile, group + kGroups, lane, next_scales);
    }
    asm volatile("cp.async.wait_group %0;" ::"n"(kGemmStages - 2) : "memory");
    __syncthreads();
    const int ahead = slot == 0 ? kGemmStages - 1 : slot - 1;
    copy_group<kKind, kPieces>(m, x, block_tile, first_token, tokens, group + kGemmStages - 1,
                               stages[ahead]);

    const GemmStage<kKind>& stage = stages[slot];
    uint4 codes[kPer];
#pragma unroll
    for (int w = 0; w < kPer; ++w) codes[w] = stage.codes[(warp * kPer + w) * 32 + lane];
    GroupWeights<kKind, kPieces> weights;
#pragma unroll
    for (int inside = 0; inside < kGroups; ++inside)
      if (group % kGroups == inside)
        decode_scales<kKind, kPieces>(m, scales, inside, own_tile, group, lane, weights);
    const auto operands = [&](int quad, uint32_t(&b)[8]) {
      const uint4* at = stage.planes + plane * 4 + lane % 4 + (quad * 4 + lane / 8) * 16;
      const uint4 first = at[0], second = at[8];
      b[0] = first.x, b[1] = first.y, b[2] = first.z, b[3] = first.w;
      b[4] = second.x, b[5] = second.y, b[6] = second.z, b[7] = second.w;
    };
    if constexpr (kSuper) {
      const ScaledCodes<kKind> scaled(codes, weights);
      int minima[2][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kKind == MatrixKind::kSuper4) {
#pragma unroll
          for (int j = 0; j < 4; ++j)
            minima[half][j] = static_cast<int>((weights.sub[half][1] >> (6 * j)) & 63u);
        }
      }
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        uint32_t b[8];
        operands(quad, b);
        const int token = quad * 4 + lane % 4;
        const float x_scale = stage.scales[token];
        int4 sums32{};
        if constexpr (kKind == MatrixKind::kSuper4) sums32 = stage.sums32[token];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          worst =
              max(worst, __float_as_uint(__fmul_rn(weights.scale[half][0], x_scale)) & 0x7fffffffu);
          if constexpr (kKind == MatrixKind::kSuper4)
            worst = max(
                worst, __float_as_uint(__fmul_rn(weights.minimum[half][0], x_scale)) & 0x7fffffffu);
        }
        fold_scaled<kKind, kPieces>(scaled, b, weights, minima, x_scale, sums32, segment[quad]);
      }
    } else {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        uint32_t b[8];
        operands(quad, b);
        const int token = quad * 4 + lane % 4;
        GroupInput input{};
        input.scale = stage.scales[token];
        if constexpr (kReadsSums32<kKind, kPieces>)
          input.sums32 = stage.sums32[token];
        else
          input.sum128 = stage.sums128[token];
        GroupSums<kKind, kPieces> sums;
        multiply_group<kKind, kPieces>(codes, b, sums);
        fold_group<kKind, kPieces>(sums, weights, input, segment[quad], worst);
      }
    }
    if (group % kSegmentGroups == kSegmentGroups - 1 || group + 1 == m.groups) {
      const bool first = group < kSegmentGroups;
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          total[quad][half] =
              first ? segment[quad][half] : __fadd_rn(total[quad][half], segment[quad][half]);
          segment[quad][half] = 0.0f;
        }
    }
  }
  if (worst >= 0x7f800000u) report_fault(fault, fault_op, tile * kTileRows, __uint_as_float(worst));
  if (tile >= m.tiles) return;

#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    const int token = first_token + quad * 4 + lane % 4;
    if (token >= tokens) continue;
    float* row = out + static_cast<size_t>(token) * out_stride;
    if (epilogue == Epilogue::kSwiGlu) {
      const int to = tile * 8 + lane / 4;
      if (to < m.rows / 2) row[to] = __fmul_rn(silu_canonical(total[quad][0]), total[quad][1]);
      continue;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int to = tile * kTileRows + lane / 4 + 8 * half;
      if (to >= m.rows) continue;
      float y = total[quad][half];
      if (bias != nullptr) y = __fadd_rn(y, __ldg(bias + to));
      row[to] = epilogue == Epilogue::kAddTo ? __fadd_rn(row[to], y) : y;
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
