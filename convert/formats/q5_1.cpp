#include "convert/formats/q5_1.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/five_bits.h"
#include "convert/formats/format_list.h"

namespace assay {
namespace {

class Q5_1Format final : public BlockFormat<Q5_1Format, BlockQ5_1, 32> {
 public:
  std::string_view name() const override { return "Q5_1"; }
  std::optional<uint32_t> gguf_type() const override { return 7; }
  std::optional<uint32_t> gguf_file_type() const override { return 9; }
  Fold fold() const override { return Fold::kAffine; }
  int code_bits() const override { return 5; }

  static void decode(const BlockQ5_1& block, float* out) {
    uint8_t codes[32];
    unpack_five_bits(block.qh, block.qs, codes);
    const float d = f16_to_f32(block.d);
    const float m = f16_to_f32(block.m);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(codes[i]) + m;
  }

  static void integers(const BlockQ5_1& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    unpack_five_bits(block.qh, block.qs, out.codes.data() + 32 * b);
    out.scales[b] = f16_to_f32(block.d);
    out.mins[b] = f16_to_f32(block.m);
  }

  static const char* fault(const BlockQ5_1& block) {
    if (f16_is_not_finite(block.d)) return "scale d is not finite";
    return f16_is_not_finite(block.m) ? "minimum m is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ5_1& out) {
    uint8_t codes[32];
    if (input.importance != nullptr) {
      float weights[32];
      weigh_by_importance(32, input.row_mean_square, input.x, input.importance, weights);
      const AffineGrid grid =
          search_affine_grid(32, 31, input.x, weights, {-0.9f, 0.05f, 36}, codes);
      out.d = f32_to_f16(grid.scale);
      out.m = f32_to_f16(-grid.minimum);
    } else {
      encode_by_range(input.x, codes, out);
    }
    pack_five_bits(codes, out.qh, out.qs);
  }

 private:
  /// Smallest value at code 0, largest at 31. Codes use the scale before it is rounded.
  static void encode_by_range(const float* x, uint8_t* codes, BlockQ5_1& out) {
    const auto [low, high] = std::minmax_element(x, x + 32);
    const float d = (*high - *low) / 31.0f;
    const float inverse = inverse_or_zero(d);
    out.d = f32_to_f16(d);
    out.m = f32_to_f16(*low);
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<uint8_t>(static_cast<int>((x[i] - *low) * inverse + 0.5f));
    }
  }
};

}  // namespace

const WeightFormat& q5_1_format() {
  static const Q5_1Format format;
  return format;
}

}  // namespace assay
