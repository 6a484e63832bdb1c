#pragma once

#include "runtime/ops/common_cuda.cuh"

// The arithmetic of one group of 128 columns for 16 rows, shared by the vector and the matrix
// kernel.

namespace assay::cuda {

template <MatrixKind kKind>
inline constexpr int kWords = words_per_group(kKind) / 32;  // 16-byte words per lane and group

/// Groups whose codes a lane loads at once: at most 32 registers.
template <MatrixKind kKind>
inline constexpr int kQuantumGroups = kWords<kKind> <= 2 ? 4 : (kWords<kKind> <= 4 ? 2 : 1);

/// Operands of mma for block j of 32 columns, from the codes of one group. kHighInPlace: where
/// has_block_pairs(), those of odd blocks are sixteenfold.
template <MatrixKind kKind, bool kHighInPlace = false>
__device__ __forceinline__ void code_operands(const uint4* words, int j, uint32_t (&a)[4]) {
  const auto component = [](const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  };
  if constexpr (kKind == MatrixKind::kGroup8 || kKind == MatrixKind::kFloat16) {
    const uint4& first = words[j / 2];
    const uint4& second = words[2 + j / 2];
    a[0] = component(first, (j & 1) * 2);
    a[2] = component(first, (j & 1) * 2 + 1);
    a[1] = component(second, (j & 1) * 2);
    a[3] = component(second, (j & 1) * 2 + 1);
  } else if constexpr (has_block_pairs(kKind)) {
    const int shift = kHighInPlace ? 0 : (j & 1) * 4;
    const uint32_t mask = kHighInPlace && (j & 1) ? 0xf0f0f0f0u : 0x0f0f0f0fu;
    a[0] = (component(words[0], j / 2 * 2) >> shift) & mask;
    a[2] = (component(words[0], j / 2 * 2 + 1) >> shift) & mask;
    a[1] = (component(words[1], j / 2 * 2) >> shift) & mask;
    a[3] = (component(words[1], j / 2 * 2 + 1) >> shift) & mask;
  } else {
    static_assert(kKind == MatrixKind::kSuper6);
    const uint32_t first = component(words[0], j), second = component(words[1], j);
    const uint32_t high_first = component(words[2], j / 2),
                   high_second = component(words[2], 2 + j / 2);
    const int shift = (j & 1) * 4;
    a[0] = (first & 0x0f0f0f0fu) | ((high_first >> shift) & 0x03030303u) << 4;
    a[2] = ((first >> 4) & 0x0f0f0f0fu) | ((high_first >> (shift + 2)) & 0x03030303u) << 4;
    a[1] = (second & 0x0f0f0f0fu) | ((high_second >> shift) & 0x03030303u) << 4;
    a[3] = ((second >> 4) & 0x0f0f0f0fu) | ((high_second >> (shift + 2)) & 0x03030303u) << 4;
  }
}

/// What a token contributes to the fold of one group.
struct GroupInput {
  float scale;
  int32_t sum128;
  int4 sums32;        // pieces of 32 and minima
  int32_t sums16[8];  // kSuper6: high | low << 16
};

__device__ __forceinline__ int component_of(const int4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ int byte_of(const uint32_t* words, int i) {
  return static_cast<int>((words[i / 4] >> (8 * (i & 3))) & 0xffu);
}

/// Scales of one group for the lane's two rows, decoded.
template <MatrixKind kKind, int kPieces>
struct GroupWeights {
  float scale[2][kPieces];
  float minimum[2][kPieces];  // kAffine4; kSuper4: dmin
  int zero[2][kPieces];       // kGroup*
  uint32_t sub[2][2];         // kSuper4: 4 × 6 bits of sub-scales, of minima; kSuper6: 8 × int8
};

/// Numbers at … at + kPieces − 1 of a header, each 8 or 16 bits, in one load.
template <typename T, int kPieces>
__device__ __forceinline__ void load_pieces(const void* numbers, int at, uint32_t (&to)[kPieces]) {
  const T* from = static_cast<const T*>(numbers) + at;
  constexpr int kBits = 8 * sizeof(T), kMask = (1 << kBits) - 1, kPerWord = 32 / kBits;
  if constexpr (kPieces * sizeof(T) < 4) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) to[i] = from[i];
  } else {
    uint32_t words[kPieces / kPerWord];
    if constexpr (kPieces == kPerWord) {
      words[0] = *reinterpret_cast<const uint32_t*>(from);
    } else {
      const uint2 both = *reinterpret_cast<const uint2*>(from);
      words[0] = both.x;
      words[1] = both.y;
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) to[i] = words[i / kPerWord] >> (i % kPerWord * kBits) & kMask;
  }
}

