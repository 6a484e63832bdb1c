// linear() in AVX-512 (F, BW, DQ, VL, VNNI): lane = row, so no sum ever crosses lanes. Integer sums
// of pieces are exact; floats are folded in the order of arithmetic.md §3.
#if defined(__AVX512F__)
#include <immintrin.h>

#include "runtime/ops/linear_kernels.h"

#if defined(__clang__)
#define ASSAY_UNROLL _Pragma("unroll")
#else
#define ASSAY_UNROLL _Pragma("GCC unroll 32")
#endif
#define ASSAY_INLINE __attribute__((always_inline)) inline

namespace assay {
namespace {

constexpr int kMaxPanels = 32;
constexpr int kMaxSets = 32;        // per segment
constexpr int kChunkPairs = 4;      // pairs of tiles that go over the panels together
constexpr int kDirectTokens = 4;    // up to here codes are unpacked in registers, for each panel
constexpr int kGroupBytes8 = 2048;  // 128 columns of 16 rows, one byte per code

/// Scales of one segment of a tile, widened.
struct alignas(64) TileMeta {
  float scales[kMaxSets][kTileRows];
  float mins[kMaxSets][kTileRows];
  int32_t integers[kMaxSets][kTileRows];       // kZeros: zero points; kSuper: sub-scales
  int32_t min_pairs[kMaxSets / 2][kTileRows];  // kSuper: pairs of i16 sub-minima
};

/// What one kernel works on: one segment of R tiles and one panel.
struct Work {
  const MatrixLayout* matrix;
  const Panel* panel;
  const int32_t* activations;  // of the segment's first group
  const uint8_t* codes[2];
  const TileMeta* meta[2];
  int groups;
  int n_subs;     // pieces per group
  int set_shift;  // log2 of columns per scale
};

ASSAY_INLINE __m512i splat(const int32_t* x) { return _mm512_set1_epi32(*x); }
ASSAY_INLINE __m512 as_float_scale(const int32_t* x) {
  return _mm512_castsi512_ps(_mm512_set1_epi32(*x));
}

// Codes of quad q (0 … 3) of a block of 16 columns, one byte each.

struct Nibbles {
  static constexpr int kBlockBytes = 128;
  static ASSAY_INLINE __m512i quad(const uint8_t* block, int q) {
    const __m512i unit = _mm512_load_si512(block + (q / 2) * 64);
    const __m512i mask = _mm512_set1_epi8(15);
    return _mm512_and_si512(q % 2 == 0 ? unit : _mm512_srli_epi32(unit, 4), mask);
  }
};

struct Sixes {
  static constexpr int kBlockBytes = 192;
  static ASSAY_INLINE __m512i quad(const uint8_t* block, int q) {
    const __m512i low = Nibbles::quad(block, q);
    const __m512i unit = _mm512_load_si512(block + 128);
    const __m512i mask = _mm512_set1_epi8(0x30);
    const __m512i high = q == 0   ? _mm512_slli_epi32(unit, 4)
                         : q == 1 ? _mm512_slli_epi32(unit, 2)
                         : q == 2 ? unit
                                  : _mm512_srli_epi32(unit, 2);
    return _mm512_ternarylogic_epi32(low, high, mask, 0xf8);  // low | (high & mask)
  }
};

struct Bytes {
  static constexpr int kBlockBytes = 256;
  static ASSAY_INLINE __m512i quad(const uint8_t* block, int q) {
    return _mm512_load_si512(block + q * 64);
  }
};

/// acc += the dot products of 4 codes and 4 activations per lane. In assembly because GCC 12 copies
/// accumulators around the intrinsic when many are alive, which costs half of the speed.
ASSAY_INLINE void add_dot(__m512i& acc, __m512i codes, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(x));
}

/// acc += the dot products of 2 words and 2 activations per lane.
ASSAY_INLINE void add_word_dot(__m512i& acc, __m512i words, __m512i x) {
  asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(words), "v"(x));
}

/// add_dot with one number for all lanes, as the instruction reads it from memory.
ASSAY_INLINE void add_dot_of(__m512i& acc, __m512i codes, const int32_t* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(codes), "m"(*x));
}

