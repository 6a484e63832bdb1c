// linear() in AVX2, FMA and F16C: lane = row, a tile is two halves of 8 rows. One token goes over
// both halves together, so that its activations are read once; several go over one half at a time.
// Products go through vpmaddubsw, whose 16-bit sums must not saturate: with codes ≤ 15 four steps
// of 4 columns fit (4·2·15·128 < 2^15), with codes ≤ 63 two. Codes of 8 bits are taken as two
// nibbles where the planes must stay apart (kSuper, kFloat), else as 16-bit words times whole
// activations.
#if defined(__AVX2__)
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

constexpr int kMaxPanels = 64;
constexpr int kMaxSets = 32;
constexpr int kPanelTokens = 4;
constexpr int kPanelTokensFloat = 2;
constexpr int kHalf = 8;  // rows of a vector

/// Scales of one segment of a tile, widened.
struct alignas(64) TileMeta {
  float scales[kMaxSets][kTileRows];
  float mins[kMaxSets][kTileRows];
  // kZeros: zero points; kSuper: sub-scales, as both i16 of a pair
  int32_t integers[kMaxSets][kTileRows];
  // kSuper: pairs of i16 of two sub-blocks
  int32_t min_pairs[kMaxSets / 2][kTileRows];   // sub-minima
  int32_t zero_pairs[kMaxSets / 2][kTileRows];  // −zero · sub-scales
};

/// What one kernel works on: one half of one segment of a tile (both for one token), and one panel.
struct Work {
  const MatrixLayout* matrix;
  const Panel* panel;
  const int32_t* activations;  // of the segment's first group
  const uint8_t* codes;        // + 32 for the second half
  const TileMeta* meta;
  int half;  // 0 or 8: first lane
  int groups;
  int n_subs;
  int set_shift;
};

/// Halves that a kernel for T tokens goes over together.
constexpr int halves_for(int tokens) { return tokens == 1 ? 2 : 1; }

ASSAY_INLINE __m256i load(const void* x) {
  return _mm256_load_si256(static_cast<const __m256i*>(x));
}
ASSAY_INLINE __m256i splat(const int32_t* x) { return _mm256_set1_epi32(*x); }
ASSAY_INLINE __m256i splat_quad(const int32_t* x) {
  int64_t words;
  __builtin_memcpy(&words, x, sizeof(words));
  return _mm256_set1_epi64x(words);
}
ASSAY_INLINE __m256 splat_float(const int32_t* x) {
  return _mm256_castsi256_ps(_mm256_set1_epi32(*x));
}

/// Asks for the lines of a block that is so far ahead in the stream that the processor's own
/// prefetch, which ends with the page, may not have begun it.
template <int kBytes>
ASSAY_INLINE void fetch_ahead(const uint8_t* block) {
  ASSAY_UNROLL for (int i = 0; i < kBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(block) + 3072 + i, _MM_HINT_T0);
  }
}

/// Σ over pairs of i16, times `factor` (both halves of each lane hold it).
ASSAY_INLINE __m256i widen(__m256i pairs, __m256i factor) {
  return _mm256_madd_epi16(pairs, factor);
}

ASSAY_INLINE __m256i nibble(__m256i unit, bool high) {
  return _mm256_and_si256(high ? _mm256_srli_epi16(unit, 4) : unit, _mm256_set1_epi8(15));
}

// Block of 16 columns of 8 rows as vectors of codes. dot(): with 4 steps of one plane (x, step
// stride `stride`), times `factor`, pairs of i16. add_both(): of both halves with one token's
// planes, added to h and l.