/// The scales of a group with a scale per piece, of rows `row` and row + 8: all loads before any is
/// decoded.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void read_pieces(const DeviceMatrix& m, const uint8_t* scales, int row,
                                            int inside, GroupWeights<kKind, kPieces>& to) {
  const uint8_t* extra = scales + m.extra_at;
  const int at[2] = {(row * kSegmentGroups + inside) * kPieces,
                     ((row + 8) * kSegmentGroups + inside) * kPieces};
  uint32_t zeros[2][kPieces];
  if constexpr (kKind != MatrixKind::kAffine4) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kPieces; ++i) zeros[half][i] = static_cast<uint32_t>(m.zero_constant);
    if (m.zero_constant < 0)
#pragma unroll
      for (int half = 0; half < 2; ++half) load_pieces<uint8_t>(extra, at[half], zeros[half]);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kPieces; ++i) to.zero[half][i] = static_cast<int>(zeros[half][i]);
  }
  if (kKind != MatrixKind::kAffine4 && m.scale_type == ScaleType::kF32) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        to.scale[half][i] = reinterpret_cast<const float*>(scales)[at[half] + i];
    return;
  }
  uint32_t bits[2][kPieces], minima[2][kPieces];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    load_pieces<uint16_t>(scales, at[half], bits[half]);
    if constexpr (kKind == MatrixKind::kAffine4)
      load_pieces<uint16_t>(extra, at[half], minima[half]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      to.scale[half][i] = scale_value(bits[half][i], m.scale_type);
      if constexpr (kKind == MatrixKind::kAffine4)
        to.minimum[half][i] = scale_value(minima[half][i], m.scale_type);
    }
}

/// Scales of group `inside` of a unit for rows `row` and row + 8, decoded from the unit's header.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void read_weights(const DeviceMatrix& m, const uint8_t* scales, int row,
                                             int inside, GroupWeights<kKind, kPieces>& to) {
  if constexpr (kKind == MatrixKind::kFloat16) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = (row + 8 * half) * 4 + inside;
      to.scale[half][0] = __uint_as_float(
          static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(scales)[at]) << 16);
    }
  } else if constexpr (kKind == MatrixKind::kSuper4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 super = reinterpret_cast<const uint4*>(scales)[(row + 8 * half) * 2 + inside / 2];
      to.scale[half][0] = scale_value(super.x & 0xffffu, ScaleType::kF16);
      to.minimum[half][0] = scale_value(super.x >> 16, ScaleType::kF16);
      const bool second = inside & 1;
      to.sub[half][0] = second ? super.w : super.y;
      to.sub[half][1] =
          second ? (super.y >> 24) | ((super.z >> 24) << 8) | ((super.w >> 24) << 16) : super.z;
    }
  } else if constexpr (kKind == MatrixKind::kSuper6) {
    const auto* d = reinterpret_cast<const uint16_t*>(scales + m.extra_at);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 8 * half;
      const uint2 sub = reinterpret_cast<const uint2*>(scales)[r * 4 + inside];
      to.sub[half][0] = sub.x;
      to.sub[half][1] = sub.y;
      to.scale[half][0] = scale_value(d[r * 2 + inside / 2], ScaleType::kF16);
    }
  } else {
    read_pieces<kKind, kPieces>(m, scales, row, inside, to);
  }
}

/// Exact integer sums of one group: rows r and r + 8 against the two planes of the lane's token.
/// Where has_block_pairs(), even and odd blocks have sums of their own, those of odd ones
/// sixteenfold.
template <MatrixKind kKind, int kPieces>
struct GroupSums {
  static constexpr int kCount = kKind == MatrixKind::kSuper4    ? 4
                                : has_block_pairs(kKind)        ? (kPieces == 1 ? 2 : 4)
                                : kKind == MatrixKind::kSuper6  ? 8
                                : kKind == MatrixKind::kFloat16 ? 2
                                                                : kPieces;
  int c[kCount][4];
};

template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void clear_sums(GroupSums<kKind, kPieces>& sums) {
#pragma unroll
  for (int i = 0; i < GroupSums<kKind, kPieces>::kCount; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k) sums.c[i][k] = 0;
}