/// Panels come from the second-level cache; a turn of the loops below takes 48 bytes or so.
ASSAY_INLINE void prefetch_panel(const int32_t* x) {
  _mm_prefetch(reinterpret_cast<const char*>(x) + 768, _MM_HINT_T0);
}

/// Asks for the lines of a block that is so far ahead in the stream that the processor's own
/// prefetch, which ends with the page, may not have begun it.
template <int kBytes>
ASSAY_INLINE void fetch_ahead(const uint8_t* block) {
  ASSAY_UNROLL for (int i = 0; i < kBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(block) + 4096 + i, _MM_HINT_T0);
  }
}

/// h and l += the dot products of one quad: codes c, activations x (T, 2).
template <int R, int T>
ASSAY_INLINE void add_quad(const __m512i (&c)[R], const int32_t* x, __m512i (&h)[R][T],
                           __m512i (&l)[R][T]) {
  ASSAY_UNROLL for (int t = 0; t < T; ++t) {
    if constexpr (R == 1) {
      add_dot_of(h[0][t], c[0], x + 2 * t);
      add_dot_of(l[0][t], c[0], x + 2 * t + 1);
    } else {
      const __m512i xh = splat(x + 2 * t);
      const __m512i xl = splat(x + 2 * t + 1);
      ASSAY_UNROLL for (int r = 0; r < R; ++r) {
        add_dot(h[r][t], c[r], xh);
        add_dot(l[r][t], c[r], xl);
      }
    }
  }
}

/// h and l += the dot products of `blocks` blocks of 16 columns. `quads` (4·blocks, T, 2).
template <class Source, int R, int T>
ASSAY_INLINE void add_dots(const uint8_t* const (&codes)[R], int blocks, const int32_t* quads,
                           __m512i (&h)[R][T], __m512i (&l)[R][T]) {
  if constexpr (R * T > 8) {
    // Rolled: with so many accumulators alive, compilers turn an unrolled body into moves.
    static_assert(Source::kBlockBytes == 256);
#pragma GCC unroll 1
    for (int q = 0; q < 4 * blocks; ++q) {
      __m512i c[R];
      ASSAY_UNROLL for (int r = 0; r < R; ++r) c[r] = _mm512_load_si512(codes[r] + q * 64);
      prefetch_panel(quads + q * 2 * T);
      add_quad<R, T>(c, quads + q * 2 * T, h, l);
    }
    return;
  }
  for (int b = 0; b < blocks; ++b) {
    if constexpr (R == 1 && Source::kBlockBytes < 256) {  // bytes come in time without it
      fetch_ahead<Source::kBlockBytes>(codes[0] + b * Source::kBlockBytes);
    }
    ASSAY_UNROLL for (int q = 0; q < 4; ++q) {
      __m512i c[R];
      ASSAY_UNROLL for (int r = 0; r < R; ++r) {
        c[r] = Source::quad(codes[r] + b * Source::kBlockBytes, q);
      }
      add_quad<R, T>(c, quads + (b * 4 + q) * 2 * T, h, l);
    }
  }
}

template <int T>
ASSAY_INLINE void clear(__m512i (&x)[T]) {
  ASSAY_UNROLL for (int t = 0; t < T; ++t) x[t] = _mm512_setzero_si512();
}

/// 256·h + l: exact, |S| < 2^31.
ASSAY_INLINE __m512i join(__m512i h, __m512i l) {
  return _mm512_add_epi32(_mm512_slli_epi32(h, 8), l);
}

