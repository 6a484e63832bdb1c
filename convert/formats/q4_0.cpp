#include "convert/formats/q4_0.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/format_list.h"

namespace assay {
namespace {

class Q4_0Format final : public BlockFormat<Q4_0Format, BlockQ4_0, 32> {
 public:
  std::string_view name() const override { return "Q4_0"; }
  std::optional<uint32_t> gguf_type() const override { return 2; }
  std::optional<uint32_t> gguf_file_type() const override { return 2; }
  Fold fold() const override { return Fold::kGroup; }
  int code_bits() const override { return 4; }

  bool can_repack() const override { return true; }

  std::optional<RepackObstacle> repack_obstacle(int code_bits, float scale,
                                                int zero) const override {
    // Codes become code − zero + 8, which must be 0 … 15.
    if (zero > 8 || (1 << code_bits) - zero > 8) {
      return RepackObstacle{.only_rounding = false,
                            .reason = "zero point " + std::to_string(zero) + " of " +
                                      std::to_string(code_bits) + "-bit codes; Q4_0 has 8 of 4"};
    }
    return f16_obstacle("scale", scale);
  }

  void repack_row(const IntegerRow& row, int64_t group_size,
                  std::span<std::byte> out) const override {
    for_each_repacked(row, group_size, out, [&](const uint8_t* codes, size_t g, BlockQ4_0& block) {
      block.d = f32_to_f16(row.scales[g]);
      uint8_t moved[32];
      for (int i = 0; i < 32; ++i) moved[i] = static_cast<uint8_t>(codes[i] - row.zeros[g] + 8);
      pack(moved, block);
    });
  }

  static void decode(const BlockQ4_0& block, float* out) {
    const float d = f16_to_f32(block.d);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>((block.qs[i] & 15) - 8);
      out[i + 16] = d * static_cast<float>((block.qs[i] >> 4) - 8);
    }
  }

  static void integers(const BlockQ4_0& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    uint8_t* codes = out.codes.data() + 32 * b;
    for (int i = 0; i < 16; ++i) {
      codes[i] = block.qs[i] & 15;
      codes[i + 16] = block.qs[i] >> 4;
    }
    out.scales[b] = f16_to_f32(block.d);
    out.zeros[b] = 8;
  }

  static const char* fault(const BlockQ4_0& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ4_0& out) {
    uint8_t codes[32];
    if (input.importance != nullptr) {
      float weights[32];
      weigh_by_importance(32, input.row_mean_square, input.x, input.importance, weights);
      out.d = f32_to_f16(search_signed_scale(32, 8, input.x, weights, codes));
    } else {
      out.d = f32_to_f16(encode_by_extreme(input.x, codes));
    }
    pack(codes, out);
  }

 private:
  static void pack(const uint8_t* codes, BlockQ4_0& out) {
    for (int i = 0; i < 16; ++i) {
      out.qs[i] = static_cast<uint8_t>(codes[i] | (codes[i + 16] << 4));
    }
  }

  /// The value of largest magnitude becomes code 0 (−8). Codes use the scale before it is rounded.
  static float encode_by_extreme(const float* x, uint8_t* codes) {
    float extreme = 0.0f;
    for (int i = 0; i < 32; ++i) {
      if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    }
    const float d = extreme / -8.0f;
    const float inverse = inverse_or_zero(d);
    for (int i = 0; i < 32; ++i) {
      const auto code = static_cast<int>(x[i] * inverse + 8.5f);
      codes[i] = static_cast<uint8_t>(std::min(15, code));
    }
    return d;
  }
};

}  // namespace

const WeightFormat& q4_0_format() {
  static const Q4_0Format format;
  return format;
}

}  // namespace assay
