#pragma once

#include <cstdint>

namespace assay {

/// Q1_0: 128 values with one scale, 1.125 bits per weight. w_i = d where bit i%8 of qs[i/8] is set,
/// else −d. As integers: codes 0 and 2 with zero point 1. Source: ggml-common.h.
struct BlockQ1_0 {
  uint16_t d;  // f16
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ1_0) == 18);

}  // namespace assay
