#pragma once

#include <cstdint>

namespace assay {

/// Q2_0: 64 values with one scale, 2.25 bits per weight. w_i = d · (c_i − 1); c_i lies in bits
/// 2·(i%4) and up of qs[i/4]. Source: ggml-common.h.
struct BlockQ2_0 {
  uint16_t d;  // f16
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ2_0) == 18);

}  // namespace assay
