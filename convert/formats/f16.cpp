#include "convert/formats/format_list.h"
#include "convert/formats/scalar_format.h"

namespace assay {
namespace {

/// IEEE binary16, little-endian, subnormals kept.
struct F16Traits {
  static constexpr std::string_view kName = "F16";
  static constexpr uint32_t kGgufFileType = 1;
  static constexpr uint32_t kGgufType = 1;
  static constexpr uint16_t kInfinity = 0x7c00;

  /// The same result as f16_to_f32, without branches, so that loops over rows are vectorised: the
  /// exponent is moved by one exact multiplication, which also makes subnormals normal.
  static float widen(uint16_t bits) {
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
    const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;  // infinity, NaN
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
  }

  static uint16_t narrow(float value) { return f32_to_f16(value); }
};

}  // namespace

const WeightFormat& f16_format() {
  static const ScalarFormat<F16Traits, uint16_t> format;
  return format;
}

}  // namespace assay
