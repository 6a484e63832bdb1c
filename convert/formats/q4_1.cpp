#include "convert/formats/q4_1.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/format_list.h"

namespace assay {
namespace {

class Q4_1Format final : public BlockFormat<Q4_1Format, BlockQ4_1, 32> {
 public:
  std::string_view name() const override { return "Q4_1"; }
  std::optional<uint32_t> gguf_type() const override { return 3; }
  std::optional<uint32_t> gguf_file_type() const override { return 3; }
  Fold fold() const override { return Fold::kAffine; }
  int code_bits() const override { return 4; }

  bool can_repack() const override { return true; }

  std::optional<RepackObstacle> repack_obstacle(int code_bits, float scale,
                                                int zero) const override {
    if (code_bits > 4) {
      return RepackObstacle{.only_rounding = false,
                            .reason = std::to_string(code_bits) + "-bit codes; Q4_1 has 4 bits"};
    }
    if (auto obstacle = f16_obstacle("scale", scale)) return obstacle;
    // Exact: an f16 scale has 11 bits, the zero point 4.
    return f16_obstacle("scale times zero point", scale * static_cast<float>(zero));
  }

  void repack_row(const IntegerRow& row, int64_t group_size,
                  std::span<std::byte> out) const override {
    for_each_repacked(row, group_size, out, [&](const uint8_t* codes, size_t g, BlockQ4_1& block) {
      block.d = f32_to_f16(row.scales[g]);
      block.m = f32_to_f16(-row.scales[g] * static_cast<float>(row.zeros[g]));
      pack(codes, block);
    });
  }

  static void decode(const BlockQ4_1& block, float* out) {
    const float d = f16_to_f32(block.d);
    const float m = f16_to_f32(block.m);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(block.qs[i] & 15) + m;
      out[i + 16] = d * static_cast<float>(block.qs[i] >> 4) + m;
    }
  }

  static void integers(const BlockQ4_1& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    uint8_t* codes = out.codes.data() + 32 * b;
    for (int i = 0; i < 16; ++i) {
      codes[i] = block.qs[i] & 15;
      codes[i + 16] = block.qs[i] >> 4;
    }
    out.scales[b] = f16_to_f32(block.d);
    out.mins[b] = f16_to_f32(block.m);
  }

  static const char* fault(const BlockQ4_1& block) {
    if (f16_is_not_finite(block.d)) return "scale d is not finite";
    return f16_is_not_finite(block.m) ? "minimum m is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ4_1& out) {
    uint8_t codes[32];
    if (input.importance != nullptr) {
      float weights[32];
      weigh_by_importance(32, input.row_mean_square, input.x, input.importance, weights);
      const AffineGrid grid =
          search_affine_grid(32, 15, input.x, weights, {-0.9f, 0.05f, 36}, codes);
      out.d = f32_to_f16(grid.scale);
      out.m = f32_to_f16(-grid.minimum);
    } else {
      encode_by_range(input.x, codes, out);
    }
    pack(codes, out);
  }

 private:
  static void pack(const uint8_t* codes, BlockQ4_1& out) {
    for (int i = 0; i < 16; ++i) {
      out.qs[i] = static_cast<uint8_t>(codes[i] | (codes[i + 16] << 4));
    }
  }

  /// Smallest value at code 0, largest at 15. Codes use the scale before it is rounded.
  static void encode_by_range(const float* x, uint8_t* codes, BlockQ4_1& out) {
    const auto [low, high] = std::minmax_element(x, x + 32);
    const float d = (*high - *low) / 15.0f;
    const float inverse = inverse_or_zero(d);
    out.d = f32_to_f16(d);
    out.m = f32_to_f16(*low);
    for (int i = 0; i < 32; ++i) {
      const auto code = static_cast<int>((x[i] - *low) * inverse + 0.5f);
      codes[i] = static_cast<uint8_t>(std::min(15, code));
    }
  }
};

}  // namespace

const WeightFormat& q4_1_format() {
  static const Q4_1Format format;
  return format;
}

}  // namespace assay
