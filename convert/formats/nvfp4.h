#pragma once

#include <cstdint>

namespace assay {

/// NVFP4: 64 values, a scale per 16, 4.5 bits per weight. w_i = U(d[t]) · kFp4Values[c_i], t =
/// i/16; c_i: byte qs[8·t + i%8], low nibble for the first 8 columns of the sixteen, high for the
/// others. U is half of an unsigned E4M3 number (bit 7 is ignored, 0x7f counts as 0). As integers:
/// codes kFp4Values[c] + 12 with zero point 12. The second scale of the tensor, if it has one, is a
/// tensor of its own. Source: ggml-common.h.
struct BlockNVFP4 {
  uint8_t d[4];
  uint8_t qs[32];
};
static_assert(sizeof(BlockNVFP4) == 36);

}  // namespace assay