struct Nibbles {
  static constexpr int kBlockBytes = 128;
  __m256i c[4];
  ASSAY_INLINE explicit Nibbles(const uint8_t* block) {
    ASSAY_UNROLL for (int q = 0; q < 4; ++q) c[q] = nibble(load(block + q / 2 * 64), q % 2 == 1);
  }
  ASSAY_INLINE __m256i dot(const int32_t* x, int stride, __m256i factor) const {
    __m256i sum = _mm256_maddubs_epi16(c[0], splat(x));
    ASSAY_UNROLL for (int q = 1; q < 4; ++q) {
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(c[q], splat(x + q * stride)));
    }
    return widen(sum, factor);
  }
  static ASSAY_INLINE void add_both(const uint8_t* block, const int32_t* x,
                                    const __m256i (&factor)[2], __m256i (&h)[2], __m256i (&l)[2]) {
    __m256i high[2];
    __m256i low[2];
    fetch_ahead<kBlockBytes>(block);
    ASSAY_UNROLL for (int u = 0; u < 2; ++u) {
      ASSAY_UNROLL for (int i = 0; i < 2; ++i) {
        const __m256i unit = load(block + u * 64 + i * 32);
        const __m256i first = nibble(unit, false);
        const __m256i second = nibble(unit, true);
        const int32_t* at = x + u * 4;
        const __m256i of_high = _mm256_add_epi16(_mm256_maddubs_epi16(first, splat(at)),
                                                 _mm256_maddubs_epi16(second, splat(at + 2)));
        const __m256i of_low = _mm256_add_epi16(_mm256_maddubs_epi16(first, splat(at + 1)),
                                                _mm256_maddubs_epi16(second, splat(at + 3)));
        high[i] = u == 0 ? of_high : _mm256_add_epi16(high[i], of_high);
        low[i] = u == 0 ? of_low : _mm256_add_epi16(low[i], of_low);
      }
    }
    ASSAY_UNROLL for (int i = 0; i < 2; ++i) {
      h[i] = _mm256_add_epi32(h[i], widen(high[i], factor[i]));
      l[i] = _mm256_add_epi32(l[i], widen(low[i], factor[i]));
    }
  }
};

struct Sixes {
  static constexpr int kBlockBytes = 192;
  __m256i c[4];
  ASSAY_INLINE explicit Sixes(const uint8_t* block) {
    const __m256i high = load(block + 128);
    ASSAY_UNROLL for (int q = 0; q < 4; ++q) c[q] = code(block, high, q);
  }
  ASSAY_INLINE __m256i dot(const int32_t* x, int stride, __m256i factor) const {
    const __m256i first = _mm256_add_epi16(_mm256_maddubs_epi16(c[0], splat(x)),
                                           _mm256_maddubs_epi16(c[1], splat(x + stride)));
    const __m256i second = _mm256_add_epi16(_mm256_maddubs_epi16(c[2], splat(x + 2 * stride)),
                                            _mm256_maddubs_epi16(c[3], splat(x + 3 * stride)));
    return _mm256_add_epi32(widen(first, factor), widen(second, factor));
  }
  static ASSAY_INLINE void add_both(const uint8_t* block, const int32_t* x,
                                    const __m256i (&factor)[2], __m256i (&h)[2], __m256i (&l)[2]) {
    fetch_ahead<kBlockBytes>(block);
    ASSAY_UNROLL for (int i = 0; i < 2; ++i) {
      const __m256i bits = load(block + 128 + i * 32);
      ASSAY_UNROLL for (int u = 0; u < 2; ++u) {
        const __m256i first = code(block + i * 32, bits, 2 * u);
        const __m256i second = code(block + i * 32, bits, 2 * u + 1);
        const int32_t* at = x + u * 4;
        h[i] = _mm256_add_epi32(h[i],
                                widen(_mm256_add_epi16(_mm256_maddubs_epi16(first, splat(at)),
                                                       _mm256_maddubs_epi16(second, splat(at + 2))),
                                      factor[i]));
        l[i] = _mm256_add_epi32(l[i],
                                widen(_mm256_add_epi16(_mm256_maddubs_epi16(first, splat(at + 1)),
                                                       _mm256_maddubs_epi16(second, splat(at + 3))),
                                      factor[i]));
      }
    }
  }

