#include "convert/formats/tq2_0.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/format_list.h"
#include "convert/formats/two_bits.h"

namespace assay {
namespace {

class TQ2_0Format final : public BlockFormat<TQ2_0Format, BlockTQ2_0, 256> {
 public:
  std::string_view name() const override { return "TQ2_0"; }
  std::optional<uint32_t> gguf_type() const override { return 35; }
  std::optional<uint32_t> gguf_file_type() const override { return 37; }
  std::string_view fallback_name() const override { return "Q4_0"; }
  Fold fold() const override { return Fold::kGroup; }
  int code_bits() const override { return 2; }

  static void decode(const BlockTQ2_0& block, float* out) {
    uint8_t codes[256];
    unpack(block, codes);
    const float d = f16_to_f32(block.d);
    for (int i = 0; i < 256; ++i) out[i] = d * static_cast<float>(codes[i] - 1);
  }

  static void integers(const BlockTQ2_0& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    unpack(block, out.codes.data() + 256 * b);
    out.scales[b] = f16_to_f32(block.d);
    out.zeros[b] = 1;
  }

  static const char* fault(const BlockTQ2_0& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockTQ2_0& out) {
    float largest = 0.0f;
    for (int i = 0; i < 256; ++i) largest = std::max(largest, std::fabs(input.x[i]));
    out.d = f32_to_f16(largest);
    const float inverse = inverse_or_zero(largest);
    uint8_t codes[256];
    for (int i = 0; i < 256; ++i) {
      codes[i] = static_cast<uint8_t>(round_away(input.x[i] * inverse) + 1);
    }
    pack(codes, out);
  }

 private:
  static void unpack(const BlockTQ2_0& block, uint8_t* codes) { unpack_two_bits(block.qs, codes); }

  static void pack(const uint8_t* codes, BlockTQ2_0& out) { pack_two_bits(codes, out.qs); }
};

}  // namespace

const WeightFormat& tq2_0_format() {
  static const TQ2_0Format format;
  return format;
}

}  // namespace assay
