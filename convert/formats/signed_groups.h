#pragma once

#include <cstdint>
#include <cstring>

#include "convert/formats/iq_super_block.h"
#include "convert/formats/sign_masks.h"

namespace assay {

// Groups of magnitudes with sign bits, and the words and nibbles in which the IQ2 and IQ3 types
// store them. Bit k set: column k of the group is negative.

/// Seven sign bits and an eighth that makes the number of set bits even.
inline uint32_t with_parity(uint32_t seven_bits) {
  return seven_bits | (static_cast<uint32_t>(__builtin_parity(seven_bits)) << 7);
}

template <int kElements>
void put_signed_floats(const int8_t* magnitudes, uint32_t signs, float scale, float* out) {
  const uint32_t* masks = kSignMasks[signs].data();
  float values[kElements];
  for (int k = 0; k < kElements; ++k) values[k] = scale * static_cast<float>(magnitudes[k]);
  for (int k = 0; k < kElements; ++k) out[k] = with_sign(values[k], masks[k]);
}

template <int kElements>
void put_signed_codes(const int8_t* magnitudes, uint32_t signs, int zero, uint8_t* out) {
  for (int k = 0; k < kElements; ++k) {
    const int sign = static_cast<int>((signs >> k) & 1);
    out[k] = static_cast<uint8_t>(zero + (magnitudes[k] ^ -sign) + sign);
  }
}

/// 32 bits at an even address, low half first.
inline uint32_t word_at(const uint16_t* halves) {
  return halves[0] | (static_cast<uint32_t>(halves[1]) << 16);
}

inline void put_word(uint32_t word, uint16_t* halves) {
  halves[0] = static_cast<uint16_t>(word & 0xffff);
  halves[1] = static_cast<uint16_t>(word >> 16);
}

/// Two scale codes per byte, low nibble first.
inline void put_scale_nibbles(const IqSuperBlock& found, int n, uint8_t* out) {
  for (int i = 0; i < n; i += 2) {
    out[i / 2] = static_cast<uint8_t>(iq_scale_code(found.scales[i], found.largest) |
                                      (iq_scale_code(found.scales[i + 1], found.largest) << 4));
  }
}

}  // namespace assay