 private:
  /// Codes of step q; `high` holds the upper two bits of all four.
  static ASSAY_INLINE __m256i code(const uint8_t* block, __m256i high, int q) {
    const __m256i shifted = q == 0   ? _mm256_slli_epi16(high, 4)
                            : q == 1 ? _mm256_slli_epi16(high, 2)
                            : q == 2 ? high
                                     : _mm256_srli_epi16(high, 2);
    return _mm256_or_si256(nibble(load(block + q / 2 * 64), q % 2 == 1),
                           _mm256_and_si256(shifted, _mm256_set1_epi8(0x30)));
  }
};

/// `kStep` bytes between steps: 64, or 128 where two planes alternate.
template <int kStep>
struct Bytes {
  static constexpr int kBlockBytes = 4 * kStep;
  __m256i low[4], high[4];
  ASSAY_INLINE explicit Bytes(const uint8_t* block) {
    ASSAY_UNROLL for (int q = 0; q < 4; ++q) {
      const __m256i unit = load(block + q * kStep);
      low[q] = nibble(unit, false);
      high[q] = nibble(unit, true);
    }
  }
  ASSAY_INLINE __m256i dot(const int32_t* x, int stride, __m256i factor) const {
    __m256i lows = _mm256_maddubs_epi16(low[0], splat(x));
    __m256i highs = _mm256_maddubs_epi16(high[0], splat(x));
    ASSAY_UNROLL for (int q = 1; q < 4; ++q) {
      const __m256i step = splat(x + q * stride);
      lows = _mm256_add_epi16(lows, _mm256_maddubs_epi16(low[q], step));
      highs = _mm256_add_epi16(highs, _mm256_maddubs_epi16(high[q], step));
    }
    return _mm256_add_epi32(widen(lows, factor), widen(highs, _mm256_slli_epi16(factor, 4)));
  }
  static ASSAY_INLINE void add_both(const uint8_t* block, const int32_t* x,
                                    const __m256i (&factor)[2], __m256i (&h)[2], __m256i (&l)[2]) {
    ASSAY_UNROLL for (int i = 0; i < 2; ++i) {
      const Bytes source(block + i * 32);
      h[i] = _mm256_add_epi32(h[i], source.dot(x, 2, factor[i]));
      l[i] = _mm256_add_epi32(l[i], source.dot(x + 1, 2, factor[i]));
    }
  }
};

/// h, l (halves, T) += sums of both planes over `blocks` blocks, times the factors of the halves.
template <class Source, int T>
ASSAY_INLINE void add_dots(const uint8_t* codes, int blocks, const int32_t* quads,
                           const __m256i (&factor)[halves_for(T)], __m256i (&h)[halves_for(T)][T],
                           __m256i (&l)[halves_for(T)][T]) {
  for (int b = 0; b < blocks; ++b) {
    const uint8_t* block = codes + b * Source::kBlockBytes;
    const int32_t* x = quads + b * 8 * T;
    if constexpr (T == 1) {
      __m256i high[2] = {h[0][0], h[1][0]};
      __m256i low[2] = {l[0][0], l[1][0]};
      Source::add_both(block, x, factor, high, low);
      ASSAY_UNROLL for (int i = 0; i < 2; ++i) {
        h[i][0] = high[i];
        l[i][0] = low[i];
      }
    } else {
      const Source source(block);
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        h[0][t] = _mm256_add_epi32(h[0][t], source.dot(x + 2 * t, 2 * T, factor[0]));
        l[0][t] = _mm256_add_epi32(l[0][t], source.dot(x + 2 * t + 1, 2 * T, factor[0]));
      }
    }
  }
}

ASSAY_INLINE __m256i join(__m256i h, __m256i l) {
  return _mm256_add_epi32(_mm256_slli_epi32(h, 8), l);
}

template <int H>
ASSAY_INLINE void fill(__m256i (&out)[H], __m256i value) {
  ASSAY_UNROLL for (int i = 0; i < H; ++i) out[i] = value;
}

