// VectorKernels in AVX-512 (F, BW, DQ, VL).
#if defined(__AVX512F__)
#include <immintrin.h>

#include "runtime/ops/vector_lanes.h"

namespace assay {
namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  using M = __mmask16;
  static constexpr int kWidth = 16;
  static constexpr int kQueries = 4;
  static constexpr int kValueVectors = 4;

  static ASSAY_INLINE M first_n(int n) {
    return static_cast<M>(n >= kWidth ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
  }
  static ASSAY_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static ASSAY_INLINE F load_first(const float* p, M mask) {
    return _mm512_maskz_loadu_ps(mask, p);
  }
  static ASSAY_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static ASSAY_INLINE void store_first(float* p, M mask, F x) { _mm512_mask_storeu_ps(p, mask, x); }
  static ASSAY_INLINE F zero() { return _mm512_setzero_ps(); }
  static ASSAY_INLINE F set(float x) { return _mm512_set1_ps(x); }
  static ASSAY_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  static ASSAY_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static ASSAY_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static ASSAY_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  static ASSAY_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static ASSAY_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  static ASSAY_INLINE F negate(F x) {
    return from_bits(_mm512_xor_si512(bits(x), set_int(INT32_MIN)));
  }
  static ASSAY_INLINE F select(M mask, F a, F b) { return _mm512_mask_blend_ps(mask, b, a); }
  static ASSAY_INLINE M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static ASSAY_INLINE M is_nan(F x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }

  static ASSAY_INLINE I set_int(int32_t x) { return _mm512_set1_epi32(x); }
  static ASSAY_INLINE I bits(F x) { return _mm512_castps_si512(x); }
  static ASSAY_INLINE F from_bits(I x) { return _mm512_castsi512_ps(x); }
  static ASSAY_INLINE I and_bits(I a, I b) { return _mm512_and_si512(a, b); }
  static ASSAY_INLINE I or_bits(I a, I b) { return _mm512_or_si512(a, b); }
  static ASSAY_INLINE I max_int(I a, I b) { return _mm512_max_epi32(a, b); }
  static ASSAY_INLINE int32_t largest_int(I x) { return _mm512_reduce_max_epi32(x); }
  static ASSAY_INLINE float largest(F x) { return _mm512_reduce_max_ps(x); }
  static ASSAY_INLINE float first(F x) { return _mm512_cvtss_f32(x); }
  static ASSAY_INLINE I round_to_int(F x) { return _mm512_cvtps_epi32(x); }  // MXCSR: nearest even

  /// p·2^n for integral n, rounded once.
  static ASSAY_INLINE F times_power_of_two(F p, F n) { return _mm512_scalef_ps(p, n); }

  static ASSAY_INLINE float fold16(F x) {
    x = add(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    x = add(x, _mm512_shuffle_f32x4(x, x, 0xb1));
    x = add(x, _mm512_permute_ps(x, 0x4e));
    x = add(x, _mm512_permute_ps(x, 0xb1));
    return first(x);
  }

  static ASSAY_INLINE F load_f16(const uint16_t* p, int count) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_n(count), p));
  }
  static ASSAY_INLINE F load_bf16(const uint16_t* p, int count) {
    const __m256i x = _mm256_maskz_loadu_epi16(first_n(count), p);
    return from_bits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  /// Both return what was stored, widened; lanes from `count` on are not stored.
  static ASSAY_INLINE F store_f16(uint16_t* p, int count, F x) {
    const __m256i half = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_mask_storeu_epi16(p, first_n(count), half);
    return _mm512_cvtph_ps(half);
  }
  static ASSAY_INLINE F store_bf16(uint16_t* p, int count, F x) {
    const I odd = and_bits(_mm512_srli_epi32(bits(x), 16), set_int(1));
    I rounded = _mm512_add_epi32(_mm512_add_epi32(bits(x), set_int(0x7fff)), odd);
    rounded =
        _mm512_mask_mov_epi32(rounded, is_nan(x), _mm512_or_si512(bits(x), set_int(0x400000)));
    rounded = _mm512_srli_epi32(rounded, 16);
    _mm256_mask_storeu_epi16(p, first_n(count), _mm512_cvtepi32_epi16(rounded));
    return from_bits(_mm512_slli_epi32(rounded, 16));
  }

  /// 16 codes q as planes q = 256·high + low, and the sums of the planes.
  static ASSAY_INLINE void store_planes(const I (&q)[1], int8_t* high, int8_t* low,
                                        int16_t* high_sum, int16_t* low_sum) {
    const I h = _mm512_srai_epi32(_mm512_add_epi32(q[0], set_int(128)), 8);
    const I l = _mm512_sub_epi32(q[0], _mm512_slli_epi32(h, 8));
    store_plane(_mm512_cvtepi32_epi8(h), high, high_sum);
    store_plane(_mm512_cvtepi32_epi8(l), low, low_sum);
  }
  static ASSAY_INLINE void store_plane(__m128i plane, int8_t* out, int16_t* sum) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), plane);
    const __m128i biased = _mm_xor_si128(plane, _mm_set1_epi8(-128));  // + 128
    const __m128i halves = _mm_sad_epu8(biased, _mm_setzero_si128());
    const int total = _mm_cvtsi128_si32(halves) + _mm_extract_epi32(halves, 2);
    *sum = static_cast<int16_t>(total - 16 * 128);
  }

  /// Row i of the 16 × 16 matrix becomes column i.
  static ASSAY_INLINE void transpose(F (&r)[16]) {
    F t[16];
    ASSAY_UNROLL for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    // r[4 i + j]: of each quarter, column j of rows 4 i … 4 i + 3.
    ASSAY_UNROLL for (int i = 0; i < 16; i += 4) {
      r[i] = unpack_low(t[i], t[i + 2]);
      r[i + 1] = unpack_high(t[i], t[i + 2]);
      r[i + 2] = unpack_low(t[i + 1], t[i + 3]);
      r[i + 3] = unpack_high(t[i + 1], t[i + 3]);
    }
    ASSAY_UNROLL for (int j = 0; j < 4; ++j) {
      const F a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x44);  // quarters 0, 1 of each
      const F b = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xee);  // quarters 2, 3
      const F c = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x44);
      const F d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xee);
      t[j] = _mm512_shuffle_f32x4(a, c, 0x88);
      t[4 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
      t[8 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
      t[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
    ASSAY_UNROLL for (int i = 0; i < 16; ++i) r[i] = t[i];
  }
  static ASSAY_INLINE F unpack_low(F a, F b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static ASSAY_INLINE F unpack_high(F a, F b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
};

constexpr VectorKernels kKernels = kernels_of<Avx512>();

}  // namespace

const VectorKernels& vector_kernels_avx512() { return kKernels; }

}  // namespace assay
#endif
