#include "convert/formats/q1_0.h"

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/format_list.h"
#include "convert/formats/sign_masks.h"

namespace assay {
namespace {

constexpr int kColumns = 128;

class Q1_0Format final : public BlockFormat<Q1_0Format, BlockQ1_0, kColumns> {
 public:
  std::string_view name() const override { return "Q1_0"; }
  std::optional<uint32_t> gguf_type() const override { return 41; }
  std::optional<uint32_t> gguf_file_type() const override { return 40; }
  Fold fold() const override { return Fold::kGroup; }
  int code_bits() const override { return 2; }

  static void decode(const BlockQ1_0& block, float* out) {
    const float d = f16_to_f32(block.d);
    for (int byte = 0; byte < kColumns / 8; ++byte) {
      const uint32_t* masks = kSignMasks[255 - block.qs[byte]].data();
      for (int k = 0; k < 8; ++k) out[8 * byte + k] = with_sign(d, masks[k]);
    }
  }

  static void integers(const BlockQ1_0& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    uint8_t* codes = out.codes.data() + kColumns * b;
    for (int i = 0; i < kColumns; ++i) codes[i] = static_cast<uint8_t>(2 * bit(block, i));
    out.scales[b] = f16_to_f32(block.d);
    out.zeros[b] = 1;
  }

  static const char* fault(const BlockQ1_0& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ1_0& out) {
    float sum = 0.0f;
    for (int i = 0; i < kColumns; ++i) sum += std::fabs(input.x[i]);
    out.d = f32_to_f16(sum / static_cast<float>(kColumns));
    for (int i = 0; i < kColumns; ++i) {
      const int set = input.x[i] >= 0.0f ? 1 : 0;
      out.qs[i / 8] = static_cast<uint8_t>(out.qs[i / 8] | (set << (i % 8)));
    }
  }

 private:
  static int bit(const BlockQ1_0& block, int i) { return (block.qs[i / 8] >> (i % 8)) & 1; }
};

}  // namespace

const WeightFormat& q1_0_format() {
  static const Q1_0Format format;
  return format;
}

}  // namespace assay