template <int H, int T>
ASSAY_INLINE void fill(__m256i (&out)[H][T], __m256i value) {
  ASSAY_UNROLL for (int i = 0; i < H; ++i) fill<T>(out[i], value);
}

/// 8-bit codes as words times whole activations, which need no planes: those of 4 columns are one
/// number of 64 bits.
struct Words {
  static constexpr int kBlockBytes = 256;
};

/// sum (halves, T) = Σ code·q over `blocks` blocks.
template <int T>
ASSAY_INLINE void sum_words(const uint8_t* codes, int blocks, const int32_t* quads,
                            __m256i (&sum)[halves_for(T)][T]) {
  constexpr int kHalves = halves_for(T);
  __m256i pairs[kHalves][2][T];  // two sums for each of 4 rows
  ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) fill<2, T>(pairs[i], _mm256_setzero_si256());
  const auto words = [](const uint8_t* at) __attribute__((always_inline)) {
    return _mm256_cvtepu8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(at)));
  };
  for (int q = 0; q < blocks * 4; ++q) {
    const uint8_t* step = codes + q * 64;
    if constexpr (T == 1) fetch_ahead<64>(step);
    const int32_t* x = quads + q * 2 * T;
    ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
      const __m256i first = words(step + i * 32);
      const __m256i second = words(step + i * 32 + 16);
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        const __m256i y = splat_quad(x + 2 * t);
        pairs[i][0][t] = _mm256_add_epi32(pairs[i][0][t], _mm256_madd_epi16(first, y));
        pairs[i][1][t] = _mm256_add_epi32(pairs[i][1][t], _mm256_madd_epi16(second, y));
      }
    }
  }
  ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      sum[i][t] = _mm256_permute4x64_epi64(_mm256_hadd_epi32(pairs[i][0][t], pairs[i][1][t]), 0xd8);
    }
  }
}

/// S (halves, T) of a piece: Σ code·q, for kGroup Σ (code − zero)·q.
template <class Source, KernelFold kFold, int T>
ASSAY_INLINE void sum_piece(const uint8_t* codes, int blocks, const int32_t* quads,
                            const int32_t* aux, __m256i (&sum)[halves_for(T)][T]) {
  constexpr int kHalves = halves_for(T);
  if constexpr (__is_same(Source, Words)) {
    sum_words<T>(codes, blocks, quads, sum);
    if constexpr (kFold == KernelFold::kGroup) {
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        const __m256i zeros = join(splat(aux + t * 2), splat(aux + t * 2 + 1));
        ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) sum[i][t] =
            _mm256_add_epi32(sum[i][t], zeros);
      }
    }
  } else {
    __m256i h[kHalves][T], l[kHalves][T], one[kHalves];
    fill<kHalves>(one, _mm256_set1_epi16(1));
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
        if constexpr (kFold == KernelFold::kGroup) {
          h[i][t] = splat(aux + t * 2);
          l[i][t] = splat(aux + t * 2 + 1);
        } else {
          h[i][t] = _mm256_setzero_si256();
          l[i][t] = _mm256_setzero_si256();
        }
      }
    }
    add_dots<Source, T>(codes, blocks, quads, one, h, l);
    ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
      ASSAY_UNROLL for (int t = 0; t < T; ++t) sum[i][t] = join(h[i][t], l[i][t]);
    }
  }
}

