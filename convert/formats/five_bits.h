#pragma once

#include <cstdint>

namespace assay {

/// 32 five-bit codes: the low four bits of codes i and i + 16 share byte qs[i], the fifth is bit i
/// of the 32 bits in qh.
inline void unpack_five_bits(const uint8_t* qh, const uint8_t* qs, uint8_t* codes) {
  uint8_t high[32];
  for (int byte = 0; byte < 4; ++byte) {
    // Eight copies of the byte, of which copy k keeps bit k; then each that is not 0 becomes 16.
    const uint64_t bits = (qh[byte] * 0x0101010101010101u) & 0x8040201008040201u;
    const uint64_t tops = ((bits + 0x7f7f7f7f7f7f7f7fu) & 0x8080808080808080u) >> 3;
    for (int k = 0; k < 8; ++k) high[8 * byte + k] = static_cast<uint8_t>(tops >> (8 * k));
  }
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<uint8_t>((qs[i] & 15) | high[i]);
    codes[i + 16] = static_cast<uint8_t>((qs[i] >> 4) | high[i + 16]);
  }
}

/// Inverse of unpack_five_bits; qh starts as zeros.
inline void pack_five_bits(const uint8_t* codes, uint8_t* qh, uint8_t* qs) {
  for (int i = 0; i < 16; ++i) {
    qs[i] = static_cast<uint8_t>((codes[i] & 15) | ((codes[i + 16] & 15) << 4));
  }
  for (int i = 0; i < 32; ++i) {
    qh[i / 8] = static_cast<uint8_t>(qh[i / 8] | ((codes[i] >> 4) << (i % 8)));
  }
}

}  // namespace assay
