// VectorKernels in AVX2, FMA and F16C.
#if defined(__AVX2__)
#include <immintrin.h>

#include "runtime/ops/vector_lanes.h"

namespace assay {
namespace {

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  using M = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kQueries = 2;
  static constexpr int kValueVectors = 4;

  static ASSAY_INLINE M first_n(int n) {
    const I lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return from_bits(_mm256_cmpgt_epi32(set_int(n), lane));
  }
  static ASSAY_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  static ASSAY_INLINE F load_first(const float* p, M mask) {
    return _mm256_maskload_ps(p, bits(mask));
  }
  static ASSAY_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static ASSAY_INLINE void store_first(float* p, M mask, F x) {
    _mm256_maskstore_ps(p, bits(mask), x);
  }
  static ASSAY_INLINE F zero() { return _mm256_setzero_ps(); }
  static ASSAY_INLINE F set(float x) { return _mm256_set1_ps(x); }
  static ASSAY_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  static ASSAY_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static ASSAY_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static ASSAY_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
  static ASSAY_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static ASSAY_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
  static ASSAY_INLINE F negate(F x) { return _mm256_xor_ps(x, from_bits(set_int(INT32_MIN))); }
  static ASSAY_INLINE F select(M mask, F a, F b) { return _mm256_blendv_ps(b, a, mask); }
  static ASSAY_INLINE M less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static ASSAY_INLINE M is_nan(F x) { return _mm256_cmp_ps(x, x, _CMP_UNORD_Q); }

  static ASSAY_INLINE I set_int(int32_t x) { return _mm256_set1_epi32(x); }
  static ASSAY_INLINE I bits(F x) { return _mm256_castps_si256(x); }
  static ASSAY_INLINE F from_bits(I x) { return _mm256_castsi256_ps(x); }
  static ASSAY_INLINE I and_bits(I a, I b) { return _mm256_and_si256(a, b); }
  static ASSAY_INLINE I or_bits(I a, I b) { return _mm256_or_si256(a, b); }
  static ASSAY_INLINE I max_int(I a, I b) { return _mm256_max_epi32(a, b); }
  static ASSAY_INLINE int32_t largest_int(I x) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
  }
  static ASSAY_INLINE float largest(F x) {
    x = max(x, _mm256_permute2f128_ps(x, x, 1));
    x = max(x, _mm256_permute_ps(x, 0x4e));
    return first(max(x, _mm256_permute_ps(x, 0xb1)));
  }
  static ASSAY_INLINE float first(F x) { return _mm256_cvtss_f32(x); }
  static ASSAY_INLINE I round_to_int(F x) { return _mm256_cvtps_epi32(x); }  // MXCSR: nearest even

  /// (p·2^n1)·2^n2 with n1 = n >> 1, n2 = n − n1; n is integral.
  static ASSAY_INLINE F times_power_of_two(F p, F n) {
    const I whole = _mm256_cvttps_epi32(n);
    const I n1 = _mm256_srai_epi32(whole, 1);
    const I n2 = _mm256_sub_epi32(whole, n1);
    return mul(mul(p, power_of_two(n1)), power_of_two(n2));
  }
  static ASSAY_INLINE F power_of_two(I n) {
    return from_bits(_mm256_slli_epi32(_mm256_add_epi32(n, set_int(127)), 23));
  }

  static ASSAY_INLINE float fold8(F x) {
    x = add(x, _mm256_permute2f128_ps(x, x, 1));
    x = add(x, _mm256_permute_ps(x, 0x4e));
    x = add(x, _mm256_permute_ps(x, 0xb1));
    return first(x);
  }

  static ASSAY_INLINE __m128i load_halves(const uint16_t* p, int count) {
    if (count >= kWidth) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    alignas(16) uint16_t buffer[kWidth] = {};
    for (int i = 0; i < count; ++i) buffer[i] = p[i];
    return _mm_load_si128(reinterpret_cast<const __m128i*>(buffer));
  }
  static ASSAY_INLINE void store_halves(uint16_t* p, int count, __m128i x) {
    if (count >= kWidth) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x);
      return;
    }
    alignas(16) uint16_t buffer[kWidth];
    _mm_store_si128(reinterpret_cast<__m128i*>(buffer), x);
    for (int i = 0; i < count; ++i) p[i] = buffer[i];
  }
  static ASSAY_INLINE F load_f16(const uint16_t* p, int count) {
    return _mm256_cvtph_ps(load_halves(p, count));
  }
  static ASSAY_INLINE F load_bf16(const uint16_t* p, int count) {
    return from_bits(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(p, count)), 16));
  }
  /// Both return what was stored, widened; lanes from `count` on are not stored.
  static ASSAY_INLINE F store_f16(uint16_t* p, int count, F x) {
    const __m128i half = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    store_halves(p, count, half);
    return _mm256_cvtph_ps(half);
  }
  static ASSAY_INLINE F store_bf16(uint16_t* p, int count, F x) {
    const I odd = and_bits(_mm256_srli_epi32(bits(x), 16), set_int(1));
    const I sum = _mm256_add_epi32(_mm256_add_epi32(bits(x), set_int(0x7fff)), odd);
    const F quiet = _mm256_or_ps(x, from_bits(set_int(0x400000)));
    const I rounded = _mm256_srli_epi32(bits(select(is_nan(x), quiet, from_bits(sum))), 16);
    const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    store_halves(p, count, _mm256_castsi256_si128(packed));
    return from_bits(_mm256_slli_epi32(rounded, 16));
  }

  /// 16 codes q as planes q = 256·high + low, and the sums of the planes.
  static ASSAY_INLINE void store_planes(const I (&q)[2], int8_t* high, int8_t* low,
                                        int16_t* high_sum, int16_t* low_sum) {
    const I codes = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[0], q[1]), 0xd8);  // 16 bits each
    // |q| ≤ 32,639: q + 128 stays in 16 bits.
    const I h = _mm256_srai_epi16(_mm256_add_epi16(codes, _mm256_set1_epi16(128)), 8);
    const I l = _mm256_sub_epi16(codes, _mm256_slli_epi16(h, 8));
    store_plane(h, high, high_sum);
    store_plane(l, low, low_sum);
  }
  static ASSAY_INLINE void store_plane(I plane, int8_t* out, int16_t* sum) {
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(plane), _mm256_extracti128_si256(plane, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
    const __m128i biased = _mm_xor_si128(bytes, _mm_set1_epi8(-128));  // + 128
    const __m128i halves = _mm_sad_epu8(biased, _mm_setzero_si128());
    const int total = _mm_cvtsi128_si32(halves) + _mm_extract_epi32(halves, 2);
    *sum = static_cast<int16_t>(total - 16 * 128);
  }

  /// Row i of the 8 × 8 matrix becomes column i.
  static ASSAY_INLINE void transpose(F (&r)[8]) {
    F t[8];
    ASSAY_UNROLL for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    ASSAY_UNROLL for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    ASSAY_UNROLL for (int j = 0; j < 4; ++j) {
      t[j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x20);
      t[4 + j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x31);
    }
    ASSAY_UNROLL for (int i = 0; i < 8; ++i) r[i] = t[i];
  }
};

constexpr VectorKernels kKernels = kernels_of<Avx2>();

}  // namespace

const VectorKernels& vector_kernels_avx2() { return kKernels; }

}  // namespace assay
#endif
