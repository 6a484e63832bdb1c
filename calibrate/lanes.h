#pragma once

// Eight doubles or sixteen floats side by side, in the instructions that the including file is
// compiled for. Every operation is the IEEE one per lane, so the bits do not depend on the file.
// Internal linkage: the same names mean other instructions in the next file.

#include <cstdint>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace assay {
namespace {

#if defined(__AVX512F__)

struct Doubles {
  __m512d v;
};
struct Floats {
  __m512 v;
};
constexpr int kWideTile = 4;  // vectors of a register tile of four rows

inline Doubles load(const double* p) { return {_mm512_loadu_pd(p)}; }
inline void store(double* p, Doubles a) { _mm512_storeu_pd(p, a.v); }
inline Doubles all(double x) { return {_mm512_set1_pd(x)}; }
inline Doubles sub(Doubles a, Doubles b) { return {_mm512_sub_pd(a.v, b.v)}; }
inline Doubles div(Doubles a, Doubles b) { return {_mm512_div_pd(a.v, b.v)}; }
inline Doubles fma(Doubles a, Doubles b, Doubles c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
inline Doubles fnma(Doubles a, Doubles b, Doubles c) { return {_mm512_fnmadd_pd(a.v, b.v, c.v)}; }

inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline Floats all(float x) { return {_mm512_set1_ps(x)}; }
inline Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats sub(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats div(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats smaller(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

/// The two halves of a, widened exactly.
inline Doubles low_half(Floats a) { return {_mm512_cvtps_pd(_mm512_castps512_ps256(a.v))}; }
inline Doubles high_half(Floats a) {
  return {_mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)))};
}
/// Lanes hold integers in [0, 255].
inline void store_bytes(uint8_t* p, Floats a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(a.v)));
}

#elif defined(__AVX2__)

struct Doubles {
  __m256d v[2];
};
struct Floats {
  __m256 v[2];
};
constexpr int kWideTile = 1;

inline Doubles load(const double* p) { return {{_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)}}; }
inline void store(double* p, Doubles a) {
  _mm256_storeu_pd(p, a.v[0]);
  _mm256_storeu_pd(p + 4, a.v[1]);
}
inline Doubles all(double x) { return {{_mm256_set1_pd(x), _mm256_set1_pd(x)}}; }
inline Doubles sub(Doubles a, Doubles b) {
  return {{_mm256_sub_pd(a.v[0], b.v[0]), _mm256_sub_pd(a.v[1], b.v[1])}};
}
inline Doubles div(Doubles a, Doubles b) {
  return {{_mm256_div_pd(a.v[0], b.v[0]), _mm256_div_pd(a.v[1], b.v[1])}};
}
inline Doubles fma(Doubles a, Doubles b, Doubles c) {
  return {{_mm256_fmadd_pd(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_pd(a.v[1], b.v[1], c.v[1])}};
}
inline Doubles fnma(Doubles a, Doubles b, Doubles c) {
  return {{_mm256_fnmadd_pd(a.v[0], b.v[0], c.v[0]), _mm256_fnmadd_pd(a.v[1], b.v[1], c.v[1])}};
}

inline Floats load(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
inline void store(float* p, Floats a) {
  _mm256_storeu_ps(p, a.v[0]);
  _mm256_storeu_ps(p + 8, a.v[1]);
}
inline Floats all(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
inline Floats add(Floats a, Floats b) {
  return {{_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1])}};
}
inline Floats sub(Floats a, Floats b) {
  return {{_mm256_sub_ps(a.v[0], b.v[0]), _mm256_sub_ps(a.v[1], b.v[1])}};
}
inline Floats mul(Floats a, Floats b) {
  return {{_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])}};
}
inline Floats div(Floats a, Floats b) {
  return {{_mm256_div_ps(a.v[0], b.v[0]), _mm256_div_ps(a.v[1], b.v[1])}};
}
inline Floats smaller(Floats a, Floats b) {
  return {{_mm256_min_ps(a.v[0], b.v[0]), _mm256_min_ps(a.v[1], b.v[1])}};
}
inline Floats larger(Floats a, Floats b) {
  return {{_mm256_max_ps(a.v[0], b.v[0]), _mm256_max_ps(a.v[1], b.v[1])}};
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return {{_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])}};
}

