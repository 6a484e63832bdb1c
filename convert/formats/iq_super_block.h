#pragma once

#include <cstdint>

#include "convert/formats/codebook_search.h"

namespace assay {

/// How one of the IQ2 and IQ3 types is encoded. Source: ggml-quants.c, table of parameters.
struct IqRecipe {
  CodebookSearch search;
  bool even_signs;       // seven stored sign bits per 8 columns, the eighth is their parity
  bool first_by_search;  // IQ2_XXS: the first scale comes from search_unsigned_scale
  float sigma_factor;    // σ² = factor·Σx² / 256
  float plain_sigma;     // weight without importance: plain_sigma·σ² + x²
  float tiny;            // blocks whose largest value is below are zero
};

/// Codes of 256 columns before their scales are rounded.
struct IqSuperBlock {
  uint8_t levels[256];
  uint8_t signs[32];  // bit k of signs[i]: column 8·i + k is negative
  float scales[16];   // per block, none negative
  float largest;      // of the scales
};

/// importance: (256), or nullptr for none.
void search_iq_super_block(const IqRecipe& recipe, const float* x, const float* importance,
                           IqSuperBlock& out);

/// The four-bit code of a scale s of which (2·code + 1)·step is stored, step = largest / 31.
uint8_t iq_scale_code(float scale, float largest);

}  // namespace assay