/// kGroup, kZeros and kAffine: one segment. sums (R, T, 16) receives the fold of the segment.
template <class Source, KernelFold kFold, int R, int T>
ASSAY_INLINE void fold_pieces(const Work& work, float* sums) {
  const int blocks = 8 / work.n_subs;  // of 16 columns per piece
  const Panel& panel = *work.panel;
  __m512 acc[R][T];
  ASSAY_UNROLL for (int r = 0; r < R; ++r) {
    ASSAY_UNROLL for (int t = 0; t < T; ++t) acc[r][t] = _mm512_setzero_ps();
  }
  const int32_t* x = work.activations;
  int piece = 0;
  for (int g = 0; g < work.groups; ++g, x += panel.group_stride) {
    for (int p = 0; p < work.n_subs; ++p, ++piece) {
      __m512i h[R][T], l[R][T];
      const uint8_t* codes[R];
      ASSAY_UNROLL for (int r = 0; r < R; ++r) {
        codes[r] = work.codes[r] + piece * blocks * Source::kBlockBytes;
        ASSAY_UNROLL for (int t = 0; t < T; ++t) {
          if constexpr (kFold == KernelFold::kGroup) {
            h[r][t] = splat(x + panel.aux + (p * T + t) * 2);
            l[r][t] = splat(x + panel.aux + (p * T + t) * 2 + 1);
          } else {
            h[r][t] = _mm512_setzero_si512();
            l[r][t] = _mm512_setzero_si512();
          }
        }
      }
      add_dots<Source, R, T>(codes, blocks, x + panel.quads + p * blocks * 8 * T, h, l);
      const int set = (piece * blocks * 16) >> work.set_shift;
      ASSAY_UNROLL for (int r = 0; r < R; ++r) {
        const __m512 w = _mm512_load_ps(work.meta[r]->scales[set]);
        ASSAY_UNROLL for (int t = 0; t < T; ++t) {
          const __m512 s = as_float_scale(x + t);
          __m512i sum = join(h[r][t], l[r][t]);
          if constexpr (kFold == KernelFold::kZeros) {
            const __m512i z = _mm512_load_si512(work.meta[r]->integers[set]);
            const __m512i q = splat(x + panel.aux + p * T + t);
            sum = _mm512_sub_epi32(sum, _mm512_mullo_epi32(z, q));
          }
          acc[r][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(w, s), acc[r][t]);
          if constexpr (kFold == KernelFold::kAffine) {
            const __m512 m = _mm512_load_ps(work.meta[r]->mins[set]);
            const __m512 q = as_float_scale(x + panel.aux + p * T + t);
            acc[r][t] = _mm512_fmadd_ps(q, _mm512_mul_ps(m, s), acc[r][t]);
          }
        }
      }
    }
  }
  ASSAY_UNROLL for (int r = 0; r < R; ++r) {
    ASSAY_UNROLL for (int t = 0; t < T; ++t) _mm512_store_ps(sums + (r * T + t) * 16, acc[r][t]);
  }
}

/// Value terms of kSuper over one half super-block: F = fma(256, float(H), float(L)).
/// kExact: H and L are summed in fp32, which holds them exactly; else in int32.
template <class Source, bool kExact, int R, int T>
ASSAY_INLINE void add_sub_blocks(const Work& work, const int32_t* x, int group,
                                 __m512 (&value)[R][T]) {
  const int blocks = 8 / work.n_subs;
  const Panel& panel = *work.panel;
  __m512i hs[R][T], ls[R][T];  // kExact: fp32 bits
  ASSAY_UNROLL for (int r = 0; r < R; ++r) {
    clear(hs[r]);
    clear(ls[r]);
  }
  for (int p = 0; p < work.n_subs; ++p) {
    const int sub = group * work.n_subs + p;
    __m512i h[R][T], l[R][T];
    const uint8_t* codes[R];
    ASSAY_UNROLL for (int r = 0; r < R; ++r) {
      codes[r] = work.codes[r] + sub * blocks * Source::kBlockBytes;
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        h[r][t] = splat(x + panel.aux + (p * T + t) * 2);
        l[r][t] = splat(x + panel.aux + (p * T + t) * 2 + 1);
      }
    }
    add_dots<Source, R, T>(codes, blocks, x + panel.quads + p * blocks * 8 * T, h, l);
    ASSAY_UNROLL for (int r = 0; r < R; ++r) {
      const __m512i scale = _mm512_load_si512(work.meta[r]->integers[sub]);
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        if constexpr (kExact) {
          const __m512 s = _mm512_castsi512_ps(scale);
          hs[r][t] = _mm512_castps_si512(
              _mm512_fmadd_ps(_mm512_cvtepi32_ps(h[r][t]), s, _mm512_castsi512_ps(hs[r][t])));
          ls[r][t] = _mm512_castps_si512(
              _mm512_fmadd_ps(_mm512_cvtepi32_ps(l[r][t]), s, _mm512_castsi512_ps(ls[r][t])));
        } else {
          hs[r][t] = _mm512_add_epi32(hs[r][t], _mm512_mullo_epi32(h[r][t], scale));
          ls[r][t] = _mm512_add_epi32(ls[r][t], _mm512_mullo_epi32(l[r][t], scale));
        }
      }
    }
  }
  const __m512 k256 = _mm512_set1_ps(256.0f);
  ASSAY_UNROLL for (int r = 0; r < R; ++r) {
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      const __m512 high = kExact ? _mm512_castsi512_ps(hs[r][t]) : _mm512_cvtepi32_ps(hs[r][t]);
      const __m512 low = kExact ? _mm512_castsi512_ps(ls[r][t]) : _mm512_cvtepi32_ps(ls[r][t]);
      value[r][t] = _mm512_fmadd_ps(k256, high, low);
    }
  }
}

