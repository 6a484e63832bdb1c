#pragma once

#include <cstdint>

namespace assay {

/// Q8_0: 32 values with one scale, 8.5 bits per weight. w_i = d · qs[i].
/// Source: ggml-common.h.
struct BlockQ8_0 {
  uint16_t d;     // f16
  int8_t qs[32];  // signed codes, in order
};
static_assert(sizeof(BlockQ8_0) == 34);

}  // namespace assay
