// linear() in AVX2, FMA and F16C: lane = row, a tile is two halves of 8 rows. Products go through
// vpmaddubsw, whose 16-bit sums must not saturate: with codes ≤ 15 four steps of 4 columns fit
// (4·2·15·128 < 2^15), with codes ≤ 63 two; codes of 8 bits are taken as two nibbles.
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
  int32_t integers[kMaxSets][kTileRows];       // kZeros: zero points; kSuper: sub-scales
  int32_t min_pairs[kMaxSets / 2][kTileRows];  // kSuper: pairs of i16 sub-minima
};

/// What one kernel works on: one half of one segment of a tile, and one panel.
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

ASSAY_INLINE __m256i load(const void* x) {
  return _mm256_load_si256(static_cast<const __m256i*>(x));
}
ASSAY_INLINE __m256i splat(const int32_t* x) { return _mm256_set1_epi32(*x); }
ASSAY_INLINE __m256 splat_float(const int32_t* x) {
  return _mm256_castsi256_ps(_mm256_set1_epi32(*x));
}

/// Σ over pairs of i16, times `factor` (both halves of each lane hold it).
ASSAY_INLINE __m256i widen(__m256i pairs, __m256i factor) {
  return _mm256_madd_epi16(pairs, factor);
}

ASSAY_INLINE __m256i nibble(__m256i unit, bool high) {
  return _mm256_and_si256(high ? _mm256_srli_epi16(unit, 4) : unit, _mm256_set1_epi8(15));
}

// Block of 16 columns of 8 rows as vectors of codes, and its dot product with 4 steps of one plane
// (x, step stride `stride`).

struct Nibbles {
  static constexpr int kBlockBytes = 128;
  __m256i c[4];
  ASSAY_INLINE explicit Nibbles(const uint8_t* block) {
    ASSAY_UNROLL for (int q = 0; q < 4; ++q) c[q] = nibble(load(block + q / 2 * 64), q % 2 == 1);
  }
  ASSAY_INLINE __m256i dot(const int32_t* x, int stride) const {
    __m256i sum = _mm256_maddubs_epi16(c[0], splat(x));
    ASSAY_UNROLL for (int q = 1; q < 4; ++q) {
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(c[q], splat(x + q * stride)));
    }
    return widen(sum, _mm256_set1_epi16(1));
  }
};

struct Sixes {
  static constexpr int kBlockBytes = 192;
  __m256i c[4];
  ASSAY_INLINE explicit Sixes(const uint8_t* block) {
    const __m256i high = load(block + 128);
    const __m256i mask = _mm256_set1_epi8(0x30);
    const __m256i shifted[4] = {_mm256_slli_epi16(high, 4), _mm256_slli_epi16(high, 2), high,
                                _mm256_srli_epi16(high, 2)};
    ASSAY_UNROLL for (int q = 0; q < 4; ++q) {
      c[q] = _mm256_or_si256(nibble(load(block + q / 2 * 64), q % 2 == 1),
                             _mm256_and_si256(shifted[q], mask));
    }
  }
  ASSAY_INLINE __m256i dot(const int32_t* x, int stride) const {
    const __m256i one = _mm256_set1_epi16(1);
    const __m256i first = _mm256_add_epi16(_mm256_maddubs_epi16(c[0], splat(x)),
                                           _mm256_maddubs_epi16(c[1], splat(x + stride)));
    const __m256i second = _mm256_add_epi16(_mm256_maddubs_epi16(c[2], splat(x + 2 * stride)),
                                            _mm256_maddubs_epi16(c[3], splat(x + 3 * stride)));
    return _mm256_add_epi32(widen(first, one), widen(second, one));
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
  ASSAY_INLINE __m256i dot(const int32_t* x, int stride) const {
    __m256i lows = _mm256_maddubs_epi16(low[0], splat(x));
    __m256i highs = _mm256_maddubs_epi16(high[0], splat(x));
    ASSAY_UNROLL for (int q = 1; q < 4; ++q) {
      const __m256i step = splat(x + q * stride);
      lows = _mm256_add_epi16(lows, _mm256_maddubs_epi16(low[q], step));
      highs = _mm256_add_epi16(highs, _mm256_maddubs_epi16(high[q], step));
    }
    return _mm256_add_epi32(widen(lows, _mm256_set1_epi16(1)), widen(highs, _mm256_set1_epi16(16)));
  }
};

template <class Source, int T>
ASSAY_INLINE void add_dots(const uint8_t* codes, int blocks, const int32_t* quads, __m256i (&h)[T],
                           __m256i (&l)[T]) {
  for (int b = 0; b < blocks; ++b) {
    const Source source(codes + b * Source::kBlockBytes);
    const int32_t* x = quads + b * 8 * T;
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      h[t] = _mm256_add_epi32(h[t], source.dot(x + 2 * t, 2 * T));
      l[t] = _mm256_add_epi32(l[t], source.dot(x + 2 * t + 1, 2 * T));
    }
  }
}