/// Σ min_sub · Q_sub over one half super-block.
template <int T>
ASSAY_INLINE void sum_minima(const Work& work, const int32_t* x, int group, int r,
                             __m512i (&sum)[T]) {
  const int n_pairs = (work.n_subs + 1) / 2;
  __m512i h[T], l[T];
  clear(h);
  clear(l);
  for (int p = 0; p < n_pairs; ++p) {
    const __m512i pair = _mm512_load_si512(work.meta[r]->min_pairs[group * n_pairs + p]);
    const int32_t* q = x + work.panel->mins + p * T * 2;
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      h[t] = _mm512_dpwssd_epi32(h[t], pair, splat(q + 2 * t));
      l[t] = _mm512_dpwssd_epi32(l[t], pair, splat(q + 2 * t + 1));
    }
  }
  ASSAY_UNROLL for (int t = 0; t < T; ++t) sum[t] = join(h[t], l[t]);
}

template <class Source, bool kExact, int R, int T>
ASSAY_INLINE void fold_super_blocks(const Work& work, float* sums) {
  const Panel& panel = *work.panel;
  __m512 acc[R][T];
  ASSAY_UNROLL for (int r = 0; r < R; ++r) {
    ASSAY_UNROLL for (int t = 0; t < T; ++t) acc[r][t] = _mm512_setzero_ps();
  }
  const int32_t* x = work.activations;
  for (int g = 0; g < work.groups; ++g, x += panel.group_stride) {
    __m512 value[R][T];
    add_sub_blocks<Source, kExact, R, T>(work, x, g, value);
    const int set = (g * 128) >> work.set_shift;
    ASSAY_UNROLL for (int r = 0; r < R; ++r) {
      const __m512 d = _mm512_load_ps(work.meta[r]->scales[set]);
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        const __m512 s = as_float_scale(x + t);
        acc[r][t] = _mm512_fmadd_ps(value[r][t], _mm512_mul_ps(d, s), acc[r][t]);
      }
      if (work.matrix->has_mins) {
        const __m512 dmin = _mm512_load_ps(work.meta[r]->mins[set]);
        __m512i m[T];
        sum_minima<T>(work, x, g, r, m);
        ASSAY_UNROLL for (int t = 0; t < T; ++t) {
          const __m512 s = as_float_scale(x + t);
          // fma(M, −dmin·s, acc): rounding is symmetric, so the sign may move.
          acc[r][t] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(m[t]), _mm512_mul_ps(dmin, s), acc[r][t]);
        }
      }
    }
  }
  ASSAY_UNROLL for (int r = 0; r < R; ++r) {
    ASSAY_UNROLL for (int t = 0; t < T; ++t) _mm512_store_ps(sums + (r * T + t) * 16, acc[r][t]);
  }
}

