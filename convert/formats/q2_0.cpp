#include "convert/formats/q2_0.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/format_list.h"

namespace assay {
namespace {

constexpr int kColumns = 64;

class Q2_0Format final : public BlockFormat<Q2_0Format, BlockQ2_0, kColumns> {
 public:
  std::string_view name() const override { return "Q2_0"; }
  std::optional<uint32_t> gguf_type() const override { return 42; }
  std::optional<uint32_t> gguf_file_type() const override { return 41; }
  std::string_view fallback_name() const override { return "Q4_0"; }
  Fold fold() const override { return Fold::kGroup; }
  int code_bits() const override { return 2; }

  static void decode(const BlockQ2_0& block, float* out) {
    const float d = f16_to_f32(block.d);
    const float values[4] = {-d, d * 0.0f, d, d * 2.0f};
    for (int byte = 0; byte < kColumns / 4; ++byte) {
      const uint8_t codes = block.qs[byte];
      for (int k = 0; k < 4; ++k) out[4 * byte + k] = values[(codes >> (2 * k)) & 3];
    }
  }

  static void integers(const BlockQ2_0& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    uint8_t* codes = out.codes.data() + kColumns * b;
    for (int i = 0; i < kColumns; ++i) codes[i] = static_cast<uint8_t>(code(block, i));
    out.scales[b] = f16_to_f32(block.d);
    out.zeros[b] = 1;
  }

  static const char* fault(const BlockQ2_0& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ2_0& out) {
    float largest = 0.0f;
    for (int i = 0; i < kColumns; ++i) largest = std::max(largest, std::fabs(input.x[i]));
    out.d = f32_to_f16(largest);
    const float inverse = inverse_or_zero(largest);
    for (int i = 0; i < kColumns; ++i) {
      const int c = round_away(input.x[i] * inverse) + 1;
      out.qs[i / 4] = static_cast<uint8_t>(out.qs[i / 4] | (c << (2 * (i % 4))));
    }
  }

 private:
  static int code(const BlockQ2_0& block, int i) { return (block.qs[i / 4] >> (2 * (i % 4))) & 3; }
};

}  // namespace

const WeightFormat& q2_0_format() {
  static const Q2_0Format format;
  return format;
}

}  // namespace assay