ASSAY_INLINE __m256i join(__m256i h, __m256i l) {
  return _mm256_add_epi32(_mm256_slli_epi32(h, 8), l);
}

/// Fold of one segment into acc, from +0: kGroup, kZeros, kAffine.
template <class Source, KernelFold kFold, int T>
ASSAY_INLINE void fold_pieces(const Work& work, __m256 (&acc)[T]) {
  const int blocks = 8 / work.n_subs;
  const Panel& panel = *work.panel;
  const int32_t* x = work.activations;
  int piece = 0;
  for (int g = 0; g < work.groups; ++g, x += panel.group_stride) {
    for (int p = 0; p < work.n_subs; ++p, ++piece) {
      __m256i h[T], l[T];
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        if constexpr (kFold == KernelFold::kGroup) {
          h[t] = splat(x + panel.aux + (p * T + t) * 2);
          l[t] = splat(x + panel.aux + (p * T + t) * 2 + 1);
        } else {
          h[t] = _mm256_setzero_si256();
          l[t] = _mm256_setzero_si256();
        }
      }
      add_dots<Source, T>(work.codes + piece * blocks * Source::kBlockBytes, blocks,
                          x + panel.quads + p * blocks * 8 * T, h, l);
      const int set = (piece * blocks * 16) >> work.set_shift;
      const __m256 w = _mm256_load_ps(work.meta->scales[set] + work.half);
      ASSAY_UNROLL for (int t = 0; t < T; ++t) {
        const __m256 s = splat_float(x + t);
        __m256i sum = join(h[t], l[t]);
        if constexpr (kFold == KernelFold::kZeros) {
          const __m256i z = load(work.meta->integers[set] + work.half);
          sum = _mm256_sub_epi32(sum, _mm256_mullo_epi32(z, splat(x + panel.aux + p * T + t)));
        }
        acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(w, s), acc[t]);
        if constexpr (kFold == KernelFold::kAffine) {
          const __m256 m = _mm256_load_ps(work.meta->mins[set] + work.half);
          const __m256 q = splat_float(x + panel.aux + p * T + t);
          acc[t] = _mm256_fmadd_ps(q, _mm256_mul_ps(m, s), acc[t]);
        }
      }
    }
  }
}

/// Value terms of kSuper over one half super-block: F = fma(256, float(H), float(L)).
template <class Source, int T>
ASSAY_INLINE void add_sub_blocks(const Work& work, const int32_t* x, int group,
                                 __m256 (&value)[T]) {
  const int blocks = 8 / work.n_subs;
  const Panel& panel = *work.panel;
  __m256i hs[T], ls[T];
  ASSAY_UNROLL for (int t = 0; t < T; ++t) {
    hs[t] = _mm256_setzero_si256();
    ls[t] = _mm256_setzero_si256();
  }
  for (int p = 0; p < work.n_subs; ++p) {
    const int sub = group * work.n_subs + p;
    __m256i h[T], l[T];
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      h[t] = splat(x + panel.aux + (p * T + t) * 2);
      l[t] = splat(x + panel.aux + (p * T + t) * 2 + 1);
    }
    add_dots<Source, T>(work.codes + sub * blocks * Source::kBlockBytes, blocks,
                        x + panel.quads + p * blocks * 8 * T, h, l);
    const __m256i scale = load(work.meta->integers[sub] + work.half);
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      hs[t] = _mm256_add_epi32(hs[t], _mm256_mullo_epi32(h[t], scale));
      ls[t] = _mm256_add_epi32(ls[t], _mm256_mullo_epi32(l[t], scale));
    }
  }
  ASSAY_UNROLL for (int t = 0; t < T; ++t) {
    value[t] = _mm256_fmadd_ps(_mm256_set1_ps(256.0f), _mm256_cvtepi32_ps(hs[t]),
                               _mm256_cvtepi32_ps(ls[t]));
  }
}