/// The words of one quad of kFloat, 256·h + l + 128 with h and l its planes: columns 0 and 2 of
/// each lane, and 1 and 3. `high` and `low`: the planes plus 128.
struct WordPairs {
  __m512i even, odd;
  ASSAY_INLINE WordPairs(__m512i high, __m512i low) {
    const __m512i low_bytes = _mm512_set1_epi16(0x00ff);
    const __m512i h = _mm512_xor_si512(high, _mm512_set1_epi8(-128));
    // The second where the mask has ones, else the first; and the other way round.
    even = _mm512_ternarylogic_epi32(_mm512_slli_epi16(h, 8), low, low_bytes, 0xd8);
    odd = _mm512_ternarylogic_epi32(_mm512_srli_epi16(low, 8), h, low_bytes, 0xe4);
  }
};

/// kFloat: F = fma(65536, F(HH), fma(256, F(HL + LH), F(LL))) from two sums, modulo 2^32: of
/// products of whole numbers S = 65536·HH + T, and HH. As F(HL + LH) and F(LL) are exact and T =
/// 256·(HL + LH)
/// + LL < 2^31, the inner fma is F(T).
template <int R, int T>
ASSAY_INLINE void fold_floats(const Work& work, float* sums) {
  const Panel& panel = *work.panel;
  __m512 acc[R][T];
  ASSAY_UNROLL for (int r = 0; r < R; ++r) {
    ASSAY_UNROLL for (int t = 0; t < T; ++t) acc[r][t] = _mm512_setzero_ps();
  }
  const int32_t* x = work.activations;
  for (int g = 0; g < work.groups; ++g, x += panel.group_stride) {
    __m512i hh[R][T], whole[R][T];
    ASSAY_UNROLL for (int r = 0; r < R; ++r) {
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        hh[r][t] = splat(x + panel.aux + 3 * t);
        whole[r][t] = join(hh[r][t], splat(x + panel.aux + 3 * t + 2));
      }
    }
    const int32_t* quads = x + panel.quads;
    for (int q = 0; q < kGroupQuads; ++q, quads += 3 * T) {
      if constexpr (R > 1) prefetch_panel(quads);
      __m512i high[R], even[R], odd[R];
      ASSAY_UNROLL for (int r = 0; r < R; ++r) {
        const uint8_t* unit = work.codes[r] + (g * kGroupQuads + q) * 128;
        high[r] = _mm512_load_si512(unit);
        const WordPairs words(high[r], _mm512_load_si512(unit + 64));
        even[r] = words.even;
        odd[r] = words.odd;
      }
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        const __m512i x_even = splat(quads + 3 * t);
        const __m512i x_odd = splat(quads + 3 * t + 1);
        const __m512i x_high = splat(quads + 3 * t + 2);
        ASSAY_UNROLL for (int r = 0; r < R; ++r) {
          add_word_dot(whole[r][t], even[r], x_even);
          add_word_dot(whole[r][t], odd[r], x_odd);
          add_dot(hh[r][t], high[r], x_high);
        }
      }
    }
    ASSAY_UNROLL for (int r = 0; r < R; ++r) {
      const __m512 w = _mm512_load_ps(work.meta[r]->scales[(g * 128) >> work.set_shift]);
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        const __m512 s = as_float_scale(x + t);
        const __m512i rest = _mm512_sub_epi32(whole[r][t], _mm512_slli_epi32(hh[r][t], 16));
        const __m512 value = _mm512_fmadd_ps(_mm512_set1_ps(65536.0f), _mm512_cvtepi32_ps(hh[r][t]),
                                             _mm512_cvtepi32_ps(rest));
        acc[r][t] = _mm512_fmadd_ps(value, _mm512_mul_ps(w, s), acc[r][t]);
      }
    }
  }
  ASSAY_UNROLL for (int r = 0; r < R; ++r) {
    ASSAY_UNROLL for (int t = 0; t < T; ++t) _mm512_store_ps(sums + (r * T + t) * 16, acc[r][t]);
  }
}

using SegmentKernel = void (*)(const Work&, float*);

template <class Source, KernelFold kFold, bool kExact, int R, int T>
__attribute__((noinline)) void segment_kernel(const Work& work, float* sums) {
  if constexpr (kFold == KernelFold::kFloat) {
    fold_floats<R, T>(work, sums);
  } else if constexpr (kFold == KernelFold::kSuper) {
    fold_super_blocks<Source, kExact, R, T>(work, sums);
  } else {
    fold_pieces<Source, kFold, R, T>(work, sums);
  }
}

