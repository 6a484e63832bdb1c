#pragma once

#include <cstdint>

namespace assay {

/// 256 two-bit codes of Q2_K and Q3_K: half H = i/128, r = i%128, code i lies in bits 2·(r/32) and
/// up of byte qs[32·H + r%32].
inline void unpack_two_bits(const uint8_t* qs, uint8_t* codes) {
  for (int part = 0; part < 8; ++part) {
    const uint8_t* bytes = qs + 32 * (part / 4);
    const int shift = 2 * (part % 4);
    for (int l = 0; l < 32; ++l) codes[32 * part + l] = (bytes[l] >> shift) & 3;
  }
}

/// Inverse of unpack_two_bits; codes are below 4.
inline void pack_two_bits(const uint8_t* codes, uint8_t* qs) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* in = codes + 128 * half;
    for (int l = 0; l < 32; ++l) {
      qs[32 * half + l] =
          static_cast<uint8_t>(in[l] | (in[l + 32] << 2) | (in[l + 64] << 4) | (in[l + 96] << 6));
    }
  }
}

}  // namespace assay