/// Σ min_sub · Q_sub over one half super-block.
template <int T>
ASSAY_INLINE void sum_minima(const Work& work, const int32_t* x, int group, __m256i (&sum)[T]) {
  const int n_pairs = (work.n_subs + 1) / 2;
  __m256i h[T], l[T];
  ASSAY_UNROLL for (int t = 0; t < T; ++t) {
    h[t] = _mm256_setzero_si256();
    l[t] = _mm256_setzero_si256();
  }
  for (int p = 0; p < n_pairs; ++p) {
    const __m256i pair = load(work.meta->min_pairs[group * n_pairs + p] + work.half);
    const int32_t* q = x + work.panel->mins + p * T * 2;
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      h[t] = _mm256_add_epi32(h[t], _mm256_madd_epi16(pair, splat(q + 2 * t)));
      l[t] = _mm256_add_epi32(l[t], _mm256_madd_epi16(pair, splat(q + 2 * t + 1)));
    }
  }
  ASSAY_UNROLL for (int t = 0; t < T; ++t) sum[t] = join(h[t], l[t]);
}

template <class Source, int T>
ASSAY_INLINE void fold_super_blocks(const Work& work, __m256 (&acc)[T]) {
  const Panel& panel = *work.panel;
  const int32_t* x = work.activations;
  for (int g = 0; g < work.groups; ++g, x += panel.group_stride) {
    __m256 value[T];
    add_sub_blocks<Source, T>(work, x, g, value);
    const int set = (g * 128) >> work.set_shift;
    const __m256 d = _mm256_load_ps(work.meta->scales[set] + work.half);
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      const __m256 s = splat_float(x + t);
      acc[t] = _mm256_fmadd_ps(value[t], _mm256_mul_ps(d, s), acc[t]);
    }
    if (!work.matrix->has_mins) continue;
    const __m256 dmin = _mm256_load_ps(work.meta->mins[set] + work.half);
    __m256i m[T];
    sum_minima<T>(work, x, g, m);
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      const __m256 s = splat_float(x + t);
      // fma(M, −dmin·s, acc): rounding is symmetric, so the sign may move.
      acc[t] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(m[t]), _mm256_mul_ps(dmin, s), acc[t]);
    }
  }
}

template <int T>
ASSAY_INLINE void fold_floats(const Work& work, __m256 (&acc)[T]) {
  const Panel& panel = *work.panel;
  const int32_t* x = work.activations;
  for (int g = 0; g < work.groups; ++g, x += panel.group_stride) {
    __m256i hh[T], mixed[T], ll[T];
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      hh[t] = splat(x + panel.aux + 3 * t);
      mixed[t] = splat(x + panel.aux + 3 * t + 1);
      ll[t] = splat(x + panel.aux + 3 * t + 2);
    }
    const uint8_t* codes = work.codes + g * kGroupQuads * 128;
    add_dots<Bytes<128>, T>(codes, 8, x + panel.quads, hh, mixed);
    add_dots<Bytes<128>, T>(codes + 64, 8, x + panel.quads, mixed, ll);
    const __m256 w = _mm256_load_ps(work.meta->scales[(g * 128) >> work.set_shift] + work.half);
    ASSAY_UNROLL for (int t = 0; t < T; ++t) {
      const __m256 s = splat_float(x + t);
      const __m256 inner = _mm256_fmadd_ps(_mm256_set1_ps(256.0f), _mm256_cvtepi32_ps(mixed[t]),
                                           _mm256_cvtepi32_ps(ll[t]));
      const __m256 value =
          _mm256_fmadd_ps(_mm256_set1_ps(65536.0f), _mm256_cvtepi32_ps(hh[t]), inner);
      acc[t] = _mm256_fmadd_ps(value, _mm256_mul_ps(w, s), acc[t]);
    }
  }
}