template <class Source, KernelFold kFold, bool kExact, int R, int T>
SegmentKernel for_tokens(int n_tokens) {
  if (n_tokens == T) return &segment_kernel<Source, kFold, kExact, R, T>;
  if constexpr (T > 1) return for_tokens<Source, kFold, kExact, R, T - 1>(n_tokens);
  return nullptr;
}

/// The kernel for R tiles and n_tokens ≤ T tokens whose codes lie as `Source` says.
template <class Source, int R, int T>
SegmentKernel for_fold(const MatrixLayout& matrix, int n_tokens) {
  switch (matrix.fold) {
    case KernelFold::kGroup:
      return for_tokens<Source, KernelFold::kGroup, false, R, T>(n_tokens);
    case KernelFold::kZeros:
      return for_tokens<Source, KernelFold::kZeros, false, R, T>(n_tokens);
    case KernelFold::kAffine:
      return for_tokens<Source, KernelFold::kAffine, false, R, T>(n_tokens);
    case KernelFold::kSuper:
      return matrix.exact_floats ? for_tokens<Source, KernelFold::kSuper, true, R, T>(n_tokens)
                                 : for_tokens<Source, KernelFold::kSuper, false, R, T>(n_tokens);
    case KernelFold::kFloat:
      break;
  }
  return nullptr;
}

SegmentKernel direct_kernel(const MatrixLayout& matrix, int n_tokens) {
  if (matrix.fold == KernelFold::kFloat) {
    return for_tokens<Bytes, KernelFold::kFloat, false, 1, kDirectTokens>(n_tokens);
  }
  if (matrix.code_bits == 4) return for_fold<Nibbles, 1, kDirectTokens>(matrix, n_tokens);
  if (matrix.code_bits == 6) return for_fold<Sixes, 1, kDirectTokens>(matrix, n_tokens);
  return for_fold<Bytes, 1, kDirectTokens>(matrix, n_tokens);
}

SegmentKernel blocked_kernel(const MatrixLayout& matrix, int n_tokens) {
  if (matrix.fold == KernelFold::kFloat) {
    return for_tokens<Bytes, KernelFold::kFloat, false, 2, kDirectTokens>(n_tokens);
  }
  return for_fold<Bytes, 2, kMaxPanelTokens>(matrix, n_tokens);
}

void widen_scales(ScaleType type, const uint8_t* data, int n_sets, float (*out)[kTileRows]) {
  for (int i = 0; i < n_sets; ++i) {
    __m512 values;
    if (type == ScaleType::kF32) {
      values = _mm512_load_ps(data + i * 64);
    } else {
      const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i * 32));
      values = type == ScaleType::kF16
                   ? _mm512_cvtph_ps(bits)
                   : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
    _mm512_store_ps(out[i], values);
  }
}

ASSAY_INLINE __m128i load16(const uint8_t* data) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(data));
}

void widen_sub_blocks(const MatrixLayout& matrix, const SegmentLayout& layout,
                      const uint8_t* segment, TileMeta& meta) {
  const int n_subs = layout.groups * 128 / matrix.piece;
  for (int i = 0; i < n_subs; ++i) {
    __m512i scale = _mm512_cvtepi8_epi32(load16(segment + layout.sub_scales + i * 16));
    if (matrix.exact_floats) scale = _mm512_castps_si512(_mm512_cvtepi32_ps(scale));
    _mm512_store_si512(meta.integers[i], scale);
  }
  if (!matrix.has_mins) return;
  const int per_group = 128 / matrix.piece;
  const int n_pairs = (per_group + 1) / 2;
  for (int g = 0; g < layout.groups; ++g) {
    for (int p = 0; p < n_pairs; ++p) {
      const uint8_t* mins = segment + layout.sub_mins + (g * per_group + 2 * p) * 16;
      const __m512i first =
          _mm512_and_si512(_mm512_cvtepi8_epi32(load16(mins)), _mm512_set1_epi32(0xffff));
      const __m512i second = 2 * p + 1 < per_group
                                 ? _mm512_slli_epi32(_mm512_cvtepi8_epi32(load16(mins + 16)), 16)
                                 : _mm512_setzero_si512();
      _mm512_store_si512(meta.min_pairs[g * n_pairs + p], _mm512_or_si512(first, second));
    }
  }
}