/// Fold of one segment into acc (halves, T), from +0: kGroup, kZeros, kAffine.
template <class Source, KernelFold kFold, int T>
ASSAY_INLINE void fold_pieces(const Work& work, __m256 (&acc)[halves_for(T)][T]) {
  constexpr int kHalves = halves_for(T);
  constexpr int kAux = kFold == KernelFold::kGroup ? 2 : 1;  // numbers per piece and token
  const int blocks = 8 / work.n_subs;
  const Panel& panel = *work.panel;
  const int32_t* x = work.activations;
  int piece = 0;
  for (int g = 0; g < work.groups; ++g, x += panel.group_stride) {
    for (int p = 0; p < work.n_subs; ++p, ++piece) {
      const int32_t* aux = x + panel.aux + p * T * kAux;
      __m256i sum[kHalves][T];
      sum_piece<Source, kFold, T>(work.codes + piece * blocks * Source::kBlockBytes, blocks,
                                  x + panel.quads + p * blocks * 8 * T, aux, sum);
      const int set = (piece * blocks * 16) >> work.set_shift;
      ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
        const int lane = work.half + i * kHalf;
        const __m256 w = _mm256_load_ps(work.meta->scales[set] + lane);
        ASSAY_UNROLL for (int t = 0; t < T; ++t) {
          const __m256 s = splat_float(x + t);
          if constexpr (kFold == KernelFold::kZeros) {
            const __m256i z = load(work.meta->integers[set] + lane);
            sum[i][t] = _mm256_sub_epi32(sum[i][t], _mm256_mullo_epi32(z, splat(aux + t)));
          }
          acc[i][t] =
              _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i][t]), _mm256_mul_ps(w, s), acc[i][t]);
          if constexpr (kFold == KernelFold::kAffine) {
            const __m256 m = _mm256_load_ps(work.meta->mins[set] + lane);
            acc[i][t] = _mm256_fmadd_ps(splat_float(aux + t), _mm256_mul_ps(m, s), acc[i][t]);
          }
        }
      }
    }
  }
}

/// h, l (halves, T) += Σ over a group's pairs of sub-blocks of pair · (Σh, Σl).
template <int T>
ASSAY_INLINE void add_pairs(const Work& work, const int32_t (*pairs)[kTileRows], const int32_t* x,
                            __m256i (&h)[halves_for(T)][T], __m256i (&l)[halves_for(T)][T]) {
  constexpr int kHalves = halves_for(T);
  const int n_pairs = (work.n_subs + 1) / 2;
  for (int p = 0; p < n_pairs; ++p) {
    const int32_t* q = x + work.panel->mins + p * T * 2;
    ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
      const __m256i pair = load(pairs[p] + work.half + i * kHalf);
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        h[i][t] = _mm256_add_epi32(h[i][t], _mm256_madd_epi16(pair, splat(q + 2 * t)));
        l[i][t] = _mm256_add_epi32(l[i][t], _mm256_madd_epi16(pair, splat(q + 2 * t + 1)));
      }
    }
  }
}

/// Value terms of kSuper over one half super-block: F = fma(256, float(H), float(L)).
template <class Source, int T>
ASSAY_INLINE void add_sub_blocks(const Work& work, const int32_t* x, int group,
                                 __m256 (&value)[halves_for(T)][T]) {
  constexpr int kHalves = halves_for(T);
  const int blocks = 8 / work.n_subs;
  const Panel& panel = *work.panel;
  __m256i h[kHalves][T], l[kHalves][T];
  fill<kHalves, T>(h, _mm256_setzero_si256());
  fill<kHalves, T>(l, _mm256_setzero_si256());
  for (int p = 0; p < work.n_subs; ++p) {
    const int sub = group * work.n_subs + p;
    __m256i scale[kHalves];
    ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
      scale[i] = load(work.meta->integers[sub] + work.half + i * kHalf);
    }
    add_dots<Source, T>(work.codes + sub * blocks * Source::kBlockBytes, blocks,
                        x + panel.quads + p * blocks * 8 * T, scale, h, l);
  }
  if (work.matrix->zero != 0) {
    add_pairs<T>(work, work.meta->zero_pairs + group * ((work.n_subs + 1) / 2), x, h, l);
  }
  ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      value[i][t] = _mm256_fmadd_ps(_mm256_set1_ps(256.0f), _mm256_cvtepi32_ps(h[i][t]),
                                    _mm256_cvtepi32_ps(l[i][t]));
    }
  }
}

