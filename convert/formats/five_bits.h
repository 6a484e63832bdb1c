#pragma once

#include <cstdint>

namespace assay {

/// 32 five-bit codes: the low four bits of codes i and i + 16 share byte qs[i], the fifth is bit i
/// of the 32 bits in qh.
inline void unpack_five_bits(const uint8_t* qh, const uint8_t* qs, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    const int low = i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
    codes[i] = static_cast<uint8_t>(low | (((qh[i / 8] >> (i % 8)) & 1) << 4));
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
