#pragma once

#include "runtime/ops/linear_cuda.cuh"

// Pieces of the kernels that multiply a matrix with one vector (or few) from shared memory.

namespace assay::cuda {

/// Groups of one part, the piece that one copy brings: about 4 KB of codes.
template <MatrixKind kKind>
constexpr int kPartGroups = kQuantumGroups<kKind>;

ASSAY_HD constexpr int part_groups(MatrixKind kind) {
  return words_per_group(kind) <= 64 ? 4 : words_per_group(kind) <= 128 ? 2 : 1;
}

/// Four columns of a row from column 4·word on; 0 past the end.
__device__ __forceinline__ void load_word(const float* x, int word, int columns, float (&y)[4]) {
  const int first = word * 4;
  if (columns % 4 == 0) {
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (first < columns) v = __ldcg(reinterpret_cast<const float4*>(x + first));
    y[0] = v.x, y[1] = v.y, y[2] = v.z, y[3] = v.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) y[i] = first + i < columns ? __ldcg(x + first + i) : 0.0f;
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// The sum of n numbers, `stride` apart, in ascending order; starts as the first. Eight are loaded
/// at a time.
__device__ __forceinline__ float ascending_sum(const float* from, int n, int stride) {
  float sum = -0.0f;  // changes nothing that it is added to
#pragma unroll 1
  for (int first = 0; first < n; first += 8) {
    float v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = first + k < n ? from[(first + k) * stride] : -0.0f;
#pragma unroll
    for (int k = 0; k < 8; ++k) sum = __fadd_rn(sum, v[k]);
  }
  return sum;
}

__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "  @!done bra again; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  uint32_t done = 0;
  while (done == 0)
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#endif
}

/// Zeros that operands_at() may be replaced by.
inline constexpr int kZeroBytes = 8 * 16 + 16;

/// Activations in shared memory as one lane reads them.
struct Inputs {
  const uint4* planes;
  const int32_t *sums16, *sums32, *sums128;
  const float* scales;
  const uint4* zero;  // kZeroBytes of them

  /// `at` are offsets into `shared`; for several tokens, each has rows of `groups`.
  __device__ Inputs(const uint8_t* shared, const InputLayout& at, int groups, int operand_token,
                    int fold_token, int zero_at, int lane)
      : planes(reinterpret_cast<const uint4*>(shared + at.planes) + operand_token * groups * 16 +
               ((lane / 4) & 1) * 4 + lane % 4),
        sums16(reinterpret_cast<const int32_t*>(shared + at.sums16) + fold_token * groups * 8),
        sums32(reinterpret_cast<const int32_t*>(shared + at.sums32) + fold_token * groups * 4),
        sums128(reinterpret_cast<const int32_t*>(shared + at.sums128) + fold_token * groups),
        scales(reinterpret_cast<const float*>(shared + at.scales) + fold_token * groups),
        zero(reinterpret_cast<const uint4*>(shared + zero_at)) {}

  /// Where operand words of the lane's column begin for one group.
  __device__ const uint4* operands_at(int group) const { return planes + group * 16; }
  __device__ static void operands(const uint4* at, uint32_t (&b)[8]) {
    const uint4 first = at[0], second = at[8];
    b[0] = first.x, b[1] = first.y, b[2] = first.z, b[3] = first.w;
    b[4] = second.x, b[5] = second.y, b[6] = second.z, b[7] = second.w;
  }
};

template <MatrixKind kKind>
__device__ __forceinline__ void load_codes(const uint4* part, int inside, int lane,
                                           uint4 (&words)[kWords<kKind>]) {
#pragma unroll
  for (int w = 0; w < kWords<kKind>; ++w) words[w] = part[(inside * kWords<kKind> + w) * 32 + lane];
}

/// Segment sums of one unit for one token. The four column pairs of the products hold the four
/// groups of the segment: lane t of a quad folds group t, and the chain passes through the lanes.
/// A ring hands out the parts of a unit, kGroups groups each: wait(whether it is the first) gives
/// codes, header() the unit's header until its first part is released.
template <MatrixKind kKind, int kPieces, int kGroups, typename Ring>
__device__ __forceinline__ void single_unit(const DeviceMatrix& m, Ring& ring, const Inputs& in,
                                            int segment, int lane, float (&acc)[2],
                                            uint32_t& worst) {
  using Sums = GroupSums<kKind, kPieces>;
  constexpr int kChains = Sums::kCount <= 2 ? 2 : 1;  // independent sums, so that products overlap
  constexpr int kParts = kSegmentGroups / kGroups;
  const int first = segment * kSegmentGroups, pair = lane / 8;
  GroupWeights<kKind, kPieces> weights;
  const uint4* own = first + pair < m.groups ? in.operands_at(first + pair) : in.zero;
  Sums sums[kChains];
#pragma unroll
  for (Sums& s : sums) clear_sums(s);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const uint4* codes = ring.wait(part == 0);
    if (part == 0) read_weights<kKind, kPieces>(m, ring.header(), lane / 4, lane % 4, weights);
#pragma unroll
    for (int inside = 0; inside < kGroups; ++inside) {
      const int g = part * kGroups + inside;
      uint4 words[kWords<kKind>];
      load_codes<kKind>(codes, inside, lane, words);
      uint32_t b[8];
      Inputs::operands(pair == g ? own : in.zero, b);
      add_products<kKind, kPieces>(words, b, sums[g % kChains]);
    }
    ring.release();
  }
  if constexpr (kChains == 2) {
#pragma unroll
    for (int i = 0; i < Sums::kCount; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[0].c[i][k] += sums[1].c[i][k];
  }
  const int t = lane % 4, mine = min(first + t, m.groups - 1);
  const bool is_there = first + t < m.groups;
  const GroupInput input = load_input<kKind, kPieces>(in.scales, in.sums128, in.sums32, in.sums16,
                                                      static_cast<size_t>(mine));
  float values[2][kTerms<kKind, kPieces>], factors[2][kTerms<kKind, kPieces>];
  group_terms<kKind, kPieces>(sums[0], weights, input,
                              [&](int half, int i, float value, float factor) {
                                // Past the row's end what changes no sum: −0.
                                values[half][i] = is_there ? value : -0.0f;
                                factors[half][i] = is_there ? factor : 0.0f;
                                worst = max(worst, __float_as_uint(factor) & 0x7fffffffu);
                              });
#pragma unroll
  for (int g = 0; g < kSegmentGroups; ++g) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kTerms<kKind, kPieces>; ++i)
        acc[half] = __fmaf_rn(values[half][i], factors[half][i], acc[half]);
      acc[half] = __shfl_sync(0xffffffffu, acc[half], (lane & 28) | g);
    }
  }
}

}  // namespace assay::cuda
