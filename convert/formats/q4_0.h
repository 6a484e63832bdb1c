#pragma once

#include <cstdint>

namespace assay {

/// Q4_0: 32 values with one scale, 4.5 bits per weight. w_i = d · (c_i − 8); c_i is the low nibble
/// of qs[i] for i < 16 and the high nibble of qs[i − 16] after that. Source: ggml-common.h.
struct BlockQ4_0 {
  uint16_t d;      // f16; may be negative
  uint8_t qs[16];  // two codes each
};
static_assert(sizeof(BlockQ4_0) == 18);

}  // namespace assay
