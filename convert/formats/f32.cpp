#include "convert/formats/format_list.h"
#include "convert/formats/scalar_format.h"

namespace assay {
namespace {

/// IEEE binary32, little-endian.
struct F32Traits {
  static constexpr std::string_view kName = "F32";
  static constexpr uint32_t kGgufFileType = 0;
  static constexpr uint32_t kGgufType = 0;
  static constexpr uint32_t kInfinity = 0x7f800000;
  static float widen(uint32_t bits) { return std::bit_cast<float>(bits); }
  static uint32_t narrow(float value) { return std::bit_cast<uint32_t>(value); }
};

}  // namespace

const WeightFormat& f32_format() {
  static const ScalarFormat<F32Traits, uint32_t> format;
  return format;
}

}  // namespace assay
