#include "convert/formats/nvfp4.h"

#include <algorithm>
#include <bit>

#include "convert/formats/block_format.h"
#include "convert/formats/format_list.h"
#include "convert/formats/fp4_values.h"

namespace assay {
namespace {

/// Half of the unsigned E4M3 number.
float scale_of(uint8_t bits) {
  const uint32_t exponent = (bits >> 3) & 15;
  const uint32_t mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return 0.0f;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
  return std::bit_cast<float>((exponent + 119) << 23 | mantissa << 20);
}

/// Nearest unsigned E4M3 number, halves up.
uint8_t e4m3_of(float value) {
  if (!(value > 0.0f)) return 0;
  const float x = std::min(value, 448.0f);
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  int exponent = static_cast<int>(bits >> 23) - 127 + 7;
  if (exponent <= 0) return static_cast<uint8_t>(std::min(7, static_cast<int>(x * 512.0f + 0.5f)));
  if (exponent >= 15) return 0x7e;
  uint32_t mantissa = ((bits >> 20) & 7) + ((bits >> 19) & 1);
  if (mantissa == 8) {
    mantissa = 0;
    ++exponent;
    if (exponent >= 15) return 0x7e;
  }
  return static_cast<uint8_t>(static_cast<uint32_t>(exponent) << 3 | mantissa);
}

class NVFP4Format final : public BlockFormat<NVFP4Format, BlockNVFP4, 64> {
 public:
  std::string_view name() const override { return "NVFP4"; }
  std::optional<uint32_t> gguf_type() const override { return 40; }
  std::optional<uint32_t> gguf_file_type() const override { return 39; }
  Fold fold() const override { return Fold::kGroup; }
  int code_bits() const override { return 5; }
  int64_t fixed_group() const override { return 16; }

  static void decode(const BlockNVFP4& block, float* out) {
    for (int t = 0; t < 4; ++t) {
      const float scale = scale_of(block.d[t]);
      for (int i = 0; i < 8; ++i) {
        out[16 * t + i] = scale * static_cast<float>(kFp4Values[block.qs[8 * t + i] & 15]);
        out[16 * t + i + 8] = scale * static_cast<float>(kFp4Values[block.qs[8 * t + i] >> 4]);
      }
    }
  }

  static void integers(const BlockNVFP4& block, int64_t index, IntegerRow& out) {
    for (int t = 0; t < 4; ++t) {
      const size_t group = 4 * static_cast<size_t>(index) + static_cast<size_t>(t);
      uint8_t* codes = out.codes.data() + 16 * group;
      for (int i = 0; i < 8; ++i) {
        codes[i] = static_cast<uint8_t>(kFp4Zero + kFp4Values[block.qs[8 * t + i] & 15]);
        codes[i + 8] = static_cast<uint8_t>(kFp4Zero + kFp4Values[block.qs[8 * t + i] >> 4]);
      }
      out.scales[group] = scale_of(block.d[t]);
      out.zeros[group] = kFp4Zero;
    }
  }

  static const char* fault(const BlockNVFP4&) { return nullptr; }  // every pattern is a number

  static void encode(const EncoderInput& input, BlockNVFP4& out) {
    for (int t = 0; t < 4; ++t) {
      const float* x = input.x + 16 * t;
      float largest = 0.0f;
      for (int i = 0; i < 16; ++i) largest = std::max(largest, std::fabs(x[i]));
      out.d[t] = e4m3_of(largest / 6.0f);
      const float scale = scale_of(out.d[t]);
      for (int i = 0; i < 8; ++i) {
        out.qs[8 * t + i] =
            static_cast<uint8_t>(nearest_fp4(x[i], scale) | (nearest_fp4(x[i + 8], scale) << 4));
      }
    }
  }
};

}  // namespace

const WeightFormat& nvfp4_format() {
  static const NVFP4Format format;
  return format;
}

}  // namespace assay
