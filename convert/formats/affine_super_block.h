#pragma once

#include <cstdint>

#include "convert/formats/code_search.h"

namespace assay {

/// What Q4_K and Q5_K store besides the codes: 8 sub-blocks of 32.
struct AffineHead {
  uint16_t d = 0;
  uint16_t dmin = 0;
  uint8_t scales[12] = {};  // see q4_k_scale_min
};

/// Scales, minima and codes 0 … n_levels of a super-block (ggml-quants.c, Q4_K and Q5_K).
/// importance: (256), or nullptr for none, in which case `plain` says how to search.
AffineHead encode_affine_super_block(int n_levels, const AffineSearch& plain, const float* x,
                                     const float* importance, uint8_t* codes);

}  // namespace assay
