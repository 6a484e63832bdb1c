#include "convert/formats/q5_0.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/five_bits.h"
#include "convert/formats/format_list.h"

namespace assay {
namespace {

class Q5_0Format final : public BlockFormat<Q5_0Format, BlockQ5_0, 32> {
 public:
  std::string_view name() const override { return "Q5_0"; }
  std::optional<uint32_t> gguf_type() const override { return 6; }
  std::optional<uint32_t> gguf_file_type() const override { return 8; }
  Fold fold() const override { return Fold::kGroup; }
  int code_bits() const override { return 5; }
  bool can_repack() const override { return true; }

  std::optional<RepackObstacle> repack_obstacle(int code_bits, float scale,
                                                int /*zero*/) const override {
    if (code_bits > 4) {
      return RepackObstacle{.only_rounding = false,
                            .reason = std::to_string(code_bits) + "-bit codes; Q5_0 has 5 bits"};
    }
    return f16_obstacle("scale", scale);  // code − zero + 16 is at least 1, at most 31
  }

  void repack_row(const IntegerRow& row, int64_t group_size,
                  std::span<std::byte> out) const override {
    for_each_repacked(row, group_size, out, [&](const uint8_t* codes, size_t g, BlockQ5_0& block) {
      block.d = f32_to_f16(row.scales[g]);
      uint8_t moved[32];
      for (int i = 0; i < 32; ++i) moved[i] = static_cast<uint8_t>(codes[i] - row.zeros[g] + 16);
      pack_five_bits(moved, block.qh, block.qs);
    });
  }

  static void decode(const BlockQ5_0& block, float* out) {
    uint8_t codes[32];
    unpack_five_bits(block.qh, block.qs, codes);
    const float d = f16_to_f32(block.d);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(codes[i] - 16);
  }

  static void integers(const BlockQ5_0& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    unpack_five_bits(block.qh, block.qs, out.codes.data() + 32 * b);
    out.scales[b] = f16_to_f32(block.d);
    out.zeros[b] = 16;
  }

  static const char* fault(const BlockQ5_0& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ5_0& out) {
    uint8_t codes[32];
    if (input.importance != nullptr) {
      float weights[32];
      weigh_by_importance(32, input.row_mean_square, input.x, input.importance, weights);
      out.d = f32_to_f16(search_signed_scale(32, 16, input.x, weights, codes));
    } else {
      out.d = f32_to_f16(encode_by_extreme(input.x, codes));
    }
    pack_five_bits(codes, out.qh, out.qs);
  }

 private:
  /// The value of largest magnitude becomes code 0 (−16). Codes use the scale before it is rounded.
  static float encode_by_extreme(const float* x, uint8_t* codes) {
    float extreme = 0.0f;
    for (int i = 0; i < 32; ++i) {
      if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    }
    const float d = extreme / -16.0f;
    const float inverse = inverse_or_zero(d);
    for (int i = 0; i < 32; ++i) {
      const auto code = static_cast<int>(x[i] * inverse + 16.5f);
      codes[i] = static_cast<uint8_t>(std::min(31, code));
    }
    return d;
  }
};

}  // namespace

const WeightFormat& q5_0_format() {
  static const Q5_0Format format;
  return format;
}

}  // namespace assay
