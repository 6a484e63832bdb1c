#pragma once

#include <cstdint>

namespace assay {

/// Q5_0: 32 values with one scale, 5.5 bits per weight. w_i = d · (c_i − 16); the low four bits of
/// c_i lie in qs as in Q4_0, the fifth is bit i of qh. Source: ggml-common.h.
struct BlockQ5_0 {
  uint16_t d;      // f16; may be negative
  uint8_t qh[4];   // 32 bits, little-endian
  uint8_t qs[16];  // two codes each
};
static_assert(sizeof(BlockQ5_0) == 22);

}  // namespace assay
