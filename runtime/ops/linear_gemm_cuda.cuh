#pragma once

#include "runtime/device/cuda_support.h"
#include "runtime/ops/linear_cuda.cuh"

// The matrix kernel, a template over kinds; instantiated in several files to keep each quick to
// build.

namespace assay::cuda {

inline constexpr int kGemmThreads = 512;
inline constexpr int kGemmWarps = kGemmThreads / 32;
inline constexpr int kGemmTokens = 64;                        // of a thread block
inline constexpr int kBlockTiles = 8;                         // of a thread block, 16 rows each
inline constexpr int kTokenParts = kGemmWarps / kBlockTiles;  // warps that share a tile
inline constexpr int kWarpTokens = kGemmTokens / kTokenParts;
inline constexpr int kQuads = kWarpTokens / 4;
inline constexpr int kMostStages = 3;

/// Sums over 32 columns that the fold reads; other kinds read those over 128.
template <MatrixKind kKind, int kPieces>
inline constexpr bool kReadsSums32 =
    kKind == MatrixKind::kSuper4 || kKind == MatrixKind::kAffine4 || kPieces > 1;

/// One group of a thread block on its way: planes of 64 tokens (256 bytes each), the codes of eight
/// tiles, sums and scales of the tokens.
template <MatrixKind kKind>
struct GemmStage {
  static constexpr int kPlaneWords = kGemmTokens * 16;
  static constexpr int kTileWords = kWords<kKind> * 32;
  static constexpr int kCodeWords = kBlockTiles * kTileWords;
  uint4 planes[kPlaneWords];
  uint4 codes[kCodeWords];
  int4 sums32[kGemmTokens];
  int32_t sums128[kGemmTokens];
  float scales[kGemmTokens];
};

/// Shared memory: the stages, then the headers of two segments of eight tiles.
template <MatrixKind kKind>
__host__ __device__ constexpr int gemm_shared_bytes(int n_stages, int header_bytes) {
  return static_cast<int>(sizeof(GemmStage<kKind>)) * n_stages + 2 * kBlockTiles * header_bytes;
}

template <int kBytes>
__device__ __forceinline__ void copy_bytes(const void* from, void* to) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
}

/// The copies of one thread, group after group. What a thread reads lies at the same distance from
/// an address that all threads of the block share and that moves on from group to group.
template <MatrixKind kKind, int kPieces>
class GroupCopies {
 public:
  using Stage = GemmStage<kKind>;

  __device__ GroupCopies(const DeviceMatrix& m, const DeviceActivations& x, int first_tile,
                         int first_token, int tokens)
      : groups_(m.groups), header_bytes_(m.header_bytes) {
    const int thread = static_cast<int>(threadIdx.x);
    const size_t first = static_cast<size_t>(first_token) * static_cast<size_t>(x.groups);
    planes_ = reinterpret_cast<const std::byte*>(x.planes) + first * 256;
    units_ = unit_at(m, first_tile, 0);
    const int last_token = tokens - 1 - first_token, last_tile = m.tiles - 1 - first_tile;
    const uint32_t tile_bytes =
        static_cast<uint32_t>(m.segments) * static_cast<uint32_t>(m.unit_bytes);
#pragma unroll
    for (int k = 0; k < kPlaneCopies; ++k) {
      const int i = thread + k * kGemmThreads;
      plane_at_[k] = static_cast<uint32_t>(min(i / 16, last_token) * x.groups * 256 + i % 16 * 16);
    }
#pragma unroll
    for (int k = 0; k < kCodeCopies; ++k) {
      const int i = thread + k * kGemmThreads;
      code_at_[k] = static_cast<uint32_t>(min(i / Stage::kTileWords, last_tile)) * tile_bytes +
                    static_cast<uint32_t>(header_bytes_ + i % Stage::kTileWords * 16);
    }
    const int warp_tile = thread / 32 % kBlockTiles;
    header_at_ = static_cast<uint32_t>(min(warp_tile, last_tile)) * tile_bytes;
    const int inside = thread % kGemmTokens;
    const size_t at = first + static_cast<size_t>(min(inside, last_token) * x.groups);
    token_words_ = thread < kGemmTokens           ? reinterpret_cast<const int32_t*>(x.scales) + at
                   : kReadsSums32<kKind, kPieces> ? x.sums32 + at * 4
                                                  : x.sums128 + at;
  }

