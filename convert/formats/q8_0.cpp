#include "convert/formats/q8_0.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/format_list.h"

namespace assay {
namespace {

class Q8_0Format final : public BlockFormat<Q8_0Format, BlockQ8_0, 32> {
 public:
  std::string_view name() const override { return "Q8_0"; }
  std::optional<uint32_t> gguf_type() const override { return 8; }
  std::optional<uint32_t> gguf_file_type() const override { return 7; }
  Fold fold() const override { return Fold::kGroup; }
  int code_bits() const override { return 8; }

  bool can_repack() const override { return true; }

  std::optional<RepackObstacle> repack_obstacle(int code_bits, float scale,
                                                int zero) const override {
    if (-zero < -128 || (1 << code_bits) - 1 - zero > 127) {
      return RepackObstacle{.only_rounding = false,
                            .reason = "zero point " + std::to_string(zero) + " of " +
                                      std::to_string(code_bits) +
                                      "-bit codes leaves the range of Q8_0, -128 to 127"};
    }
    return f16_obstacle("scale", scale);
  }

  void repack_row(const IntegerRow& row, int64_t group_size,
                  std::span<std::byte> out) const override {
    for_each_repacked(row, group_size, out, [&](const uint8_t* codes, size_t g, BlockQ8_0& block) {
      block.d = f32_to_f16(row.scales[g]);
      for (int i = 0; i < 32; ++i) {
        block.qs[i] = static_cast<int8_t>(codes[i] - row.zeros[g]);
      }
    });
  }

  static void decode(const BlockQ8_0& block, float* out) {
    const float d = f16_to_f32(block.d);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(block.qs[i]);
  }

  static void integers(const BlockQ8_0& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    for (size_t i = 0; i < 32; ++i) {
      out.codes[32 * b + i] = static_cast<uint8_t>(block.qs[i] + 128);
    }
    out.scales[b] = f16_to_f32(block.d);
    out.zeros[b] = 128;
  }

  static const char* fault(const BlockQ8_0& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  /// Scale amax/127; ggml has no use for an importance here.
  static void encode(const EncoderInput& input, BlockQ8_0& out) {
    float largest = 0.0f;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(input.x[i]));
    const float d = largest / 127.0f;
    const float inverse = inverse_or_zero(d);
    out.d = f32_to_f16(d);
    for (int i = 0; i < 32; ++i) {
      const float code = std::round(input.x[i] * inverse);  // half away from zero
      out.qs[i] = static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f));
    }
  }
};

}  // namespace

const WeightFormat& q8_0_format() {
  static const Q8_0Format format;
  return format;
}

}  // namespace assay