template <class Source, int T>
ASSAY_INLINE void fold_super_blocks(const Work& work, __m256 (&acc)[halves_for(T)][T]) {
  constexpr int kHalves = halves_for(T);
  const Panel& panel = *work.panel;
  const int32_t* x = work.activations;
  for (int g = 0; g < work.groups; ++g, x += panel.group_stride) {
    __m256 value[kHalves][T];
    add_sub_blocks<Source, T>(work, x, g, value);
    const int set = (g * 128) >> work.set_shift;
    ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
      const __m256 d = _mm256_load_ps(work.meta->scales[set] + work.half + i * kHalf);
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        const __m256 s = splat_float(x + t);
        acc[i][t] = _mm256_fmadd_ps(value[i][t], _mm256_mul_ps(d, s), acc[i][t]);
      }
    }
    if (!work.matrix->has_mins) continue;
    __m256i h[kHalves][T], l[kHalves][T];
    fill<kHalves, T>(h, _mm256_setzero_si256());
    fill<kHalves, T>(l, _mm256_setzero_si256());
    add_pairs<T>(work, work.meta->min_pairs + g * ((work.n_subs + 1) / 2), x, h, l);
    ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
      const __m256 dmin = _mm256_load_ps(work.meta->mins[set] + work.half + i * kHalf);
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        const __m256 s = splat_float(x + t);
        // fma(M, −dmin·s, acc): rounding is symmetric, so the sign may move.
        acc[i][t] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(join(h[i][t], l[i][t])),
                                     _mm256_mul_ps(dmin, s), acc[i][t]);
      }
    }
  }
}

template <int T>
ASSAY_INLINE void fold_floats(const Work& work, __m256 (&acc)[halves_for(T)][T]) {
  constexpr int kHalves = halves_for(T);
  const Panel& panel = *work.panel;
  const int32_t* x = work.activations;
  __m256i one[kHalves];
  fill<kHalves>(one, _mm256_set1_epi16(1));
  for (int g = 0; g < work.groups; ++g, x += panel.group_stride) {
    __m256i hh[kHalves][T], mixed[kHalves][T], ll[kHalves][T];
    ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        hh[i][t] = splat(x + panel.aux + 3 * t);
        mixed[i][t] = splat(x + panel.aux + 3 * t + 1);
        ll[i][t] = splat(x + panel.aux + 3 * t + 2);
      }
    }
    const uint8_t* codes = work.codes + g * kGroupQuads * 128;
    add_dots<Bytes<128>, T>(codes, 8, x + panel.quads, one, hh, mixed);
    add_dots<Bytes<128>, T>(codes + 64, 8, x + panel.quads, one, mixed, ll);
    const int set = (g * 128) >> work.set_shift;
    ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
      const __m256 w = _mm256_load_ps(work.meta->scales[set] + work.half + i * kHalf);
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        const __m256 s = splat_float(x + t);
        const __m256 inner = _mm256_fmadd_ps(
            _mm256_set1_ps(256.0f), _mm256_cvtepi32_ps(mixed[i][t]), _mm256_cvtepi32_ps(ll[i][t]));
        const __m256 value =
            _mm256_fmadd_ps(_mm256_set1_ps(65536.0f), _mm256_cvtepi32_ps(hh[i][t]), inner);
        acc[i][t] = _mm256_fmadd_ps(value, _mm256_mul_ps(w, s), acc[i][t]);
      }
    }
  }
}

using SegmentKernel = void (*)(const Work&, float*);

/// sums (T, 16): lanes half … half + 7, or all of them, receive the fold of the segment.
template <class Source, KernelFold kFold, int T>
void segment_kernel(const Work& work, float* sums) {
  constexpr int kHalves = halves_for(T);
  __m256 acc[kHalves][T];
  ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
    ASSAY_UNROLL for (int t = 0; t < T; ++t) acc[i][t] = _mm256_setzero_ps();
  }
  if constexpr (kFold == KernelFold::kFloat) {
    fold_floats<T>(work, acc);
  } else if constexpr (kFold == KernelFold::kSuper) {
    fold_super_blocks<Source, T>(work, acc);
  } else {
    fold_pieces<Source, kFold, T>(work, acc);
  }
  ASSAY_UNROLL for (int i = 0; i < kHalves; ++i) {
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      _mm256_store_ps(sums + t * kTileRows + work.half + i * kHalf, acc[i][t]);
    }
  }
}

