#include "convert/formats/q2_k.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/format_list.h"
#include "convert/formats/two_bits.h"

namespace assay {
namespace {

constexpr int kSubBlocks = 16;
constexpr int kSubColumns = 16;

class Q2_KFormat final : public BlockFormat<Q2_KFormat, BlockQ2_K, 256> {
 public:
  std::string_view name() const override { return "Q2_K"; }
  std::optional<uint32_t> gguf_type() const override { return 10; }
  std::optional<uint32_t> gguf_file_type() const override { return 10; }
  std::string_view fallback_name() const override { return "Q4_0"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 2; }
  int64_t sub_block() const override { return kSubColumns; }

  static void decode(const BlockQ2_K& block, float* out) {
    uint8_t codes[256];
    unpack_two_bits(block.qs, codes);
    const float d = f16_to_f32(block.d);
    const float dmin = f16_to_f32(block.dmin);
    for (int j = 0; j < kSubBlocks; ++j) {
      const float scale = d * static_cast<float>(block.scales[j] & 15);
      const float minimum = dmin * static_cast<float>(block.scales[j] >> 4);
      for (int i = kSubColumns * j; i < kSubColumns * (j + 1); ++i) {
        out[i] = scale * static_cast<float>(codes[i]) - minimum;
      }
    }
  }

  static void integers(const BlockQ2_K& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    unpack_two_bits(block.qs, out.codes.data() + 256 * b);
    out.scales[b] = f16_to_f32(block.d);
    out.mins[b] = f16_to_f32(block.dmin);
    for (size_t j = 0; j < kSubBlocks; ++j) {
      out.sub_scales[kSubBlocks * b + j] = block.scales[j] & 15;
      out.sub_mins[kSubBlocks * b + j] = block.scales[j] >> 4;
    }
  }

  static const char* fault(const BlockQ2_K& block) {
    if (f16_is_not_finite(block.d)) return "scale d is not finite";
    return f16_is_not_finite(block.dmin) ? "scale dmin is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ2_K& out) {
    uint8_t codes[256];
    if (input.importance != nullptr) {
      search_weighted(input, codes, out);
    } else {
      search_plain(input.x, codes, out);
    }
    const float d = f16_to_f32(out.d);
    const float dmin = f16_to_f32(out.dmin);
    for (int j = 0; j < kSubBlocks; ++j) {
      recompute_codes(kSubColumns, input.x + kSubColumns * j,
                      d * static_cast<float>(out.scales[j] & 15),
                      dmin * static_cast<float>(out.scales[j] >> 4), 3, codes + kSubColumns * j);
    }
    pack_two_bits(codes, out.qs);
  }

 private:
  static void search_plain(const float* x, uint8_t* codes, BlockQ2_K& out) {
    float weights[256];
    for (int i = 0; i < 256; ++i) weights[i] = std::fabs(x[i]);
    AffineGrid grids[kSubBlocks];
    search_affine_grids(kSubBlocks, kSubColumns, 3, x, weights,
                        {.r_min = -0.5f, .r_delta = 0.1f, .n_steps = 15, .absolute = true}, grids,
                        codes);
    float largest_scale = 0.0f;
    float largest_minimum = 0.0f;
    for (const AffineGrid& grid : grids) {
      largest_scale = std::max(largest_scale, grid.scale);
      largest_minimum = std::max(largest_minimum, grid.minimum);
    }
    const float inverse_scale = largest_scale > 0.0f ? 15.0f / largest_scale : 0.0f;
    const float inverse_minimum = largest_minimum > 0.0f ? 15.0f / largest_minimum : 0.0f;
    for (int j = 0; j < kSubBlocks; ++j) {
      out.scales[j] = nibbles(nearest_code(inverse_scale * grids[j].scale),
                              nearest_code(inverse_minimum * grids[j].minimum));
    }
    out.d = f32_to_f16(largest_scale / 15.0f);
    out.dmin = f32_to_f16(largest_minimum / 15.0f);
  }

  static void search_weighted(const EncoderInput& input, uint8_t* codes, BlockQ2_K& out) {
    const float sigma2 = sum_of_squares(256, input.x) / 256.0f;
    float weights[256];
    float sums[kSubBlocks];
    for (int j = 0; j < kSubBlocks; ++j) {
      const int first = kSubColumns * j;
      sums[j] = weigh_by_importance(kSubColumns, sigma2, input.x + first, input.importance + first,
                                    weights + first);
    }
    AffineGrid grids[kSubBlocks];
    search_affine_grids(kSubBlocks, kSubColumns, 3, input.x, weights, {-0.9f, 0.05f, 36}, grids,
                        codes);
    float scales[kSubBlocks];
    float minima[kSubBlocks];
    for (int j = 0; j < kSubBlocks; ++j) {
      scales[j] = grids[j].scale;
      minima[j] = grids[j].minimum;
    }
    uint8_t scale_codes[kSubBlocks];
    uint8_t min_codes[kSubBlocks];
    out.d = f32_to_f16(search_unsigned_scale(kSubBlocks, 15, scales, sums, scale_codes));
    out.dmin = f32_to_f16(search_unsigned_scale(kSubBlocks, 15, minima, sums, min_codes));
    for (int j = 0; j < kSubBlocks; ++j) out.scales[j] = nibbles(scale_codes[j], min_codes[j]);
  }

  static uint8_t nibbles(int scale, int minimum) {
    return static_cast<uint8_t>(std::min(15, scale) | (std::min(15, minimum) << 4));
  }
};

}  // namespace

const WeightFormat& q2_k_format() {
  static const Q2_KFormat format;
  return format;
}

}  // namespace assay
