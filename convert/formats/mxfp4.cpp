#include "convert/formats/mxfp4.h"

#include <algorithm>
#include <bit>

#include "convert/formats/block_format.h"
#include "convert/formats/format_list.h"
#include "convert/formats/fp4_values.h"

namespace assay {
namespace {

/// 2^(e − 128); subnormal for e < 2.
float scale_of(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}

class MXFP4Format final : public BlockFormat<MXFP4Format, BlockMXFP4, 32> {
 public:
  std::string_view name() const override { return "MXFP4"; }
  std::optional<uint32_t> gguf_type() const override { return 39; }
  std::optional<uint32_t> gguf_file_type() const override { return 38; }
  Fold fold() const override { return Fold::kGroup; }
  int code_bits() const override { return 5; }

  static void decode(const BlockMXFP4& block, float* out) {
    const float scale = scale_of(block.e);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(kFp4Values[block.qs[i] & 15]);
      out[i + 16] = scale * static_cast<float>(kFp4Values[block.qs[i] >> 4]);
    }
  }

  static void integers(const BlockMXFP4& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    uint8_t* codes = out.codes.data() + 32 * b;
    for (int i = 0; i < 16; ++i) {
      codes[i] = static_cast<uint8_t>(kFp4Zero + kFp4Values[block.qs[i] & 15]);
      codes[i + 16] = static_cast<uint8_t>(kFp4Zero + kFp4Values[block.qs[i] >> 4]);
    }
    out.scales[b] = scale_of(block.e);
    out.zeros[b] = kFp4Zero;
  }

  static const char* fault(const BlockMXFP4& block) {
    return block.e == 255 ? "scale e is NaN" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockMXFP4& out) {
    float largest = 0.0f;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(input.x[i]));
    // floor(log2 largest) − 2 + 127 from the exponent field, so that no libm decides; values whose
    // exponent lies below the format's get its smallest scale.
    const int exponent = static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23);
    out.e = static_cast<uint8_t>(std::max(0, exponent - 2));
    const float scale = scale_of(out.e);
    for (int i = 0; i < 16; ++i) {
      out.qs[i] = static_cast<uint8_t>(nearest_fp4(input.x[i], scale) |
                                       (nearest_fp4(input.x[i + 16], scale) << 4));
    }
  }
};

}  // namespace

const WeightFormat& mxfp4_format() {
  static const MXFP4Format format;
  return format;
}

}  // namespace assay
