#pragma once

#include <cstdint>

namespace assay {

/// IQ4_NL: 32 values with one scale, 4.5 bits per weight. w_i = d · kIq4Values[c_i]; c_i is the low
/// nibble of qs[i] for i < 16 and the high nibble of qs[i − 16] after that. As integers: codes
/// kIq4Values[c] + 127 with zero point 127. Source: ggml-common.h.
struct BlockIQ4_NL {
  uint16_t d;      // f16; may be negative
  uint8_t qs[16];  // two codes each
};
static_assert(sizeof(BlockIQ4_NL) == 18);

}  // namespace assay