/// Adds the products of the codes of one group and the operand words `b` of the lane's column.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void add_products(const uint4* words, const uint32_t (&b)[8],
                                             GroupSums<kKind, kPieces>& sums) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t a[4];
    code_operands<kKind, true>(words, j, a);
    if constexpr (kKind == MatrixKind::kFloat16) {
      mma_s8_s8(sums.c[0], a, b[2 * j], b[2 * j + 1]);
      code_operands<kKind>(words + 4, j, a);
      mma_s8_s8(sums.c[1], a, b[2 * j], b[2 * j + 1]);
    } else if constexpr (kKind == MatrixKind::kSuper6) {
      mma_u8_s8_k16(sums.c[2 * j], a[0], a[1], b[2 * j]);
      mma_u8_s8_k16(sums.c[2 * j + 1], a[2], a[3], b[2 * j + 1]);
    } else if constexpr (has_block_pairs(kKind)) {
      constexpr int kCount = GroupSums<kKind, kPieces>::kCount;
      mma_u8_s8(sums.c[j % kCount], a, b[2 * j], b[2 * j + 1]);
    } else {
      mma_u8_s8(sums.c[j * kPieces / 4], a, b[2 * j], b[2 * j + 1]);
    }
  }
}

/// Multiplies the codes of one group with the operand words `b` of the lane's token and plane.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void multiply_group(const uint4* words, const uint32_t (&b)[8],
                                               GroupSums<kKind, kPieces>& sums) {
  clear_sums(sums);
  add_products<kKind, kPieces>(words, b, sums);
}

/// Terms that one group adds to a row: (value, product of scales).
template <MatrixKind kKind, int kPieces>
inline constexpr int kTerms = kKind == MatrixKind::kSuper4    ? 2
                              : kKind == MatrixKind::kSuper6  ? 1
                              : kKind == MatrixKind::kAffine4 ? 2 * kPieces
                                                              : kPieces;

/// Calls emit(half, i, value, scale) for the terms of one group of 128 columns and rows r and
/// r + 8, in the order of arithmetic.md §3: acc = fma(value, scale, acc).
template <MatrixKind kKind, int kPieces, typename Emit>
__device__ __forceinline__ void group_terms(const GroupSums<kKind, kPieces>& sums,
                                            const GroupWeights<kKind, kPieces>& w,
                                            const GroupInput& x, const Emit& emit) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (kKind == MatrixKind::kFloat16) {
      const float high = __int2float_rn(sums.c[0][2 * half]);
      const float middle = __int2float_rn(sums.c[0][2 * half + 1] + sums.c[1][2 * half]);
      const float low = __int2float_rn(sums.c[1][2 * half + 1]);
      emit(half, 0, __fmaf_rn(65536.0f, high, __fmaf_rn(256.0f, middle, low)),
           __fmul_rn(w.scale[half][0], x.scale));
    } else if constexpr (kKind == MatrixKind::kSuper4) {
      int high = 0, low = 0, minimum = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // Sixteenfold where the sum is not; the value is divided by 16 again, exactly.
        const int sub_scale = static_cast<int>(j % 2 == 1 ? (w.sub[half][0] >> (6 * j)) & 63u
                                               : j == 0   ? (w.sub[half][0] << 4) & 0x3f0u
                                                        : (w.sub[half][0] >> (6 * j - 4)) & 0x3f0u);
        const int sub_min = static_cast<int>((w.sub[half][1] >> (6 * j)) & 63u);
        high += sub_scale * sums.c[j][2 * half];
        low += sub_scale * sums.c[j][2 * half + 1];
        minimum += sub_min * component_of(x.sums32, j);
      }
      emit(half, 0,
           __fmul_rn(0.0625f, __fmaf_rn(256.0f, __int2float_rn(high), __int2float_rn(low))),
           __fmul_rn(w.scale[half][0], x.scale));
      emit(half, 1, __int2float_rn(minimum), __fmul_rn(-w.minimum[half][0], x.scale));
    } else if constexpr (kKind == MatrixKind::kSuper6) {
      int high = 0, low = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int sub = static_cast<int8_t>(byte_of(w.sub[half], j));
        high += sub * (sums.c[j][2 * half] - 32 * static_cast<int16_t>(x.sums16[j] & 0xffff));
        low += sub * (sums.c[j][2 * half + 1] - 32 * (x.sums16[j] >> 16));
      }
      emit(half, 0, __fmaf_rn(256.0f, __int2float_rn(high), __int2float_rn(low)),
           __fmul_rn(w.scale[half][0], x.scale));
    } else {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int sum = kPieces == 1   ? x.sum128
                        : kPieces == 4 ? component_of(x.sums32, piece)
                                       : component_of(x.sums32, 2 * piece) +
                                             component_of(x.sums32, 2 * piece + 1);
        const float scale = __fmul_rn(w.scale[half][piece], x.scale);
        const auto planes = [&](int i) {
          return 256 * sums.c[i][2 * half] + sums.c[i][2 * half + 1];
        };
        int both;
        if constexpr (!has_block_pairs(kKind))
          both = planes(piece);
        else if constexpr (kPieces == 4)
          both = piece % 2 == 0 ? planes(piece) : planes(piece) >> 4;  // exact
        else
          both = planes(2 * piece) + (planes(2 * piece + 1) >> 4);
        if constexpr (kKind == MatrixKind::kAffine4) {
          emit(half, 2 * piece, __int2float_rn(both), scale);
          emit(half, 2 * piece + 1, __int2float_rn(sum),
               __fmul_rn(w.minimum[half][piece], x.scale));
        } else {
          emit(half, piece, __int2float_rn(both - w.zero[half][piece] * sum), scale);
        }
      }
    }
  }
}