template <class Source, KernelFold kFold, int T>
SegmentKernel for_tokens(int n_tokens) {
  if (n_tokens == T) return &segment_kernel<Source, kFold, T>;
  if constexpr (T > 1) return for_tokens<Source, kFold, T - 1>(n_tokens);
  return nullptr;
}

/// kSuper needs a source with planes.
template <class Source, class Planes = Source>
SegmentKernel for_fold(KernelFold fold, int n_tokens) {
  switch (fold) {
    case KernelFold::kGroup:
      return for_tokens<Source, KernelFold::kGroup, kPanelTokens>(n_tokens);
    case KernelFold::kZeros:
      return for_tokens<Source, KernelFold::kZeros, kPanelTokens>(n_tokens);
    case KernelFold::kAffine:
      return for_tokens<Source, KernelFold::kAffine, kPanelTokens>(n_tokens);
    case KernelFold::kSuper:
      return for_tokens<Planes, KernelFold::kSuper, kPanelTokens>(n_tokens);
    case KernelFold::kFloat:
      break;
  }
  return nullptr;
}

SegmentKernel choose_kernel(const MatrixLayout& matrix, int n_tokens) {
  if (matrix.fold == KernelFold::kFloat) {
    return for_tokens<Bytes<128>, KernelFold::kFloat, kPanelTokensFloat>(n_tokens);
  }
  if (matrix.code_bits == 4) return for_fold<Nibbles>(matrix.fold, n_tokens);
  if (matrix.code_bits == 6) return for_fold<Sixes>(matrix.fold, n_tokens);
  return for_fold<Words, Bytes<64>>(matrix.fold, n_tokens);
}

ASSAY_INLINE __m128i load_half(const uint8_t* data) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data));
}

void widen_scales(ScaleType type, const uint8_t* data, int n_sets, float (*out)[kTileRows]) {
  for (int i = 0; i < n_sets; ++i) {
    for (int half = 0; half < kTileRows; half += kHalf) {
      __m256 values;
      if (type == ScaleType::kF32) {
        values = _mm256_castsi256_ps(load(data + i * 64 + half * 4));
      } else {
        const __m128i bits =
            _mm_load_si128(reinterpret_cast<const __m128i*>(data + i * 32 + half * 2));
        values = type == ScaleType::kF16
                     ? _mm256_cvtph_ps(bits)
                     : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
      }
      _mm256_store_ps(out[i] + half, values);
    }
  }
}

ASSAY_INLINE void store(int32_t* out, __m256i x) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), x);
}

/// Per lane the numbers of two sub-blocks as a pair of i16; `second` null: 0.
ASSAY_INLINE __m256i pair_of(const uint8_t* first, const uint8_t* second) {
  const __m256i low =
      _mm256_and_si256(_mm256_cvtepi8_epi32(load_half(first)), _mm256_set1_epi32(0xffff));
  if (second == nullptr) return low;
  return _mm256_or_si256(low, _mm256_slli_epi32(_mm256_cvtepi8_epi32(load_half(second)), 16));
}