void widen_meta(const MatrixLayout& matrix, const SegmentLayout& layout, const uint8_t* segment,
                TileMeta& meta) {
  widen_scales(matrix.scale_type, segment + layout.scales, layout.sets, meta.scales);
  if (matrix_has_mins(matrix)) {
    widen_scales(matrix.scale_type, segment + layout.mins, layout.sets, meta.mins);
  }
  if (matrix.fold == KernelFold::kZeros) {
    for (int i = 0; i < layout.sets; ++i) {
      _mm512_store_si512(meta.integers[i],
                         _mm512_cvtepu8_epi32(load16(segment + layout.zeros + i * 16)));
    }
  }
  if (matrix.fold == KernelFold::kSuper) widen_sub_blocks(matrix, layout, segment, meta);
}

/// Codes of one segment as bytes.
template <class Source>
void unpack(const uint8_t* codes, int blocks, uint8_t* out) {
  for (int b = 0; b < blocks; ++b) {
    ASSAY_UNROLL for (int q = 0; q < 4; ++q) {
      _mm512_store_si512(out + b * 256 + q * 64, Source::quad(codes + b * Source::kBlockBytes, q));
    }
  }
}

/// total (R, T, 16) becomes or gets added `sums`.
void add_segment(bool first, const float* sums, int n, float* total) {
  for (int i = 0; i < n; i += 16) {
    const __m512 sum = _mm512_load_ps(sums + i);
    _mm512_store_ps(total + i, first ? sum : _mm512_add_ps(_mm512_load_ps(total + i), sum));
  }
}

/// Writes one tile of a panel: total (T, 16). Returns whether a sum is not finite.
bool write_tile(const LinearCall& call, int64_t tile, const Panel& panel, const float* total) {
  const int64_t row = tile * kTileRows;
  const int64_t left = call.matrix->rows - row;
  const auto mask = static_cast<__mmask16>(left >= kTileRows ? 0xffff : (1 << left) - 1);
  const __m512 bias =
      call.bias != nullptr ? _mm512_maskz_loadu_ps(mask, call.bias + row) : _mm512_setzero_ps();
  __mmask16 bad = 0;
  for (int t = 0; t < panel.n_tokens; ++t) {
    __m512 y = _mm512_load_ps(total + t * 16);
    bad = static_cast<__mmask16>(bad | _mm512_mask_fpclass_ps_mask(mask, y, 0x99));
    if (call.bias != nullptr) y = _mm512_add_ps(y, bias);
    _mm512_mask_storeu_ps(call.out + (panel.first_token + t) * call.out_stride + row, mask, y);
  }
  return bad != 0;
}

/// Few tokens: codes go from memory to registers, one tile after another.
bool run_direct(const LinearCall& call, int64_t tile_begin, int64_t tile_end) {
  const MatrixLayout& matrix = *call.matrix;
  const Panel& panel = call.panels[0];
  const SegmentKernel kernel = direct_kernel(matrix, panel.n_tokens);
  alignas(64) float sums[kDirectTokens * 16];
  alignas(64) float total[kDirectTokens * 16];
  TileMeta meta;
  Work work = {};
  work.matrix = &matrix;
  work.panel = &panel;
  work.n_subs = 128 / matrix.piece;
  work.set_shift = log2_exact(matrix.set_columns);
  bool bad = false;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const uint8_t* segment = matrix.data + tile * matrix.tile_bytes;
    for (int64_t s = 0; s < matrix.n_segments; ++s, segment += matrix.full.bytes) {
      const SegmentLayout& layout = segment_layout(matrix, s);
      widen_meta(matrix, layout, segment, meta);
      work.groups = layout.groups;
      work.activations = panel_segment(panel, s);
      work.codes[0] = segment + layout.codes;
      work.meta[0] = &meta;
      kernel(work, sums);
      add_segment(s == 0, sums, panel.n_tokens * 16, total);
    }
    bad = write_tile(call, tile, panel, total) || bad;
  }
  return bad;
}

