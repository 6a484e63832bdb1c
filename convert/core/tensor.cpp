#include "convert/core/tensor.h"

#include <bit>
#include <cstring>

#include "convert/core/error.h"

namespace assay {
namespace {

uint16_t load_u16(const std::byte* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// f16_to_f32 without branches, so that the loop becomes SIMD: the exponent is moved by an exact
// multiplication by 2^112, which also turns subnormals into normal numbers.
float widen_f16(uint16_t half) {
  const float magnitude = std::bit_cast<float>(static_cast<uint32_t>(half & 0x7fffu) << 13);
  uint32_t bits = std::bit_cast<uint32_t>(magnitude * 0x1p112f);
  if ((half & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u;
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(half & 0x8000u) << 16));
}

}  // namespace

int64_t n_elements(const Shape& shape) {
  int64_t product = 1;
  bool overflow = false;
  bool has_zero = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) throw ShapeError("shape " + to_string(shape) + " has a negative dimension");
    if (dimension == 0) has_zero = true;
    overflow = overflow || __builtin_mul_overflow(product, dimension, &product);
  }
  if (has_zero) return 0;
  if (overflow) {
    throw ShapeError("shape " + to_string(shape) + " has more than 2^63 - 1 elements");
  }
  return product;
}

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  return out + "]";
}

void widen_to_f32(const TensorView& view, std::span<float> out) {
  const size_t n = out.size();
  ASSAY_CHECK(view.bytes.size() == n * dtype_bytes(view.dtype));
  const std::byte* from = view.bytes.data();
  switch (view.dtype) {
    case DType::kF32:
      if (n != 0) std::memcpy(out.data(), from, 4 * n);
      return;
    case DType::kBF16:
      for (size_t i = 0; i < n; ++i) out[i] = bf16_to_f32(load_u16(from + 2 * i));
      return;
    case DType::kF16:
      for (size_t i = 0; i < n; ++i) out[i] = widen_f16(load_u16(from + 2 * i));
      return;
    default:
      throw UnsupportedError("a tensor of type " + std::string(dtype_name(view.dtype)) +
                             " where F32, F16 or BF16 was expected");
  }
}

}  // namespace assay
