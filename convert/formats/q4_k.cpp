#include "convert/formats/q4_k.h"

#include "convert/core/dtype.h"
#include "convert/formats/affine_super_block.h"
#include "convert/formats/block_format.h"
#include "convert/formats/format_list.h"

namespace assay {
namespace {

constexpr int kSubBlocks = 8;
constexpr int kSubColumns = 32;

class Q4_KFormat final : public BlockFormat<Q4_KFormat, BlockQ4_K, 256> {
 public:
  std::string_view name() const override { return "Q4_K"; }
  std::optional<uint32_t> gguf_type() const override { return 12; }
  std::optional<uint32_t> gguf_file_type() const override { return 15; }
  std::string_view fallback_name() const override { return "Q5_0"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 4; }
  int64_t sub_block() const override { return kSubColumns; }

  static void decode(const BlockQ4_K& block, float* out) {
    const float d = f16_to_f32(block.d);
    const float dmin = f16_to_f32(block.dmin);
    for (int j = 0; j < kSubBlocks; ++j) {
      const SubScale sub = q4_k_scale_min(block.scales, j);
      const float scale = d * static_cast<float>(sub.scale);
      const float minimum = dmin * static_cast<float>(sub.min);
      const uint8_t* bytes = block.qs + kSubColumns * (j / 2);
      const int shift = 4 * (j % 2);
      for (int i = 0; i < kSubColumns; ++i) {
        out[kSubColumns * j + i] = scale * static_cast<float>((bytes[i] >> shift) & 15) - minimum;
      }
    }
  }

  static void integers(const BlockQ4_K& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    out.scales[b] = f16_to_f32(block.d);
    out.mins[b] = f16_to_f32(block.dmin);
    for (int j = 0; j < kSubBlocks; ++j) {
      const SubScale sub = q4_k_scale_min(block.scales, j);
      out.sub_scales[kSubBlocks * b + static_cast<size_t>(j)] = sub.scale;
      out.sub_mins[kSubBlocks * b + static_cast<size_t>(j)] = sub.min;
      uint8_t* codes = out.codes.data() + 256 * b + static_cast<size_t>(kSubColumns * j);
      const uint8_t* bytes = block.qs + kSubColumns * (j / 2);
      const int shift = 4 * (j % 2);
      for (int i = 0; i < kSubColumns; ++i) codes[i] = (bytes[i] >> shift) & 15;
    }
  }

  static const char* fault(const BlockQ4_K& block) {
    if (f16_is_not_finite(block.d)) return "scale d is not finite";
    return f16_is_not_finite(block.dmin) ? "scale dmin is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ4_K& out) {
    uint8_t codes[256];
    const AffineHead head =
        encode_affine_super_block(15, {-1.0f, 0.1f, 20}, input.x, input.importance, codes);
    out.d = head.d;
    out.dmin = head.dmin;
    std::memcpy(out.scales, head.scales, sizeof(out.scales));
    for (int chunk = 0; chunk < 4; ++chunk) {
      for (int i = 0; i < 32; ++i) {
        out.qs[32 * chunk + i] =
            static_cast<uint8_t>(codes[64 * chunk + i] | (codes[64 * chunk + 32 + i] << 4));
      }
    }
  }
};

}  // namespace

const WeightFormat& q4_k_format() {
  static const Q4_KFormat format;
  return format;
}

}  // namespace assay