/// One segment of two tiles as the kernels read it: codes as bytes, scales widened.
struct PairSegment {
  alignas(64) uint8_t unpacked[2][kSegmentGroups * kGroupBytes8];
  TileMeta meta[2];

  void load(const MatrixLayout& matrix, int64_t tile, int n_tiles, int64_t segment, Work& work) {
    const SegmentLayout& layout = segment_layout(matrix, segment);
    work.groups = layout.groups;
    for (int r = 0; r < 2; ++r) {
      // A tile without partner is computed twice.
      const int64_t index = r < n_tiles ? tile + r : tile;
      const uint8_t* data = matrix.data + index * matrix.tile_bytes + segment * matrix.full.bytes;
      widen_meta(matrix, layout, data, meta[r]);
      work.meta[r] = &meta[r];
      work.codes[r] = data + layout.codes;
      if (matrix.code_bits == 4) {
        unpack<Nibbles>(work.codes[r], layout.groups * 8, unpacked[r]);
        work.codes[r] = unpacked[r];
      } else if (matrix.code_bits == 6) {
        unpack<Sixes>(work.codes[r], layout.groups * 8, unpacked[r]);
        work.codes[r] = unpacked[r];
      }
    }
  }
};

/// Many tokens. A segment of two tiles is unpacked once and used by every panel while it lies in
/// the first-level cache; the same segment of every panel stays in the second-level cache for all
/// tiles of a chunk.
bool run_blocked(const LinearCall& call, int64_t tile_begin, int64_t tile_end) {
  const MatrixLayout& matrix = *call.matrix;
  alignas(64) float totals[kChunkPairs][kMaxPanels][2 * kMaxPanelTokens * 16];
  alignas(64) float sums[2 * kMaxPanelTokens * 16];
  PairSegment pair;
  Work work = {};
  work.matrix = &matrix;
  work.n_subs = 128 / matrix.piece;
  work.set_shift = log2_exact(matrix.set_columns);
  bool bad = false;
  for (int64_t chunk = tile_begin; chunk < tile_end; chunk += 2 * kChunkPairs) {
    const int64_t chunk_end =
        chunk + 2 * kChunkPairs < tile_end ? chunk + 2 * kChunkPairs : tile_end;
    for (int64_t s = 0; s < matrix.n_segments; ++s) {
      for (int64_t tile = chunk; tile < chunk_end; tile += 2) {
        pair.load(matrix, tile, tile + 1 < chunk_end ? 2 : 1, s, work);
        for (int64_t i = 0; i < call.n_panels; ++i) {
          const Panel& panel = call.panels[i];
          work.panel = &panel;
          work.activations = panel_segment(panel, s);
          blocked_kernel(matrix, panel.n_tokens)(work, sums);
          add_segment(s == 0, sums, 2 * panel.n_tokens * 16, totals[(tile - chunk) / 2][i]);
        }
      }
    }
    for (int64_t tile = chunk; tile < chunk_end; ++tile) {
      for (int64_t i = 0; i < call.n_panels; ++i) {
        const Panel& panel = call.panels[i];
        const float* total =
            totals[(tile - chunk) / 2][i] + (tile - chunk) % 2 * panel.n_tokens * 16;
        bad = write_tile(call, tile, panel, total) || bad;
      }
    }
  }
  return bad;
}

bool run(const LinearCall& call, int64_t tile_begin, int64_t tile_end) {
  if (call.n_panels == 1 && call.panels[0].n_tokens <= kDirectTokens) {
    return run_direct(call, tile_begin, tile_end);
  }
  return run_blocked(call, tile_begin, tile_end);
}

constexpr LinearKernels kKernels = {kMaxPanelTokens, kDirectTokens, kMaxPanels, false, true, &run};

}  // namespace

const LinearKernels& linear_kernels_avx512() { return kKernels; }

}  // namespace assay
#endif