using SegmentKernel = void (*)(const Work&, float*);

/// sums (T, 16): lanes half … half + 7 receive the fold of the segment.
template <class Source, KernelFold kFold, int T>
void segment_kernel(const Work& work, float* sums) {
  __m256 acc[T];
  ASSAY_UNROLL for (int t = 0; t < T; ++t) acc[t] = _mm256_setzero_ps();
  if constexpr (kFold == KernelFold::kFloat) {
    fold_floats<T>(work, acc);
  } else if constexpr (kFold == KernelFold::kSuper) {
    fold_super_blocks<Source, T>(work, acc);
  } else {
    fold_pieces<Source, kFold, T>(work, acc);
  }
  ASSAY_UNROLL for (int t = 0; t < T; ++t) {
    _mm256_store_ps(sums + t * kTileRows + work.half, acc[t]);
  }
}

template <class Source, KernelFold kFold, int T>
SegmentKernel for_tokens(int n_tokens) {
  if (n_tokens == T) return &segment_kernel<Source, kFold, T>;
  if constexpr (T > 1) return for_tokens<Source, kFold, T - 1>(n_tokens);
  return nullptr;
}

template <class Source>
SegmentKernel for_fold(KernelFold fold, int n_tokens) {
  switch (fold) {
    case KernelFold::kGroup:
      return for_tokens<Source, KernelFold::kGroup, kPanelTokens>(n_tokens);
    case KernelFold::kZeros:
      return for_tokens<Source, KernelFold::kZeros, kPanelTokens>(n_tokens);
    case KernelFold::kAffine:
      return for_tokens<Source, KernelFold::kAffine, kPanelTokens>(n_tokens);
    case KernelFold::kSuper:
      return for_tokens<Source, KernelFold::kSuper, kPanelTokens>(n_tokens);
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
  return for_fold<Bytes<64>>(matrix.fold, n_tokens);
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

void widen_sub_blocks(const MatrixLayout& matrix, const SegmentLayout& layout,
                      const uint8_t* segment, TileMeta& meta) {
  const int per_group = 128 / matrix.piece;
  const int n_pairs = (per_group + 1) / 2;
  for (int half = 0; half < kTileRows; half += kHalf) {
    for (int i = 0; i < layout.groups * per_group; ++i) {
      const uint8_t* scales = segment + layout.sub_scales + i * kTileRows + half;
      store(meta.integers[i] + half, _mm256_cvtepi8_epi32(load_half(scales)));
    }
    if (!matrix.has_mins) continue;
    for (int i = 0; i < layout.groups * n_pairs; ++i) {
      const int first_sub = i / n_pairs * per_group + i % n_pairs * 2;
      const uint8_t* mins = segment + layout.sub_mins + first_sub * kTileRows + half;
      const __m256i first =
          _mm256_and_si256(_mm256_cvtepi8_epi32(load_half(mins)), _mm256_set1_epi32(0xffff));
      __m256i second = _mm256_setzero_si256();
      if (per_group > 1) {
        second = _mm256_slli_epi32(_mm256_cvtepi8_epi32(load_half(mins + kTileRows)), 16);
      }
      store(meta.min_pairs[i] + half, _mm256_or_si256(first, second));
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
        for (int half = 0; half < kTileRows; half += kHalf) {
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

constexpr LinearKernels kKernels = {kPanelTokens, kPanelTokensFloat, kMaxPanels, &run};

}  // namespace

const LinearKernels& linear_kernels_avx2() { return kKernels; }

}  // namespace assay
#endif
