#include "convert/formats/iq4_nl.h"

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/format_list.h"
#include "convert/formats/iq4_values.h"

namespace assay {
namespace {

class IQ4_NLFormat final : public BlockFormat<IQ4_NLFormat, BlockIQ4_NL, 32> {
 public:
  std::string_view name() const override { return "IQ4_NL"; }
  std::optional<uint32_t> gguf_type() const override { return 20; }
  std::optional<uint32_t> gguf_file_type() const override { return 25; }
  Fold fold() const override { return Fold::kGroup; }
  int code_bits() const override { return 8; }

  static void decode(const BlockIQ4_NL& block, float* out) {
    const float d = f16_to_f32(block.d);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(kIq4Values[block.qs[i] & 15]);
      out[i + 16] = d * static_cast<float>(kIq4Values[block.qs[i] >> 4]);
    }
  }

  static void integers(const BlockIQ4_NL& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    uint8_t* codes = out.codes.data() + 32 * b;
    for (int i = 0; i < 16; ++i) {
      codes[i] = static_cast<uint8_t>(kIq4Zero + kIq4Values[block.qs[i] & 15]);
      codes[i + 16] = static_cast<uint8_t>(kIq4Zero + kIq4Values[block.qs[i] >> 4]);
    }
    out.scales[b] = f16_to_f32(block.d);
    out.zeros[b] = kIq4Zero;
  }

  static const char* fault(const BlockIQ4_NL& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockIQ4_NL& out) {
    float weights[32];
    if (input.importance != nullptr) {
      const float sigma2 = sum_of_squares(32, input.x) * (2.0f / 32.0f);
      weigh_by_importance(32, sigma2, input.x, input.importance, weights);
    } else {
      for (int i = 0; i < 32; ++i) weights[i] = input.x[i] * input.x[i];
    }
    const float scale = search_iq4_scale(input.x, weights);
    out.d = f32_to_f16(scale);
    uint8_t codes[32];
    nearest_iq4_codes(32, input.x, inverse_or_zero(scale), codes);
    for (int i = 0; i < 16; ++i) {
      out.qs[i] = static_cast<uint8_t>(codes[i] | (codes[i + 16] << 4));
    }
  }
};

}  // namespace

const WeightFormat& iq4_nl_format() {
  static const IQ4_NLFormat format;
  return format;
}

}  // namespace assay
