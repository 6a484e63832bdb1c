#pragma once

#include <cstdint>

namespace assay {

/// Q4_1: 32 values with scale and minimum, 5 bits per weight. w_i = d · c_i + m, codes as in Q4_0.
/// Source: ggml-common.h.
struct BlockQ4_1 {
  uint16_t d;      // f16
  uint16_t m;      // f16
  uint8_t qs[16];  // two codes each
};
static_assert(sizeof(BlockQ4_1) == 20);

}  // namespace assay
