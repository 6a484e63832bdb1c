#pragma once

#include <cstdint>

#include "runtime/math.h"
#include "runtime/ops/linear_cuda.h"

// Pieces that several kernels share. Contraction is off for every .cu file (-fmad=false); a fused
// multiply-add is written __fmaf_rn.

namespace assay::cuda {

/// Lets the next kernel of the stream start while this one still runs.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until everything that earlier kernels of the stream wrote is visible. Until then only
/// weights may be read; data of earlier kernels is read past L1 (__ldcg).
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void report_fault(DeviceFault* fault, int32_t op, int32_t index,
                                             float value) {
  if (atomicCAS(&fault->op, 0, op) == 0) {
    fault->index = index;
    fault->value = value;
  }
}

/// The five folds of a lane sum; every lane gets the result.
__device__ __forceinline__ float fold_lanes(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1)
    value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, mask));
  return value;
}

/// Exponent e of block int16: the smallest in [−100, 100] with amax ≤ 32,639·2^e.
__device__ __forceinline__ int block_exponent(float amax) {
  const uint32_t bits = __float_as_uint(amax);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const int e = exponent - ((bits & 0x7fffffu) <= 0x7efe00u ? 14 : 13);
  return max(-100, e);
}

/// D = A·B + C, 16×32 unsigned bytes by 32×8 signed bytes.
__device__ __forceinline__ void mma_u8_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same with signed bytes on both sides.
__device__ __forceinline__ void mma_s8_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// 16×16 unsigned bytes by 16×8 signed bytes.
__device__ __forceinline__ void mma_u8_s8_k16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

/// f16 or bf16 bits to f32, exact.
__device__ __forceinline__ float scale_value(uint32_t bits, ScaleType type) {
  if (type == ScaleType::kBF16) return __uint_as_float(bits << 16);
  float value;
  asm("{ .reg .b16 half; cvt.u16.u32 half, %1; cvt.f32.f16 %0, half; }" : "=f"(value) : "r"(bits));
  return value;
}

/// Where quantized groups go, in the operand order of DeviceActivations. All pointers are those of
/// the token.
struct GroupTarget {
  uint32_t* planes;
  int32_t* sums16;  // null: nobody reads them
  int32_t* sums32;
  int32_t* sums128;
  float* scales;

  /// The four columns from 4·word on.
  __device__ __forceinline__ void set_planes(int group, int word, uint32_t high,
                                             uint32_t low) const {
    const int base = (group * 2 + word / 16) * 32 + (word % 4) * 4 + word % 16 / 4;
    planes[base] = high;
    planes[base + 16] = low;
  }
  __device__ __forceinline__ void set_sum16(int group, int i, int32_t sum) const {
    if (sums16 != nullptr) sums16[group * 8 + i] = sum;
  }
  __device__ __forceinline__ void set_sum32(int group, int i, int32_t sum) const {
    sums32[group * 4 + i] = sum;
  }
  __device__ __forceinline__ void set_scale(int group, int32_t sum, float scale) const {
    sums128[group] = sum;
    scales[group] = scale;
  }
};

/// Largest magnitude that a group may have, as bits: 32,639·2^100.
inline constexpr uint32_t kLargestActivation = (241u << 23) | 0x7efe00u;

/// Quantizes four consecutive columns per lane, one group of 128 per warp, without a look at
/// whether the group may be quantized: it may not if the result, the bits of its largest magnitude,
/// is above kLargestActivation. No branch, so that several groups overlap; stores nothing unless
/// `stores`.
template <typename Target>
__device__ __forceinline__ uint32_t quantize_group_unchecked(const float (&y)[4], int group,
                                                             int lane, const Target& out,
                                                             bool stores = true) {
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) top = max(top, __float_as_uint(y[i]) & 0x7fffffffu);
  top = __reduce_max_sync(0xffffffffu, top);
  const int e = min(100, block_exponent(__uint_as_float(top)));
  const float inverse = __uint_as_float(static_cast<uint32_t>(127 - e) << 23);
  uint32_t q[4], shifted[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // The product is exact, so that the sum is the product rounded to an integer; its low two bytes
    // are q's.
    q[i] = __float_as_uint(__fmaf_rn(y[i], inverse, 12582912.0f));
    shifted[i] = q[i] + 128;
  }
  // l is the low byte of q as it stands, h the second byte of q + 128.
  const uint32_t low =
      __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
  const uint32_t high = __byte_perm(__byte_perm(shifted[0], shifted[1], 0x0051),
                                    __byte_perm(shifted[2], shifted[3], 0x0051), 0x5410);
  int high_sum = __dp4a(static_cast<int>(high), 0x01010101, 0);
  int low_sum = __dp4a(static_cast<int>(low), 0x01010101, 0);
  if (stores) out.set_planes(group, lane, high, low);
#pragma unroll
  for (int mask = 1; mask <= 2; mask <<= 1) {
    high_sum += __shfl_xor_sync(0xffffffffu, high_sum, mask);
    low_sum += __shfl_xor_sync(0xffffffffu, low_sum, mask);
  }
  if (stores && lane % 4 == 0)
    out.set_sum16(group, lane / 4,
                  (high_sum & 0xffff) | static_cast<int>(static_cast<uint32_t>(low_sum) << 16));
  int sum = 256 * high_sum + low_sum;
  sum += __shfl_xor_sync(0xffffffffu, sum, 4);
  if (stores && lane % 8 == 0) out.set_sum32(group, lane / 8, sum);
  sum += __shfl_xor_sync(0xffffffffu, sum, 8);
  sum += __shfl_xor_sync(0xffffffffu, sum, 16);
  if (stores && lane == 0)
    out.set_scale(group, sum, __uint_as_float(static_cast<uint32_t>(127 + e) << 23));
  return top;
}

