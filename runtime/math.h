#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "convert/core/host_device.h"

namespace assay {

// The functions of arithmetic.md §7: the same source for CPU and CUDA, the same bits on
// both. Only IEEE operations and explicit fma; callers are compiled with contraction off.

ASSAY_HD float float_from_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

ASSAY_HD uint32_t bits_from_float(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}

ASSAY_HD float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

/// True for NaN and infinities, decided on the exponent bits.
ASSAY_HD bool is_not_finite(float x) { return (bits_from_float(x) & 0x7f800000u) == 0x7f800000u; }

/// e^x, error at most 0.87 ulp; x < −104 gives +0.
ASSAY_HD float exp_canonical(float x) {
  if (x != x) return x;
  if (x < -104.0f) return 0.0f;
  if (x > 0x1.62e42ep+6f) return float_from_bits(0x7f800000u);
  const float t = fused(x, 0x1.715476p+0f, 12582912.0f);
  const float n = t - 12582912.0f;
  float r = fused(n, -0x1.62e430p-1f, x);
  r = fused(n, 0x1.05c610p-29f, r);
  float p = 0x1.9f0894p-13f;
  p = fused(p, r, 0x1.6d8d06p-10f);
  p = fused(p, r, 0x1.111270p-7f);
  p = fused(p, r, 0x1.55548ep-5f);
  p = fused(p, r, 0x1.555554p-3f);
  p = fused(p, r, 0.5f);
  p = fused(p, r, 1.0f);
  p = fused(p, r, 1.0f);
  const int32_t whole = static_cast<int32_t>(n);
  const int32_t first = whole >> 1;
  const int32_t second = whole - first;
  const float scale1 = float_from_bits(static_cast<uint32_t>(first + 127) << 23);
  const float scale2 = float_from_bits(static_cast<uint32_t>(second + 127) << 23);
  return (p * scale1) * scale2;
}

/// log(1 + f) + k·ln 2 for f in [√½ − 1, √2 − 1].
ASSAY_HD float log_polynomial(float f, float k) {
  const float z = f * f;
  float p = 0x1.145736p-4f;
  p = fused(p, f, -0x1.de3bb0p-4f);
  p = fused(p, f, 0x1.e6f066p-4f);
  p = fused(p, f, -0x1.fc2218p-4f);
  p = fused(p, f, 0x1.23376ap-3f);
  p = fused(p, f, -0x1.555c4cp-3f);
  p = fused(p, f, 0x1.99a4b6p-3f);
  p = fused(p, f, -0x1.000006p-2f);
  p = fused(p, f, 0x1.555548p-2f);
  float y = (f * z) * p;
  y = fused(k, -0x1.05c610p-29f, y);
  y = fused(-0.5f, z, y);
  y = f + y;
  return fused(k, 0x1.62e430p-1f, y);
}

/// Natural logarithm, error at most 0.79 ulp.
ASSAY_HD float log_canonical(float x) {
  if (x != x) return x;
  if (x == 0.0f) return float_from_bits(0xff800000u);
  if (x < 0.0f) return float_from_bits(0x7fc00000u);
  if (bits_from_float(x) == 0x7f800000u) return x;
  int32_t k = 0;
  if (x < 0x1p-126f) {
    x = x * 0x1p23f;
    k = -23;
  }
  const uint32_t v = bits_from_float(x) - 0x3f3504f3u;
  k += static_cast<int32_t>(v) >> 23;
  const float m = float_from_bits((v & 0x7fffffu) + 0x3f3504f3u);
  return log_polynomial(m - 1.0f, static_cast<float>(k));
}

/// log(1 + x), error at most 1.34 ulp.
ASSAY_HD float log1p_canonical(float x) {
  if (x == -1.0f) return float_from_bits(0xff800000u);
  if (x < -1.0f) return float_from_bits(0x7fc00000u);
  if (x != x || bits_from_float(x) == 0x7f800000u) return x;
  if ((bits_from_float(x) & 0x7fffffffu) < 0x33000000u) return x;  // |x| < 2^-25
  const float u = 1.0f + x;
  const uint32_t v = bits_from_float(u) - 0x3f3504f3u;
  const int32_t k = static_cast<int32_t>(v) >> 23;
  const float m = float_from_bits((v & 0x7fffffu) + 0x3f3504f3u);
  if (k == 0) return log_polynomial(x, 0.0f);
  const float c = x >= 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  const float scale = float_from_bits(static_cast<uint32_t>(127 - k) << 23);  // 2^-k
  const float f = (m - 1.0f) + c * scale;
  return log_polynomial(f, static_cast<float>(k));
}

/// Hyperbolic tangent, error at most 1.30 ulp.
ASSAY_HD float tanh_canonical(float x) {
  const float a = float_from_bits(bits_from_float(x) & 0x7fffffffu);
  if (a < 0.625f) {
    const float z = x * x;
    float p = -0x1.75e1d0p-8f;
    p = fused(p, z, 0x1.52269cp-6f);
    p = fused(p, z, -0x1.b83c5ap-5f);
    p = fused(p, z, 0x1.110726p-3f);
    p = fused(p, z, -0x1.555532p-2f);
    return fused(x * z, p, x);
  }
  const float s = exp_canonical(a + a);
  const float y = 1.0f - 2.0f / (s + 1.0f);
  return float_from_bits((bits_from_float(y) & 0x7fffffffu) | (bits_from_float(x) & 0x80000000u));
}

ASSAY_HD float sigmoid_canonical(float x) { return 1.0f / (1.0f + exp_canonical(-x)); }
ASSAY_HD float silu_canonical(float x) { return x / (1.0f + exp_canonical(-x)); }
ASSAY_HD float softplus_canonical(float x) {
  return x > 20.0f ? x : log1p_canonical(exp_canonical(x));
}

/// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), every operation its own rounding.
ASSAY_HD float gelu_tanh_canonical(float x) {
  const float cube = (x * x) * x;
  const float inner = 0x1.988454p-1f * (x + 0x1.6e4e26p-5f * cube);
  return (0.5f * x) * (1.0f + tanh_canonical(inner));
}
/// c·tanh(x / c).
ASSAY_HD float softcap_canonical(float x, float c) { return c * tanh_canonical(x / c); }

}  // namespace assay
