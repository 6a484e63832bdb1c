#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "convert/core/host_device.h"

namespace assay {

/// Scalar types of whole bytes that lie in files (F4 and F6 are refused where they are met). The
/// order is that of the safetensors writer (safetensors' format page): tensors are stored in
/// descending order of this list.
enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64
};

/// Bytes of one element.
size_t dtype_bytes(DType dtype);
/// The safetensors name, e.g. "BF16".
std::string_view dtype_name(DType dtype);
/// Inverse of dtype_name; empty for a name that is not known.
std::optional<DType> dtype_from_name(std::string_view name);

/// bf16 -> f32, exact.
ASSAY_HD float bf16_to_f32(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
#else
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
#endif
}

/// f32 -> bf16, nearest even; NaN stays NaN (quiet), no subnormal is flushed.
ASSAY_HD uint16_t f32_to_bf16(float value) {
#if defined(__CUDA_ARCH__)
  const uint32_t bits = __float_as_uint(value);
#else
  const uint32_t bits = std::bit_cast<uint32_t>(value);
#endif
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// f16 -> f32, exact, subnormals kept.
ASSAY_HD float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  uint32_t out;
  if (exponent == 0x1fu) {
    out = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    out = sign | ((exponent + 112u) << 23) | (mantissa << 13);
  } else if (mantissa == 0) {
    out = sign;
  } else {
    uint32_t e = 113u;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      --e;
    }
    out = sign | (e << 23) | ((mantissa & 0x3ffu) << 13);
  }
#if defined(__CUDA_ARCH__)
  return __uint_as_float(out);
#else
  return std::bit_cast<float>(out);
#endif
}

/// f32 -> f16, nearest even; overflow gives infinity, NaN gives 0x7e00 with the sign.
ASSAY_HD uint16_t f32_to_f16(float value) {
#if defined(__CUDA_ARCH__)
  const uint32_t bits = __float_as_uint(value);
#else
  const uint32_t bits = std::bit_cast<uint32_t>(value);
#endif
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude < 0x33000001u) return static_cast<uint16_t>(sign);             // <= 2^-25
  uint32_t mantissa;
  uint32_t shift;
  uint32_t base;
  if (magnitude >= 0x38800000u) {  // normal
    base = ((magnitude >> 23) - 112u) << 10;
    mantissa = magnitude & 0x7fffffu;
    shift = 13u;
  } else {  // subnormal: the implicit bit becomes part of the mantissa
    base = 0;
    mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    shift = 126u - (magnitude >> 23);
  }
  const uint32_t kept = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  const uint32_t up = (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
  return static_cast<uint16_t>(sign | (base + kept + up));
}

}  // namespace assay
