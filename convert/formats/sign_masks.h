#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace assay {

namespace detail {
constexpr std::array<std::array<uint32_t, 8>, 256> make_sign_masks() {
  std::array<std::array<uint32_t, 8>, 256> masks{};
  for (uint32_t signs = 0; signs < 256; ++signs) {
    for (uint32_t k = 0; k < 8; ++k) masks[signs][k] = ((signs >> k) & 1) << 31;
  }
  return masks;
}
}  // namespace detail

/// For each byte of sign bits the sign of an fp32 for each of its bits.
inline constexpr std::array<std::array<uint32_t, 8>, 256> kSignMasks = detail::make_sign_masks();

/// `value` with the other sign where the top bit of `mask` is set.
inline float with_sign(float value, uint32_t mask) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ mask);
}

}  // namespace assay
