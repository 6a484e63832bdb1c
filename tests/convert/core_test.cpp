#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "convert/core/dtype.h"

namespace assay {
namespace {

TEST(HalfConversion, RoundTripsEveryF16ThatIsNotNan) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if ((half & 0x7fffu) > 0x7c00u) continue;

    EXPECT_EQ(f32_to_f16(f16_to_f32(half)), half);
  }
}

TEST(HalfConversion, RoundsToNearestEven) {
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);
  EXPECT_EQ(f32_to_f16(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1.8p-24f), 0x0002);
  EXPECT_EQ(f32_to_f16(2049.0f), 0x6800);
  EXPECT_EQ(f32_to_f16(2051.0f), 0x6802);
}

TEST(Bf16Conversion, KeepsNanAndRoundsToNearestEven) {
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::quiet_NaN()), 0x7fc0);
  EXPECT_EQ(f32_to_bf16(0x1.01p0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(0x1.03p0f), 0x3f82);
}

}  // namespace
}  // namespace assay
