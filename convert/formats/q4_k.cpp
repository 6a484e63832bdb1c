#include "convert/formats/q4_k.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/format_list.h"

namespace assay {
namespace {

constexpr int kSubBlocks = 8;
constexpr int kSubColumns = 32;

class Q4_KFormat final : public BlockFormat<Q4_KFormat, BlockQ4_K, 256> {
 public:
  std::string_view name() const override { return "Q4_K"; }
  std::optional<uint32_t> gguf_type() const override { return 12; }
  std::optional<uint32_t> gguf_file_type() const override { return 15; }
  std::string_view fallback_name() const override { return "Q5_0"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 4; }
  int64_t sub_block() const override { return kSubColumns; }

  static void decode(const BlockQ4_K& block, float* out) {
    const float d = f16_to_f32(block.d);
    const float dmin = f16_to_f32(block.dmin);
    for (int j = 0; j < kSubBlocks; ++j) {
      const SubScale sub = q4_k_scale_min(block.scales, j);
      const float scale = d * static_cast<float>(sub.scale);
      const float minimum = dmin * static_cast<float>(sub.min);
      const uint8_t* bytes = block.qs + kSubColumns * (j / 2);
      const int shift = 4 * (j % 2);
      for (int i = 0; i < kSubColumns; ++i) {
        out[kSubColumns * j + i] = scale * static_cast<float>((bytes[i] >> shift) & 15) - minimum;
      }
    }
  }

  static void integers(const BlockQ4_K& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    out.scales[b] = f16_to_f32(block.d);
    out.mins[b] = f16_to_f32(block.dmin);
    for (int j = 0; j < kSubBlocks; ++j) {
      const SubScale sub = q4_k_scale_min(block.scales, j);
      out.sub_scales[kSubBlocks * b + static_cast<size_t>(j)] = sub.scale;
      out.sub_mins[kSubBlocks * b + static_cast<size_t>(j)] = sub.min;
      uint8_t* codes = out.codes.data() + 256 * b + static_cast<size_t>(kSubColumns * j);
      const uint8_t* bytes = block.qs + kSubColumns * (j / 2);
      const int shift = 4 * (j % 2);
      for (int i = 0; i < kSubColumns; ++i) codes[i] = (bytes[i] >> shift) & 15;
    }
  }

  static const char* fault(const BlockQ4_K& block) {
    if (f16_is_not_finite(block.d)) return "scale d is not finite";
    return f16_is_not_finite(block.dmin) ? "scale dmin is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ4_K& out) {
    uint8_t codes[256];
    if (input.importance != nullptr) {
      search_with_importance(input, codes, out);
    } else {
      search_plain(input.x, codes, out);
    }
    recompute_codes(input.x, out, codes);
    for (int chunk = 0; chunk < 4; ++chunk) {
      for (int i = 0; i < 32; ++i) {
        out.qs[32 * chunk + i] =
            static_cast<uint8_t>(codes[64 * chunk + i] | (codes[64 * chunk + 32 + i] << 4));
      }
    }
  }

 private:
  static void search_plain(const float* x, uint8_t* codes, BlockQ4_K& out) {
    float scales[kSubBlocks];
    float minima[kSubBlocks];
    float largest_scale = 0.0f;
    float largest_minimum = 0.0f;
    for (int j = 0; j < kSubBlocks; ++j) {
      const float* sub = x + kSubColumns * j;
      float sum_squares = 0.0f;
      for (int i = 0; i < kSubColumns; ++i) sum_squares += sub[i] * sub[i];
      const float rms = std::sqrt(sum_squares / 32.0f);
      float weights[kSubColumns];
      for (int i = 0; i < kSubColumns; ++i) weights[i] = rms + std::fabs(sub[i]);
      const AffineGrid grid = search_affine_grid(kSubColumns, 15, sub, weights, {-1.0f, 0.1f, 20},
                                                 codes + kSubColumns * j);
      scales[j] = grid.scale;
      minima[j] = grid.minimum;
      largest_scale = std::max(largest_scale, grid.scale);
      largest_minimum = std::max(largest_minimum, grid.minimum);
    }
    const float inverse_scale = largest_scale > 0.0f ? 63.0f / largest_scale : 0.0f;
    const float inverse_minimum = largest_minimum > 0.0f ? 63.0f / largest_minimum : 0.0f;
    for (int j = 0; j < kSubBlocks; ++j) {
      q4_k_set_scale_min(
          out.scales, j,
          {six_bits(inverse_scale * scales[j]), six_bits(inverse_minimum * minima[j])});
    }
    out.d = f32_to_f16(largest_scale / 63.0f);
    out.dmin = f32_to_f16(largest_minimum / 63.0f);
  }

  static void search_with_importance(const EncoderInput& input, uint8_t* codes, BlockQ4_K& out) {
    float sum_squares = 0.0f;
    for (int i = 0; i < 256; ++i) sum_squares += input.x[i] * input.x[i];
    const float sigma2 = 2.0f * sum_squares / 256.0f;
    const bool uniform = all_zero(input.importance, 256);
    float scales[kSubBlocks];
    float minima[kSubBlocks];
    float sub_weights[kSubBlocks];
    for (int j = 0; j < kSubBlocks; ++j) {
      const float* sub = input.x + kSubColumns * j;
      float weights[kSubColumns];
      float sum_weights = 0.0f;
      for (int i = 0; i < kSubColumns; ++i) {
        const float q = uniform ? 1.0f : input.importance[kSubColumns * j + i];
        weights[i] = q * std::sqrt(sigma2 + sub[i] * sub[i]);
        sum_weights += weights[i];
      }
      sub_weights[j] = sum_weights;
      const AffineGrid grid = search_affine_grid(kSubColumns, 15, sub, weights, {-0.9f, 0.05f, 36},
                                                 codes + kSubColumns * j);
      scales[j] = grid.scale;
      minima[j] = grid.minimum;
    }
    uint8_t scale_codes[kSubBlocks];
    uint8_t min_codes[kSubBlocks];
    const float d = search_unsigned_scale(kSubBlocks, 63, scales, sub_weights, scale_codes);
    const float dmin = search_unsigned_scale(kSubBlocks, 63, minima, sub_weights, min_codes);
    for (int j = 0; j < kSubBlocks; ++j) {
      q4_k_set_scale_min(out.scales, j, {scale_codes[j], min_codes[j]});
    }
    out.d = f32_to_f16(d);
    out.dmin = f32_to_f16(dmin);
  }

  /// Codes again, now for the scales as they are stored. A sub-block whose scale became zero keeps
  /// the codes of the search.
  static void recompute_codes(const float* x, const BlockQ4_K& block, uint8_t* codes) {
    for (int j = 0; j < kSubBlocks; ++j) {
      const SubScale sub = q4_k_scale_min(block.scales, j);
      const float scale = f16_to_f32(block.d) * static_cast<float>(sub.scale);
      if (scale == 0.0f) continue;
      const float minimum = f16_to_f32(block.dmin) * static_cast<float>(sub.min);
      for (int i = kSubColumns * j; i < kSubColumns * (j + 1); ++i) {
        codes[i] = static_cast<uint8_t>(std::clamp(nearest_code((x[i] + minimum) / scale), 0, 15));
      }
    }
  }

  static uint8_t six_bits(float value) {
    return static_cast<uint8_t>(std::min(63, nearest_code(value)));
  }
};

}  // namespace

const WeightFormat& q4_k_format() {
  static const Q4_KFormat format;
  return format;
}

}  // namespace assay
