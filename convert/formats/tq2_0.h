#pragma once

#include <cstdint>

namespace assay {

/// TQ2_0: super-block of 256 values, 2.0625 bits per weight. w_i = d · (c_i − 1); c_i lies in bits
/// 2·((i%128)/32) and up of byte qs[32·(i/128) + i%32]. Source: ggml-common.h.
struct BlockTQ2_0 {
  uint8_t qs[64];
  uint16_t d;  // f16
};
static_assert(sizeof(BlockTQ2_0) == 66);

}  // namespace assay
