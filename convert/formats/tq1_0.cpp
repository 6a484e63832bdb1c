#include "convert/formats/tq1_0.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/format_list.h"

namespace assay {
namespace {

constexpr int kPowers[] = {1, 3, 9, 27, 81};

class TQ1_0Format final : public BlockFormat<TQ1_0Format, BlockTQ1_0, 256> {
 public:
  std::string_view name() const override { return "TQ1_0"; }
  std::optional<uint32_t> gguf_type() const override { return 34; }
  std::optional<uint32_t> gguf_file_type() const override { return 36; }
  std::string_view fallback_name() const override { return "Q4_0"; }
  Fold fold() const override { return Fold::kGroup; }
  int code_bits() const override { return 2; }

  static void decode(const BlockTQ1_0& block, float* out) {
    uint8_t codes[256];
    unpack(block, codes);
    const float d = f16_to_f32(block.d);
    for (int i = 0; i < 256; ++i) out[i] = d * static_cast<float>(codes[i] - 1);
  }

  static void integers(const BlockTQ1_0& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    unpack(block, out.codes.data() + 256 * b);
    out.scales[b] = f16_to_f32(block.d);
    out.zeros[b] = 1;
  }

  static const char* fault(const BlockTQ1_0& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockTQ1_0& out) {
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
  static void unpack(const BlockTQ1_0& block, uint8_t* codes) {
    for (int n = 0; n < 5; ++n) {
      const int power = kPowers[n];
      for (int m = 0; m < 32; ++m) codes[32 * n + m] = digit(block.qs[m], power);
      for (int m = 0; m < 16; ++m) codes[160 + 16 * n + m] = digit(block.qs[32 + m], power);
    }
    for (int n = 0; n < 4; ++n) {
      for (int m = 0; m < 4; ++m) codes[240 + 4 * n + m] = digit(block.qh[m], kPowers[n]);
    }
  }

  static void pack(const uint8_t* codes, BlockTQ1_0& out) {
    for (int m = 0; m < 32; ++m) out.qs[m] = byte_of(codes + m, 32, 5);
    for (int m = 0; m < 16; ++m) out.qs[32 + m] = byte_of(codes + 160 + m, 16, 5);
    for (int m = 0; m < 4; ++m) out.qh[m] = byte_of(codes + 240 + m, 4, 4);
  }

  static uint8_t digit(uint8_t byte, int power) {
    return static_cast<uint8_t>((((byte * power) & 255) * 3) >> 8);
  }

  /// `n` digits, `stride` apart; missing ones are 0. The number is scaled to a byte, rounded up.
  static uint8_t byte_of(const uint8_t* codes, int stride, int n) {
    int number = 0;
    for (int k = 0; k < 5; ++k) number = 3 * number + (k < n ? codes[stride * k] : 0);
    return static_cast<uint8_t>((number * 256 + 242) / 243);
  }
};

}  // namespace

const WeightFormat& tq1_0_format() {
  static const TQ1_0Format format;
  return format;
}

}  // namespace assay