/// Adds one group to the segment sums of rows r and r + 8. `worst` keeps the largest magnitude of a
/// product of scales.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void fold_group(const GroupSums<kKind, kPieces>& sums,
                                           const GroupWeights<kKind, kPieces>& w,
                                           const GroupInput& x, float (&acc)[2], uint32_t& worst) {
  group_terms<kKind, kPieces>(sums, w, x, [&](int half, int, float value, float scale) {
    worst = max(worst, __float_as_uint(scale) & 0x7fffffffu);
    acc[half] = __fmaf_rn(value, scale, acc[half]);
  });
}

/// Reads what the fold of this kind needs.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ GroupInput load_input(const float* scales, const int32_t* sums128,
                                                 const int32_t* sums32, const int32_t* sums16,
                                                 size_t group) {
  GroupInput x{};
  x.scale = scales[group];
  if constexpr (kKind == MatrixKind::kSuper6) {
    const int4 first = reinterpret_cast<const int4*>(sums16)[group * 2];
    const int4 second = reinterpret_cast<const int4*>(sums16)[group * 2 + 1];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x.sums16[i] = component_of(first, i);
      x.sums16[4 + i] = component_of(second, i);
    }
  } else if constexpr (kKind == MatrixKind::kSuper4 || kPieces > 1) {
    x.sums32 = reinterpret_cast<const int4*>(sums32)[group];
  } else if constexpr (kKind != MatrixKind::kFloat16) {
    x.sum128 = sums128[group];
  }
  return x;
}

/// Calls `body.template operator()<kind, pieces>()` for the kind of a matrix.
template <typename Body>
__device__ __forceinline__ void dispatch_kind(const DeviceMatrix& m, const Body& body) {
  switch (m.kind) {
    case MatrixKind::kGroup4:
      if (m.pieces == 1)
        body.template operator()<MatrixKind::kGroup4, 1>();
      else if (m.pieces == 2)
        body.template operator()<MatrixKind::kGroup4, 2>();
      else
        body.template operator()<MatrixKind::kGroup4, 4>();
      break;
    case MatrixKind::kGroup8:
      if (m.pieces == 1)
        body.template operator()<MatrixKind::kGroup8, 1>();
      else if (m.pieces == 2)
        body.template operator()<MatrixKind::kGroup8, 2>();
      else
        body.template operator()<MatrixKind::kGroup8, 4>();
      break;
    case MatrixKind::kAffine4:
      body.template operator()<MatrixKind::kAffine4, 4>();
      break;
    case MatrixKind::kSuper4:
      body.template operator()<MatrixKind::kSuper4, 1>();
      break;
    case MatrixKind::kSuper6:
      body.template operator()<MatrixKind::kSuper6, 1>();
      break;
    case MatrixKind::kFloat16:
      body.template operator()<MatrixKind::kFloat16, 1>();
      break;
  }
}

}  // namespace assay::cuda
