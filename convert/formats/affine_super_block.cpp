#include "convert/formats/affine_super_block.h"

#include <algorithm>
#include <cmath>

#include "convert/core/dtype.h"
#include "convert/formats/q4_k.h"

namespace assay {
namespace {

constexpr int kSubBlocks = 8;
constexpr int kSubColumns = 32;

uint8_t six_bits(float value) { return static_cast<uint8_t>(std::min(63, nearest_code(value))); }

AffineHead search_plain(int n_levels, const AffineSearch& search, const float* x, uint8_t* codes) {
  float weights[256];
  for (int j = 0; j < kSubBlocks; ++j) {
    const float* sub = x + kSubColumns * j;
    const float rms = std::sqrt(sum_of_squares(kSubColumns, sub) / 32.0f);
    for (int i = 0; i < kSubColumns; ++i) weights[kSubColumns * j + i] = rms + std::fabs(sub[i]);
  }
  AffineGrid grids[kSubBlocks];
  search_affine_grids(kSubBlocks, kSubColumns, n_levels, x, weights, search, grids, codes);
  float largest_scale = 0.0f;
  float largest_minimum = 0.0f;
  for (const AffineGrid& grid : grids) {
    largest_scale = std::max(largest_scale, grid.scale);
    largest_minimum = std::max(largest_minimum, grid.minimum);
  }
  const float inverse_scale = largest_scale > 0.0f ? 63.0f / largest_scale : 0.0f;
  const float inverse_minimum = largest_minimum > 0.0f ? 63.0f / largest_minimum : 0.0f;
  AffineHead head;
  for (int j = 0; j < kSubBlocks; ++j) {
    q4_k_set_scale_min(
        head.scales, j,
        {six_bits(inverse_scale * grids[j].scale), six_bits(inverse_minimum * grids[j].minimum)});
  }
  head.d = f32_to_f16(largest_scale / 63.0f);
  head.dmin = f32_to_f16(largest_minimum / 63.0f);
  return head;
}

AffineHead search_weighted(int n_levels, const float* x, const float* importance, uint8_t* codes) {
  const float sigma2 = 2.0f * sum_of_squares(256, x) / 256.0f;
  float weights[256];
  float sums[kSubBlocks];
  for (int j = 0; j < kSubBlocks; ++j) {
    const int first = kSubColumns * j;
    sums[j] =
        weigh_by_importance(kSubColumns, sigma2, x + first, importance + first, weights + first);
  }
  AffineGrid grids[kSubBlocks];
  search_affine_grids(kSubBlocks, kSubColumns, n_levels, x, weights, {-0.9f, 0.05f, 36}, grids,
                      codes);
  float scales[kSubBlocks];
  float minima[kSubBlocks];
  for (int j = 0; j < kSubBlocks; ++j) {
    scales[j] = grids[j].scale;
    minima[j] = grids[j].minimum;
  }
  uint8_t scale_codes[kSubBlocks];
  uint8_t min_codes[kSubBlocks];
  AffineHead head;
  head.d = f32_to_f16(search_unsigned_scale(kSubBlocks, 63, scales, sums, scale_codes));
  head.dmin = f32_to_f16(search_unsigned_scale(kSubBlocks, 63, minima, sums, min_codes));
  for (int j = 0; j < kSubBlocks; ++j) {
    q4_k_set_scale_min(head.scales, j, {scale_codes[j], min_codes[j]});
  }
  return head;
}

}  // namespace

AffineHead encode_affine_super_block(int n_levels, const AffineSearch& plain, const float* x,
                                     const float* importance, uint8_t* codes) {
  const AffineHead head = importance != nullptr ? search_weighted(n_levels, x, importance, codes)
                                                : search_plain(n_levels, plain, x, codes);
  const float d = f16_to_f32(head.d);
  const float dmin = f16_to_f32(head.dmin);
  for (int j = 0; j < kSubBlocks; ++j) {
    const SubScale sub = q4_k_scale_min(head.scales, j);
    recompute_codes(kSubColumns, x + kSubColumns * j, d * static_cast<float>(sub.scale),
                    dmin * static_cast<float>(sub.min), n_levels, codes + kSubColumns * j);
  }
  return head;
}

}  // namespace assay