/// The larger of two magnitudes as bits; of a NaN, one above all numbers.
__device__ __forceinline__ float larger_magnitude(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(fabsf(a)), "f"(fabsf(b)));
  return c;
}

/// The same for four groups at once, from `first_group` on: eight lanes have a group each, lane
/// h·4 + t of them words t, t + 4, t + 8 and t + 12 of its half h, a word being four columns: what
/// one lane stores of a plane is one 16-byte word. Gives the largest magnitude of the lane's group.
/// A quarter of the instructions for each group. Without out.sums16 these are left out.
__device__ __forceinline__ uint32_t quantize_four_groups(const float (&y)[4][4], int first_group,
                                                         int lane, const GroupTarget& out,
                                                         int groups) {
  const int group = first_group + lane / 8, t = lane % 4, half = lane / 4 % 2;
  const bool stores = group < groups;
  float largest = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = larger_magnitude(largest, y[k][i]);
#pragma unroll
  for (int mask = 1; mask <= 4; mask <<= 1)
    largest = larger_magnitude(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
  const uint32_t top = __float_as_uint(largest);
  const int e = min(100, block_exponent(largest));
  const float inverse = __uint_as_float(static_cast<uint32_t>(127 - e) << 23);
  uint32_t high[4], low[4];
  int both[4];  // sums of four columns: 65,536 · high + low
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t q[4], shifted[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      q[i] = __float_as_uint(__fmaf_rn(y[k][i], inverse, 12582912.0f));
      shifted[i] = q[i] + 128;
    }
    low[k] = __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
    high[k] = __byte_perm(__byte_perm(shifted[0], shifted[1], 0x0051),
                          __byte_perm(shifted[2], shifted[3], 0x0051), 0x5410);
    both[k] = __dp4a(static_cast<int>(low[k]), 0x01010101,
                     65536 * __dp4a(static_cast<int>(high[k]), 0x01010101, 0));
  }
  if (stores) {
    uint4* planes = reinterpret_cast<uint4*>(out.planes) + group * 16 + half * 8 + t;
    planes[0] = make_uint4(high[0], high[1], high[2], high[3]);
    planes[4] = make_uint4(low[0], low[1], low[2], low[3]);
  }
  // Lane t keeps word t's sum over the four lanes of its half: 16 columns.
  const bool upper = (t & 2) != 0, odd = (t & 1) != 0;
  const int kept0 = upper ? both[2] : both[0], kept1 = upper ? both[3] : both[1];
  const int sent0 = upper ? both[0] : both[2], sent1 = upper ? both[1] : both[3];
  const int two0 = kept0 + __shfl_xor_sync(0xffffffffu, sent0, 2);
  const int two1 = kept1 + __shfl_xor_sync(0xffffffffu, sent1, 2);
  const int packed = (odd ? two1 : two0) + __shfl_xor_sync(0xffffffffu, odd ? two0 : two1, 1);
  const int low_sum = static_cast<int16_t>(packed & 0xffff), high_sum = (packed - low_sum) >> 16;
  const int sum16 = 256 * high_sum + low_sum;
  const int sum32 = sum16 + __shfl_xor_sync(0xffffffffu, sum16, 1);
  int sum128 = sum32 + __shfl_xor_sync(0xffffffffu, sum32, 2);
  sum128 += __shfl_xor_sync(0xffffffffu, sum128, 4);
  if (stores) {
    if (out.sums16 != nullptr)
      out.sums16[group * 8 + lane % 8] =
          (high_sum & 0xffff) | static_cast<int>(static_cast<uint32_t>(low_sum) << 16);
    if (!odd) out.sums32[group * 4 + lane % 8 / 2] = sum32;
    if (lane % 8 == 0) {
      out.sums128[group] = sum128;
      out.scales[group] = __uint_as_float(static_cast<uint32_t>(127 + e) << 23);
    }
  }
  return stores ? top : 0;
}

template <typename Target>
__device__ __forceinline__ void quantize_group(const float (&y)[4], int group, int lane,
                                               const Target& out, int32_t fault_op,
                                               DeviceFault* fault) {
  const uint32_t top = quantize_group_unchecked(y, group, lane, out);
  if (top > kLargestActivation && lane == 0)
    report_fault(fault, fault_op, group * kGroupColumns, __uint_as_float(top));
}

/// 1 / sqrt(mean(x²) + eps) of a row in shared memory, by all warps of the thread block. `partial`
/// holds one float per 256 columns. Ends with every thread holding the value.
__device__ __forceinline__ float inverse_rms(const float* x, int columns, float eps,
                                             float inverse_n, float* partial) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_warps = static_cast<int>(blockDim.x) / 32;
  const int n_blocks = (columns + 255) / 256;
  for (int block = warp; block < n_blocks; block += n_warps) {
    float acc = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int i = block * 256 + k * 32 + lane;
      if (i < columns) acc = __fmaf_rn(x[i], x[i], acc);
    }
    acc = fold_lanes(acc);
    if (lane == 0) partial[block] = acc;
  }
  __syncthreads();
  float total = partial[0];
  for (int block = 1; block < n_blocks; ++block) total = __fadd_rn(total, partial[block]);
  const float mean = __fmul_rn(total, inverse_n);
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

}  // namespace assay::cuda
