// Compiled with the instructions of Isa::kAvx512; reached through gram_kernels() only.
#include "calibrate/gram_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#include <immintrin.h>

namespace assay {
namespace {

// q of 16 channels as fp32, rounded to nearest even: |x·scale| < 2^22.
__m512 round_even(__m512 x, __m512 scale) {
  const __m512 magic = _mm512_set1_ps(12582912.0f);
  return _mm512_sub_ps(_mm512_add_ps(_mm512_mul_ps(x, scale), magic), magic);
}

void raise_maxima(const float* x, int64_t stride, int64_t n_tokens, int64_t n, uint32_t* maxima) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t c = 0; c < n; c += 16) {
    const auto mask = static_cast<__mmask16>(n - c >= 16 ? 0xffff : (1 << (n - c)) - 1);
    __m512i most = _mm512_maskz_loadu_epi32(mask, maxima + c);
    for (int64_t t = 0; t < n_tokens; ++t) {
      const __m512i bits = _mm512_maskz_loadu_epi32(mask, x + t * stride + c);
      most = _mm512_max_epu32(most, _mm512_and_si512(bits, magnitude));
    }
    _mm512_mask_storeu_epi32(maxima + c, mask, most);
  }
}

void pack(const float* x, int64_t stride, int64_t n_tokens, int64_t n_channels,
          const float* inverse_scales, int32_t* pairs, float* energies) {
  for (int64_t c = 0; c < kGramPanel; c += 16) {
    const int64_t inside = n_channels - c;
    const auto mask = static_cast<__mmask16>(inside >= 16  ? 0xffff
                                             : inside <= 0 ? 0
                                                           : (1 << inside) - 1);
    const __m512 scale = _mm512_maskz_loadu_ps(mask, inverse_scales + c);
    __m512 energy = _mm512_setzero_ps();
    for (int64_t step = 0; step < kGramBlockSteps; ++step) {
      const float* row = x + 2 * step * stride + c;
      const __mmask16 even_mask = 2 * step < n_tokens ? mask : __mmask16{0};
      const __mmask16 odd_mask = 2 * step + 1 < n_tokens ? mask : __mmask16{0};
      const __m512 even = round_even(_mm512_maskz_loadu_ps(even_mask, row), scale);
      const __m512 odd = round_even(_mm512_maskz_loadu_ps(odd_mask, row + stride), scale);
      energy = _mm512_fmadd_ps(even, even, energy);
      energy = _mm512_fmadd_ps(odd, odd, energy);
      const __m512i words = _mm512_mask_blend_epi16(
          0xaaaaaaaau, _mm512_cvttps_epi32(even), _mm512_slli_epi32(_mm512_cvttps_epi32(odd), 16));
      _mm512_storeu_si512(pairs + step * kGramPanel + c, words);
    }
    _mm512_storeu_ps(energies + c, energy);
  }
}

// sums += a·b over the two halves of each word. Written as assembly: from the intrinsic GCC 12
// copies every accumulator once more per step, which halves the speed of the loops below.
inline void add_pair_dots(__m512i& sums, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
}

inline void add_to(double* out, __m512i sums) {
  const __m512d first = _mm512_cvtepi32_pd(_mm512_castsi512_si256(sums));
  const __m512d second = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(sums, 1));
  _mm512_storeu_pd(out, _mm512_add_pd(_mm512_loadu_pd(out), first));
  _mm512_storeu_pd(out + 8, _mm512_add_pd(_mm512_loadu_pd(out + 8), second));
}

void tile_narrow(const int32_t* rows, const int32_t* columns, int64_t n_steps, double* tile) {
  constexpr int kRows = 8;  // 16 accumulators
  for (int64_t first = 0; first < kGramPanel; first += kRows) {
    __m512i sums[kRows][2];
    for (auto& row : sums) row[0] = row[1] = _mm512_setzero_si512();
    for (int64_t step = 0; step < n_steps; ++step) {
      const int32_t* q = rows + step * kGramPanel + first;
      const __m512i b0 = _mm512_loadu_si512(columns + step * kGramPanel);
      const __m512i b1 = _mm512_loadu_si512(columns + step * kGramPanel + 16);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512i pair = _mm512_set1_epi32(q[r]);
        add_pair_dots(sums[r][0], pair, b0);
        add_pair_dots(sums[r][1], pair, b1);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      add_to(tile + (first + r) * kGramPanel, sums[r][0]);
      add_to(tile + (first + r) * kGramPanel + 16, sums[r][1]);
    }
  }
}

// Adds 256·high + low, exact in fp64.
inline void add_planes_to(double* out, __m512i high, __m512i low) {
  const __m512d factor = _mm512_set1_pd(256.0);
  const __m512d h0 = _mm512_cvtepi32_pd(_mm512_castsi512_si256(high));
  const __m512d h1 = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(high, 1));
  const __m512d l0 = _mm512_cvtepi32_pd(_mm512_castsi512_si256(low));
  const __m512d l1 = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(low, 1));
  const __m512d first = _mm512_fmadd_pd(h0, factor, l0);
  const __m512d second = _mm512_fmadd_pd(h1, factor, l1);
  _mm512_storeu_pd(out, _mm512_add_pd(_mm512_loadu_pd(out), first));
  _mm512_storeu_pd(out + 8, _mm512_add_pd(_mm512_loadu_pd(out + 8), second));
}

void tile_wide(const int32_t* rows, const int32_t* columns, int64_t n_steps, double* tile) {
  constexpr int kRows = 8;  // 16 accumulators
  const __m512i half = _mm512_set1_epi16(128);
  for (int64_t c = 0; c < kGramPanel; c += 16) {
    for (int64_t first = 0; first < kGramPanel; first += kRows) {
      __m512i high[kRows];
      __m512i low[kRows];
      for (int r = 0; r < kRows; ++r) high[r] = low[r] = _mm512_setzero_si512();
      for (int64_t step = 0; step < n_steps; ++step) {
        const int32_t* q = rows + step * kGramPanel + first;
        const __m512i b = _mm512_loadu_si512(columns + step * kGramPanel + c);
        const __m512i h = _mm512_srai_epi16(_mm512_add_epi16(b, half), 8);
        const __m512i l = _mm512_sub_epi16(b, _mm512_slli_epi16(h, 8));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m512i pair = _mm512_set1_epi32(q[r]);
          add_pair_dots(high[r], pair, h);
          add_pair_dots(low[r], pair, l);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        add_planes_to(tile + (first + r) * kGramPanel + c, high[r], low[r]);
      }
    }
  }
}

}  // namespace

const GramKernels& gram_kernels_avx512() {
  static const GramKernels kernels{
      .maxima = raise_maxima, .pack = pack, .tile_narrow = tile_narrow, .tile_wide = tile_wide};
  return kernels;
}

}  // namespace assay

#endif
