#include "convert/formats/q5_k.h"

#include "convert/core/dtype.h"
#include "convert/formats/affine_super_block.h"
#include "convert/formats/block_format.h"
#include "convert/formats/format_list.h"
#include "convert/formats/q4_k.h"

namespace assay {
namespace {

constexpr int kSubBlocks = 8;
constexpr int kSubColumns = 32;

class Q5_KFormat final : public BlockFormat<Q5_KFormat, BlockQ5_K, 256> {
 public:
  std::string_view name() const override { return "Q5_K"; }
  std::optional<uint32_t> gguf_type() const override { return 13; }
  std::optional<uint32_t> gguf_file_type() const override { return 17; }
  std::string_view fallback_name() const override { return "Q5_1"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 5; }
  int64_t sub_block() const override { return kSubColumns; }

  static void decode(const BlockQ5_K& block, float* out) {
    const float d = f16_to_f32(block.d);
    const float dmin = f16_to_f32(block.dmin);
    for (int j = 0; j < kSubBlocks; ++j) {
      const SubScale sub = q4_k_scale_min(block.scales, j);
      const float scale = d * static_cast<float>(sub.scale);
      const float minimum = dmin * static_cast<float>(sub.min);
      for (int i = 0; i < kSubColumns; ++i) {
        out[kSubColumns * j + i] = scale * static_cast<float>(code_at(block, j, i)) - minimum;
      }
    }
  }

  static void integers(const BlockQ5_K& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    out.scales[b] = f16_to_f32(block.d);
    out.mins[b] = f16_to_f32(block.dmin);
    for (int j = 0; j < kSubBlocks; ++j) {
      const SubScale sub = q4_k_scale_min(block.scales, j);
      out.sub_scales[kSubBlocks * b + static_cast<size_t>(j)] = sub.scale;
      out.sub_mins[kSubBlocks * b + static_cast<size_t>(j)] = sub.min;
      uint8_t* codes = out.codes.data() + 256 * b + static_cast<size_t>(kSubColumns * j);
      for (int i = 0; i < kSubColumns; ++i) {
        codes[i] = static_cast<uint8_t>(code_at(block, j, i));
      }
    }
  }

  static const char* fault(const BlockQ5_K& block) {
    if (f16_is_not_finite(block.d)) return "scale d is not finite";
    return f16_is_not_finite(block.dmin) ? "scale dmin is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ5_K& out) {
    uint8_t codes[256];
    const AffineHead head =
        encode_affine_super_block(31, {-0.5f, 0.1f, 15}, input.x, input.importance, codes);
    out.d = head.d;
    out.dmin = head.dmin;
    std::memcpy(out.scales, head.scales, sizeof(out.scales));
    for (int chunk = 0; chunk < 4; ++chunk) {
      for (int i = 0; i < 32; ++i) {
        out.qs[32 * chunk + i] = static_cast<uint8_t>((codes[64 * chunk + i] & 15) |
                                                      ((codes[64 * chunk + 32 + i] & 15) << 4));
      }
    }
    for (int j = 0; j < kSubBlocks; ++j) {
      for (int i = 0; i < kSubColumns; ++i) {
        out.qh[i] = static_cast<uint8_t>(out.qh[i] | ((codes[kSubColumns * j + i] >> 4) << j));
      }
    }
  }

 private:
  /// Code of column i of sub-block j.
  static int code_at(const BlockQ5_K& block, int j, int i) {
    const int low = (block.qs[kSubColumns * (j / 2) + i] >> (4 * (j % 2))) & 15;
    return low | (((block.qh[i] >> j) & 1) << 4);
  }
};

}  // namespace

const WeightFormat& q5_k_format() {
  static const Q5_KFormat format;
  return format;
}

}  // namespace assay
