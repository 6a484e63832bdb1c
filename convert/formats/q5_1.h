#pragma once

#include <cstdint>

namespace assay {

/// Q5_1: 32 values with scale and minimum, 6 bits per weight. w_i = d · c_i + m, codes as in Q5_0.
/// Source: ggml-common.h.
struct BlockQ5_1 {
  uint16_t d;      // f16
  uint16_t m;      // f16
  uint8_t qh[4];   // 32 bits, little-endian
  uint8_t qs[16];  // two codes each
};
static_assert(sizeof(BlockQ5_1) == 24);

}  // namespace assay
