#include "tests/support/random.h"

#include <cstring>

namespace assay::test {
namespace {

// Finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// 16 bits as an integer in [-32768, 32767].
int32_t signed_part(uint64_t bits, int shift) {
  return static_cast<int32_t>((bits >> shift) & 0xffffu) - 32768;
}

}  // namespace

uint64_t Random::bits_at(uint64_t counter) const {
  return mix(mix(seed_ * 0x9e3779b97f4a7c15u + 1) + counter * 0x9e3779b97f4a7c15u);
}

float Random::uniform_at(uint64_t counter) const {
  const auto top = static_cast<int32_t>(bits_at(counter) >> 40);  // 24 bits
  return static_cast<float>(top - (1 << 23)) * 0x1p-23f;
}

float Random::bell_at(uint64_t counter) const {
  const uint64_t bits = bits_at(counter);
  const int32_t sum =
      signed_part(bits, 0) + signed_part(bits, 16) + signed_part(bits, 32) + signed_part(bits, 48);
  constexpr float kToUnitDeviation = 0.8660254f * 0x1p-15f;  // sqrt(3 / 4): var of a uniform is 1/3
  return static_cast<float>(sum) * kToUnitDeviation;
}

uint64_t Random::below_at(uint64_t n, uint64_t counter) const {
  return ((bits_at(counter) >> 32) * n) >> 32;
}

std::vector<float> random_floats(size_t n, uint64_t seed) {
  const Random random(seed);
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = random.bell_at(i);
  return out;
}

Tensor random_tensor(DType dtype, Shape shape, uint64_t seed) {
  const Random random(seed);
  const auto n = static_cast<size_t>(n_elements(shape));
  const size_t width = dtype_bytes(dtype);
  Tensor tensor{dtype, std::move(shape), std::vector<std::byte>(n * width)};
  for (size_t i = 0; i < n; ++i) {
    uint64_t bits = random.bits_at(i);
    const float value = random.bell_at(i);
    if (dtype == DType::kBool) bits &= 1u;
    if (dtype == DType::kF16) bits = f32_to_f16(value);
    if (dtype == DType::kBF16) bits = f32_to_bf16(value);
    if (dtype == DType::kF32) bits = std::bit_cast<uint32_t>(value);
    if (dtype == DType::kF64) bits = std::bit_cast<uint64_t>(static_cast<double>(value));
    std::memcpy(&tensor.bytes[i * width], &bits, width);
  }
  return tensor;
}

}  // namespace assay::test
