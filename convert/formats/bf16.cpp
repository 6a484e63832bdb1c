#include "convert/formats/format_list.h"
#include "convert/formats/scalar_format.h"

namespace assay {
namespace {

/// The upper half of binary32, little-endian.
struct Bf16Traits {
  static constexpr std::string_view kName = "BF16";
  static constexpr uint32_t kGgufFileType = 32;
  static constexpr uint32_t kGgufType = 30;
  static constexpr uint16_t kInfinity = 0x7f80;
  static float widen(uint16_t bits) { return bf16_to_f32(bits); }
  static uint16_t narrow(float value) { return f32_to_bf16(value); }
};

}  // namespace

const WeightFormat& bf16_format() {
  static const ScalarFormat<Bf16Traits, uint16_t> format;
  return format;
}

}  // namespace assay
