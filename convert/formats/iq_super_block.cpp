#include "convert/formats/iq_super_block.h"

#include <algorithm>
#include <cmath>

#include "convert/formats/code_search.h"

namespace assay {
namespace {

/// Fills weights of a block.
void weigh(const IqRecipe& recipe, float sigma2, const float* x, const float* importance,
           float* weights) {
  const int n = recipe.search.n_columns;
  for (int i = 0; i < n; ++i) {
    if (importance != nullptr) {
      weights[i] = importance[i] * std::sqrt(sigma2 + x[i] * x[i]);
    } else if (recipe.plain_sigma != 0.0f) {
      weights[i] = recipe.plain_sigma * sigma2 + x[i] * x[i];
    } else {
      weights[i] = x[i] * x[i];
    }
  }
}

/// Scale of one block; `levels` starts as zeros.
float search_block(const IqRecipe& recipe, const float* x, const float* weights, uint8_t* levels,
                   uint8_t* signs) {
  const int n = recipe.search.n_columns;
  float magnitudes[32];
  float roots[32];
  for (int i = 0; i < n; ++i) roots[i] = std::sqrt(weights[i]);
  uint8_t found[4];
  for (int k = 0; k < n / 8; ++k) {
    found[k] = recipe.even_signs ? take_even_signs(x + 8 * k, weights + 8 * k, magnitudes + 8 * k)
                                 : take_signs(x + 8 * k, magnitudes + 8 * k);
  }
  const float largest = *std::max_element(magnitudes, magnitudes + n);
  if (largest < recipe.tiny || largest == 0.0f) return 0.0f;
  const int n_levels = recipe.search.book->n_levels();
  float scale = largest / static_cast<float>(2 * n_levels - 1);
  float divisor = largest;
  if (recipe.first_by_search) {
    scale = search_unsigned_scale(n, n_levels + 1, magnitudes, weights, levels);
    divisor = scale * static_cast<float>(n_levels);
    if (divisor <= 0.0f) {
      std::fill_n(levels, n, uint8_t{0});
      return 0.0f;
    }
  }
  scale = search_codebook(recipe.search, magnitudes, weights, roots, divisor, scale, levels);
  const int turn = scale < 0.0f ? (recipe.even_signs ? 127 : 255) : 0;
  for (int k = 0; k < n / 8; ++k) signs[k] = static_cast<uint8_t>(found[k] ^ turn);
  return std::fabs(scale);
}

}  // namespace

void search_iq_super_block(const IqRecipe& recipe, const float* x, const float* importance,
                           IqSuperBlock& out) {
  const int n = recipe.search.n_columns;
  float sum_squares = 0.0f;
  for (int i = 0; i < 256; ++i) sum_squares += x[i] * x[i];
  const float sigma2 = recipe.sigma_factor * sum_squares / 256.0f;
  out = {};
  for (int b = 0; b < 256 / n; ++b) {
    float weights[32];
    weigh(recipe, sigma2, x + n * b, importance != nullptr ? importance + n * b : nullptr, weights);
    out.scales[b] =
        search_block(recipe, x + n * b, weights, out.levels + n * b, out.signs + n / 8 * b);
    out.largest = std::max(out.largest, out.scales[b]);
  }
}

uint8_t iq_scale_code(float scale, float largest) {
  const float inverse = 1.0f / (largest / 31.0f);
  return static_cast<uint8_t>(nearest_level(0.5f * (inverse * scale - 1.0f), 15.0f));
}

}  // namespace assay