  /// Starts the copies of the next group as one group of asynchronous copies; past the end an empty
  /// one. `headers` holds those of two segments.
  __device__ void start(Stage& to, uint8_t* headers) {
    const int thread = static_cast<int>(threadIdx.x);
    if (group_ < groups_) {
#pragma unroll
      for (int k = 0; k < kPlaneCopies; ++k)
        copy_bytes<16>(planes_ + plane_at_[k], to.planes + thread + k * kGemmThreads);
#pragma unroll
      for (int k = 0; k < kCodeCopies; ++k) {
        const int i = thread + k * kGemmThreads;
        if (Stage::kCodeWords % kGemmThreads == 0 || i < Stage::kCodeWords)
          copy_bytes<16>(units_ + code_at_[k], to.codes + i);
      }
      if (thread < kGemmTokens) {
        copy_bytes<4>(token_words_ + group_, to.scales + thread);
      } else if (thread < 2 * kGemmTokens) {
        const int inside = thread - kGemmTokens;
        if constexpr (kReadsSums32<kKind, kPieces>)
          copy_bytes<16>(token_words_ + group_ * 4, to.sums32 + inside);
        else if constexpr (kKind == MatrixKind::kGroup4 || kKind == MatrixKind::kGroup8)
          copy_bytes<4>(token_words_ + group_, to.sums128 + inside);
      }
      const bool first = group_ % kSegmentGroups == 0;
      if (first) {
        const int warp = thread / 32, tile = warp % kBlockTiles;
        uint8_t* header =
            headers + (group_ / kSegmentGroups % 2 * kBlockTiles + tile) * header_bytes_;
        for (int at = (warp / kBlockTiles * 32 + thread % 32) * 16; at < header_bytes_;
             at += kTokenParts * 512)
          copy_bytes<16>(units_ + header_at_ + at, header + at);
      }
      planes_ += 256;
      units_ += Stage::kTileWords * 16;
      if (++group_ % kSegmentGroups == 0) units_ += header_bytes_;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

 private:
  static constexpr int kPlaneCopies = Stage::kPlaneWords / kGemmThreads;
  static constexpr int kCodeCopies = (Stage::kCodeWords + kGemmThreads - 1) / kGemmThreads;

  int groups_, header_bytes_, group_ = 0;
  const std::byte* planes_;  // of the block's first token
  const std::byte* units_;   // of the block's first tile, less the header and earlier groups
  uint32_t plane_at_[kPlaneCopies], code_at_[kCodeCopies], header_at_;
  const int32_t* token_words_;  // scale or sums of one token
};

/// Waits for the copies of all stages but the youngest one, which there is if there are three.
__device__ __forceinline__ void wait_oldest(int n_stages) {
  if (n_stages == kMostStages)
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  else
    asm volatile("cp.async.wait_group 0;" ::: "memory");
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

/// Adds one group of a K-quant to the segment sums of rows r and r + 8 for the lane's token.
/// |Σ a0 + 256 Σ a1| < 2^31, and converting it rounds once, as float(H) does.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void fold_scaled(const ScaledCodes<kKind>& codes, const uint32_t (&b)[8],
                                            const GroupWeights<kKind, kPieces>& w,
                                            const int (&minima)[2][4], float x_scale,
                                            const int4& sums32, float (&acc)[2]) {
  int low[4] = {}, high[4] = {};
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
    const float h = __int2float_rn(high[2 * half] * 256 + low[2 * half]);
    const float l = __int2float_rn(high[2 * half + 1] * 256 + low[2 * half + 1]);
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

/// Largest magnitude, as bits, of the products of a lane's scales of one group with `x_scale`, the
/// largest of the tokens: rounding keeps the order, so one of them is infinite only if this is.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ uint32_t largest_product(const GroupWeights<kKind, kPieces>& w,
                                                    float x_scale) {
  uint32_t largest = 0;
  const auto take = [&](float scale) {
    largest = max(largest, __float_as_uint(__fmul_rn(scale, x_scale)) & 0x7fffffffu);
  };
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      take(w.scale[half][piece]);
      if constexpr (kKind == MatrixKind::kAffine4 || kKind == MatrixKind::kSuper4)
        take(w.minimum[half][piece]);
    }
  return largest;
}

template <MatrixKind kKind, int kPieces>
__global__ __launch_bounds__(kGemmThreads,
                             1) void gemm_kernel(const __grid_constant__ DeviceMatrix m,
                                                 const DeviceActivations x, const float* bias,
                                                 float* out, int out_stride, int tokens,
                                                 int n_stages, Epilogue epilogue, int32_t fault_op,
                                                 DeviceFault* fault) {
  extern __shared__ uint4 shared_words[];
  auto* stages = reinterpret_cast<GemmStage<kKind>*>(shared_words);
  uint8_t* headers = reinterpret_cast<uint8_t*>(stages + n_stages);
  constexpr int kPer = kWords<kKind>;
  constexpr bool kSuper = kKind == MatrixKind::kSuper4 || kKind == MatrixKind::kSuper6;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int block_tile = static_cast<int>(blockIdx.y) * kBlockTiles;
  const int own_tile = warp % kBlockTiles, tile = block_tile + own_tile;
  const int block_token = static_cast<int>(blockIdx.x) * kGemmTokens;
  const int own_token = warp / kBlockTiles * kWarpTokens, first_token = block_token + own_token;
  const int plane = (lane / 4) & 1;

  float segment[kQuads][2] = {}, total[kQuads][2] = {};
  uint32_t worst = 0;
  GroupCopies<kKind, kPieces> copies(m, x, block_tile, block_token, tokens);
  for (int i = 0; i < n_stages - 1; ++i) copies.start(stages[i], headers);

  for (int group = 0, slot = 0; group < m.groups; ++group) {
    wait_oldest(n_stages);
    __syncthreads();
    copies.start(stages[slot == 0 ? n_stages - 1 : slot - 1], headers);

    const GemmStage<kKind>& stage = stages[slot];
    if (++slot == n_stages) slot = 0;
    uint4 codes[kPer];
#pragma unroll
    for (int w = 0; w < kPer; ++w) codes[w] = stage.codes[(own_tile * kPer + w) * 32 + lane];
    GroupWeights<kKind, kPieces> weights;
    read_weights<kKind, kPieces>(
        m, headers + (group / kSegmentGroups % 2 * kBlockTiles + own_tile) * m.header_bytes,
        lane / 4, group % kSegmentGroups, weights);
    static_assert(kWarpTokens == 32);
    const uint32_t largest_scale =
        __reduce_max_sync(0xffffffffu, __float_as_uint(stage.scales[own_token + lane]));
    worst = max(worst, largest_product<kKind, kPieces>(weights, __uint_as_float(largest_scale)));
    const auto operands = [&](int quad, uint32_t(&b)[8]) {
      const uint4* at =
          stage.planes + plane * 4 + lane % 4 + (own_token + quad * 4 + lane / 8) * 16;
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
        const int token = own_token + quad * 4 + lane % 4;
        int4 sums32{};
        if constexpr (kKind == MatrixKind::kSuper4) sums32 = stage.sums32[token];
        fold_scaled<kKind, kPieces>(scaled, b, weights, minima, stage.scales[token], sums32,
                                    segment[quad]);
      }
    } else {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        uint32_t b[8];
        operands(quad, b);
        const int token = own_token + quad * 4 + lane % 4;
        GroupInput input{};
        input.scale = stage.scales[token];
        if constexpr (kReadsSums32<kKind, kPieces>)
          input.sums32 = stage.sums32[token];
        else
          input.sum128 = stage.sums128[token];
        GroupSums<kKind, kPieces> sums;
        multiply_group<kKind, kPieces>(codes, b, sums);
        group_terms<kKind, kPieces>(
            sums, weights, input, [&](int half, int, float value, float scale) {
              segment[quad][half] = __fmaf_rn(value, scale, segment[quad][half]);
            });
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
  if (tile >= m.tiles) return;
  if (worst >= 0x7f800000u) report_fault(fault, fault_op, tile * kTileRows, __uint_as_float(worst));

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
    const DeviceLimits& limits = current_limits();
    int n_stages = kMostStages;
    while (n_stages > 2 &&
           gemm_shared_bytes<kKind>(n_stages, matrix.header_bytes) > limits.block_shared)
      --n_stages;
    const int bytes = gemm_shared_bytes<kKind>(n_stages, matrix.header_bytes);
    allow_shared(reinterpret_cast<const void*>(gemm_kernel<kKind, kPieces>), bytes,
                 "the matrix kernel");
    gemm_kernel<kKind, kPieces><<<grid, kGemmThreads, static_cast<size_t>(bytes), stream>>>(
        matrix, x, bias, out, out_stride, tokens, n_stages, epilogue, fault_op, fault);
    ASSAY_CUDA(cudaGetLastError());
  }
};

void run_gemm_group4(const GemmLaunch& launch);  // linear_gemm_group4_cuda.cu
void run_gemm_group8(const GemmLaunch& launch);  // linear_gemm_group8_cuda.cu

}  // namespace assay::cuda
