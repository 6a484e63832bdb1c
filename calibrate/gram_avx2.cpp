// Compiled with the instructions of Isa::kAvx2; reached through gram_kernels() only.
#include "calibrate/gram_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace assay {
namespace {

// q of 8 channels as fp32, rounded to nearest even: |x·scale| < 2^22.
__m256 round_even(__m256 x, __m256 scale) {
  const __m256 magic = _mm256_set1_ps(12582912.0f);
  return _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(x, scale), magic), magic);
}

__m256i load(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

void raise_maxima(const float* x, int64_t stride, int64_t n_tokens, int64_t n, uint32_t* maxima) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  auto* out = reinterpret_cast<int*>(maxima);
  for (int64_t c = 0; c < n; c += 8) {
    const __m256i inside =
        _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n - c < 8 ? n - c : 8)), lane);
    __m256i most = _mm256_maskload_epi32(out + c, inside);
    for (int64_t t = 0; t < n_tokens; ++t) {
      const __m256i bits =
          _mm256_maskload_epi32(reinterpret_cast<const int*>(x + t * stride + c), inside);
      most = _mm256_max_epu32(most, _mm256_and_si256(bits, magnitude));
    }
    _mm256_maskstore_epi32(out + c, inside, most);
  }
}

void pack(const float* x, int64_t stride, int64_t n_tokens, int64_t n_channels,
          const float* inverse_scales, int32_t* pairs, float* energies) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i none = _mm256_setzero_si256();
  for (int64_t c = 0; c < kGramPanel; c += 8) {
    const __m256i inside =
        _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n_channels - c)), lane);
    const __m256 scale = _mm256_maskload_ps(inverse_scales + c, inside);
    __m256 energy = _mm256_setzero_ps();
    for (int64_t step = 0; step < kGramBlockSteps; ++step) {
      const float* row = x + 2 * step * stride + c;
      const __m256i even_mask = 2 * step < n_tokens ? inside : none;
      const __m256i odd_mask = 2 * step + 1 < n_tokens ? inside : none;
      const __m256 even = round_even(_mm256_maskload_ps(row, even_mask), scale);
      const __m256 odd = round_even(_mm256_maskload_ps(row + stride, odd_mask), scale);
      energy = _mm256_add_ps(energy, _mm256_mul_ps(even, even));
      energy = _mm256_add_ps(energy, _mm256_mul_ps(odd, odd));
      const __m256i words = _mm256_blend_epi16(
          _mm256_cvttps_epi32(even), _mm256_slli_epi32(_mm256_cvttps_epi32(odd), 16), 0xaa);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs + step * kGramPanel + c), words);
    }
    _mm256_storeu_ps(energies + c, energy);
  }
}

inline void add_to(double* out, __m256i sums) {
  const __m256d first = _mm256_cvtepi32_pd(_mm256_castsi256_si128(sums));
  const __m256d second = _mm256_cvtepi32_pd(_mm256_extracti128_si256(sums, 1));
  _mm256_storeu_pd(out, _mm256_add_pd(_mm256_loadu_pd(out), first));
  _mm256_storeu_pd(out + 4, _mm256_add_pd(_mm256_loadu_pd(out + 4), second));
}

void tile_narrow(const int32_t* rows, const int32_t* columns, int64_t n_steps, double* tile) {
  constexpr int kRows = 4;  // 8 accumulators
  for (int64_t c = 0; c < kGramPanel; c += 16) {
    for (int64_t first = 0; first < kGramPanel; first += kRows) {
      __m256i sums[kRows][2];
      for (auto& row : sums) row[0] = row[1] = _mm256_setzero_si256();
      for (int64_t step = 0; step < n_steps; ++step) {
        const int32_t* q = rows + step * kGramPanel + first;
        const __m256i b0 = load(columns + step * kGramPanel + c);
        const __m256i b1 = load(columns + step * kGramPanel + c + 8);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256i pair = _mm256_set1_epi32(q[r]);
          sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(pair, b0));
          sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(pair, b1));
        }
      }
      for (int r = 0; r < kRows; ++r) {
        add_to(tile + (first + r) * kGramPanel + c, sums[r][0]);
        add_to(tile + (first + r) * kGramPanel + c + 8, sums[r][1]);
      }
    }
  }
}

// Adds 256·high + low, exact in fp64.
inline void add_planes_to(double* out, __m256i high, __m256i low) {
  const __m256d factor = _mm256_set1_pd(256.0);
  const __m256d h0 = _mm256_mul_pd(factor, _mm256_cvtepi32_pd(_mm256_castsi256_si128(high)));
  const __m256d h1 = _mm256_mul_pd(factor, _mm256_cvtepi32_pd(_mm256_extracti128_si256(high, 1)));
  const __m256d l0 = _mm256_cvtepi32_pd(_mm256_castsi256_si128(low));
  const __m256d l1 = _mm256_cvtepi32_pd(_mm256_extracti128_si256(low, 1));
  const __m256d first = _mm256_add_pd(h0, l0);
  const __m256d second = _mm256_add_pd(h1, l1);
  _mm256_storeu_pd(out, _mm256_add_pd(_mm256_loadu_pd(out), first));
  _mm256_storeu_pd(out + 4, _mm256_add_pd(_mm256_loadu_pd(out + 4), second));
}

void tile_wide(const int32_t* rows, const int32_t* columns, int64_t n_steps, double* tile) {
  constexpr int kRows = 4;  // 8 accumulators
  const __m256i half = _mm256_set1_epi16(128);
  for (int64_t c = 0; c < kGramPanel; c += 8) {
    for (int64_t first = 0; first < kGramPanel; first += kRows) {
      __m256i high[kRows];
      __m256i low[kRows];
      for (int r = 0; r < kRows; ++r) high[r] = low[r] = _mm256_setzero_si256();
      for (int64_t step = 0; step < n_steps; ++step) {
        const int32_t* q = rows + step * kGramPanel + first;
        const __m256i b = load(columns + step * kGramPanel + c);
        const __m256i h = _mm256_srai_epi16(_mm256_add_epi16(b, half), 8);
        const __m256i l = _mm256_sub_epi16(b, _mm256_slli_epi16(h, 8));
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256i pair = _mm256_set1_epi32(q[r]);
          high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(pair, h));
          low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(pair, l));
        }
      }
      for (int r = 0; r < kRows; ++r) {
        add_planes_to(tile + (first + r) * kGramPanel + c, high[r], low[r]);
      }
    }
  }
}

}  // namespace

const GramKernels& gram_kernels_avx2() {
  static const GramKernels kernels{
      .maxima = raise_maxima, .pack = pack, .tile_narrow = tile_narrow, .tile_wide = tile_wide};
  return kernels;
}

}  // namespace assay

#endif
