#include "convert/formats/iq4_xs.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/format_list.h"
#include "convert/formats/iq4_values.h"

namespace assay {
namespace {

constexpr int kSubBlocks = 8;
constexpr int kSubColumns = 32;

class IQ4_XSFormat final : public BlockFormat<IQ4_XSFormat, BlockIQ4_XS, 256> {
 public:
  std::string_view name() const override { return "IQ4_XS"; }
  std::optional<uint32_t> gguf_type() const override { return 23; }
  std::optional<uint32_t> gguf_file_type() const override { return 30; }
  std::string_view fallback_name() const override { return "IQ4_NL"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 8; }
  int64_t sub_block() const override { return kSubColumns; }
  int code_zero() const override { return kIq4Zero; }

  static void decode(const BlockIQ4_XS& block, float* out) {
    const float d = f16_to_f32(block.d);
    for (int j = 0; j < kSubBlocks; ++j) {
      const float scale = d * static_cast<float>(sub_scale(block, j));
      float values[16];
      for (int c = 0; c < 16; ++c) values[c] = scale * static_cast<float>(kIq4Values[c]);
      const uint8_t* bytes = block.qs + 16 * j;
      float* to = out + kSubColumns * j;
      for (int i = 0; i < 16; ++i) {
        to[i] = values[bytes[i] & 15];
        to[i + 16] = values[bytes[i] >> 4];
      }
    }
  }

  static void integers(const BlockIQ4_XS& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    out.scales[b] = f16_to_f32(block.d);
    out.mins[b] = 0.0f;
    for (int j = 0; j < kSubBlocks; ++j) {
      const size_t at = kSubBlocks * b + static_cast<size_t>(j);
      out.sub_scales[at] = static_cast<int16_t>(sub_scale(block, j));
      out.sub_mins[at] = 0;
      uint8_t* codes = out.codes.data() + kSubColumns * at;
      const uint8_t* bytes = block.qs + 16 * j;
      for (int i = 0; i < 16; ++i) {
        codes[i] = static_cast<uint8_t>(kIq4Zero + kIq4Values[bytes[i] & 15]);
        codes[i + 16] = static_cast<uint8_t>(kIq4Zero + kIq4Values[bytes[i] >> 4]);
      }
    }
  }

  static const char* fault(const BlockIQ4_XS& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockIQ4_XS& out) {
    const float sigma2 = sum_of_squares(256, input.x) * (2.0f / 256.0f);
    float scales[kSubBlocks];
    float extreme = 0.0f;  // scale of largest magnitude, the first one of equals
    for (int j = 0; j < kSubBlocks; ++j) {
      const float* x = input.x + kSubColumns * j;
      float weights[kSubColumns];
      if (input.importance != nullptr) {
        weigh_by_importance(kSubColumns, sigma2, x, input.importance + kSubColumns * j, weights);
      } else {
        for (int i = 0; i < kSubColumns; ++i) weights[i] = x[i] * x[i];
      }
      scales[j] = search_iq4_scale(x, weights);
      if (std::fabs(scales[j]) > std::fabs(extreme)) extreme = scales[j];
    }
    const float d = -extreme / 32.0f;
    out.d = f32_to_f16(d);
    const float inverse = inverse_or_zero(d);
    int high = 0;
    for (int j = 0; j < kSubBlocks; ++j) {
      const int scale = std::clamp(nearest_code(inverse * scales[j]), -32, 31);
      const float inverse_scale = inverse_or_zero(d * static_cast<float>(scale));
      const float* x = input.x + kSubColumns * j;
      uint8_t codes[kSubColumns];
      nearest_iq4_codes(kSubColumns, x, inverse_scale, codes);
      for (int i = 0; i < 16; ++i) {
        out.qs[16 * j + i] = static_cast<uint8_t>(codes[i] | (codes[i + 16] << 4));
      }
      const int field = scale + 32;
      out.scales_l[j / 2] =
          static_cast<uint8_t>(out.scales_l[j / 2] | ((field & 15) << (4 * (j % 2))));
      high |= (field >> 4) << (2 * j);
    }
    out.scales_h = static_cast<uint16_t>(high);
  }

 private:
  static int sub_scale(const BlockIQ4_XS& block, int j) {
    const int low = (block.scales_l[j / 2] >> (4 * (j % 2))) & 15;
    return (low | (((block.scales_h >> (2 * j)) & 3) << 4)) - 32;
  }
};

}  // namespace

const WeightFormat& iq4_xs_format() {
  static const IQ4_XSFormat format;
  return format;
}

}  // namespace assay