void widen_sub_blocks(const MatrixLayout& matrix, const SegmentLayout& layout,
                      const uint8_t* segment, TileMeta& meta) {
  const int per_group = 128 / matrix.piece;
  const int n_pairs = (per_group + 1) / 2;
  const __m256i minus_zero = _mm256_set1_epi16(static_cast<int16_t>(-matrix.zero));
  for (int half = 0; half < kTileRows; half += kHalf) {
    const uint8_t* scales = segment + layout.sub_scales + half;
    const uint8_t* mins = segment + layout.sub_mins + half;
    for (int i = 0; i < layout.groups * per_group; ++i) {
      const uint8_t* scale = scales + i * kTileRows;
      store(meta.integers[i] + half, pair_of(scale, scale));
    }
    for (int i = 0; i < layout.groups * n_pairs; ++i) {
      const int first = (i / n_pairs * per_group + i % n_pairs * 2) * kTileRows;
      const int second = first + kTileRows;
      if (matrix.has_mins) {
        store(meta.min_pairs[i] + half,
              pair_of(mins + first, per_group > 1 ? mins + second : nullptr));
      }
      if (matrix.zero != 0) {
        const __m256i pair = pair_of(scales + first, per_group > 1 ? scales + second : nullptr);
        store(meta.zero_pairs[i] + half, _mm256_mullo_epi16(pair, minus_zero));
      }
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
      for (int half = 0; half < kTileRows; half += kHalf) {
        const uint8_t* zeros = segment + layout.zeros + i * kTileRows + half;
        store(meta.integers[i] + half, _mm256_cvtepu8_epi32(load_half(zeros)));
      }
    }
  }
  if (matrix.fold == KernelFold::kSuper) widen_sub_blocks(matrix, layout, segment, meta);
}

void add_segment(bool first, const float* sums, int n, float* total) {
  for (int i = 0; i < n; i += kHalf) {
    const __m256 sum = _mm256_load_ps(sums + i);
    _mm256_store_ps(total + i, first ? sum : _mm256_add_ps(_mm256_load_ps(total + i), sum));
  }
}

/// Writes one tile of a panel: total (T, 16). Returns whether a sum is not finite.
bool write_tile(const LinearCall& call, int64_t tile, const Panel& panel, const float* total) {
  const int64_t row = tile * kTileRows;
  const int64_t left = call.matrix->rows - row;
  const int64_t n = left < kTileRows ? left : kTileRows;
  bool bad = false;
  for (int t = 0; t < panel.n_tokens; ++t) {
    float* out = call.out + (panel.first_token + t) * call.out_stride + row;
    for (int64_t i = 0; i < n; ++i) {
      const float y = total[t * kTileRows + i];
      bad = bad || !(y - y == 0.0f);
      out[i] = call.bias != nullptr ? y + call.bias[row + i] : y;
    }
  }
  return bad;
}

bool run(const LinearCall& call, int64_t tile_begin, int64_t tile_end) {
  const MatrixLayout& matrix = *call.matrix;
  alignas(64) float sums[kPanelTokens * kTileRows];
  alignas(64) float totals[kMaxPanels][kPanelTokens * kTileRows];
  TileMeta meta;
  Work work = {};
  work.matrix = &matrix;
  work.meta = &meta;
  work.n_subs = 128 / matrix.piece;
  work.set_shift = log2_exact(matrix.set_columns);
  bool bad = false;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const uint8_t* segment = matrix.data + tile * matrix.tile_bytes;
    for (int64_t s = 0; s < matrix.n_segments; ++s, segment += matrix.full.bytes) {
      const SegmentLayout& layout = segment_layout(matrix, s);
      widen_meta(matrix, layout, segment, meta);
      work.groups = layout.groups;
      for (int64_t i = 0; i < call.n_panels; ++i) {
        const Panel& panel = call.panels[i];
        const SegmentKernel kernel = choose_kernel(matrix, panel.n_tokens);
        work.panel = &panel;
        work.activations = panel_segment(panel, s);
        const int lanes = halves_for(panel.n_tokens) * kHalf;
        for (int half = 0; half < kTileRows; half += lanes) {
          work.half = half;
          work.codes = segment + layout.codes + half * 4;
          kernel(work, sums);
        }
        add_segment(s == 0, sums, panel.n_tokens * kTileRows, totals[i]);
      }
    }
    for (int64_t i = 0; i < call.n_panels; ++i) {
      bad = write_tile(call, tile, call.panels[i], totals[i]) || bad;
    }
  }
  return bad;
}

constexpr LinearKernels kKernels = {kPanelTokens, kPanelTokensFloat, kMaxPanels, true, false, &run};

}  // namespace

const LinearKernels& linear_kernels_avx2() { return kKernels; }

}  // namespace assay
#endif