inline Doubles widen(__m256 a) {
  return {
      {_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))}};
}
inline Doubles low_half(Floats a) { return widen(a.v[0]); }
inline Doubles high_half(Floats a) { return widen(a.v[1]); }
inline void store_bytes(uint8_t* p, Floats a) {
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packus_epi32(_mm256_cvttps_epi32(a.v[0]), _mm256_cvttps_epi32(a.v[1])), 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

#else

struct Doubles {
  double v[8];
};
struct Floats {
  float v[16];
};
constexpr int kWideTile = 1;

template <typename V, typename F>
inline V lanes(F f) {
  V out;
  for (int l = 0; l < static_cast<int>(std::extent_v<decltype(out.v)>); ++l) out.v[l] = f(l);
  return out;
}

inline Doubles load(const double* p) {
  return lanes<Doubles>([&](int l) { return p[l]; });
}
inline void store(double* p, Doubles a) {
  for (int l = 0; l < 8; ++l) p[l] = a.v[l];
}
inline Doubles all(double x) {
  return lanes<Doubles>([&](int) { return x; });
}
inline Doubles sub(Doubles a, Doubles b) {
  return lanes<Doubles>([&](int l) { return a.v[l] - b.v[l]; });
}
inline Doubles div(Doubles a, Doubles b) {
  return lanes<Doubles>([&](int l) { return a.v[l] / b.v[l]; });
}
inline Doubles fma(Doubles a, Doubles b, Doubles c) {
  return lanes<Doubles>([&](int l) { return __builtin_fma(a.v[l], b.v[l], c.v[l]); });
}
inline Doubles fnma(Doubles a, Doubles b, Doubles c) {
  return lanes<Doubles>([&](int l) { return __builtin_fma(-a.v[l], b.v[l], c.v[l]); });
}

inline Floats load(const float* p) {
  return lanes<Floats>([&](int l) { return p[l]; });
}
inline void store(float* p, Floats a) {
  for (int l = 0; l < 16; ++l) p[l] = a.v[l];
}
inline Floats all(float x) {
  return lanes<Floats>([&](int) { return x; });
}
inline Floats add(Floats a, Floats b) {
  return lanes<Floats>([&](int l) { return a.v[l] + b.v[l]; });
}
inline Floats sub(Floats a, Floats b) {
  return lanes<Floats>([&](int l) { return a.v[l] - b.v[l]; });
}
inline Floats mul(Floats a, Floats b) {
  return lanes<Floats>([&](int l) { return a.v[l] * b.v[l]; });
}
inline Floats div(Floats a, Floats b) {
  return lanes<Floats>([&](int l) { return a.v[l] / b.v[l]; });
}
inline Floats smaller(Floats a, Floats b) {
  return lanes<Floats>([&](int l) { return a.v[l] < b.v[l] ? a.v[l] : b.v[l]; });
}
inline Floats larger(Floats a, Floats b) {
  return lanes<Floats>([&](int l) { return a.v[l] > b.v[l] ? a.v[l] : b.v[l]; });
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return lanes<Floats>([&](int l) { return __builtin_fmaf(a.v[l], b.v[l], c.v[l]); });
}

inline Doubles low_half(Floats a) {
  return lanes<Doubles>([&](int l) { return static_cast<double>(a.v[l]); });
}
inline Doubles high_half(Floats a) {
  return lanes<Doubles>([&](int l) { return static_cast<double>(a.v[l + 8]); });
}
inline void store_bytes(uint8_t* p, Floats a) {
  for (int l = 0; l < 16; ++l) p[l] = static_cast<uint8_t>(a.v[l]);
}

#endif

}  // namespace
}  // namespace assay
