#include "runtime/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "convert/core/math64.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::bits_equal;
using test::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// |actual − exact| in units of the last place of the exact result.
double ulps(float actual, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(actual - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST(Math, ExpIsWithinItsBound) {
  Random random(1);
  for (int i = 0; i < 300000; ++i) {
    const float x = -104.0f + random.unit() * (104.0f + 88.7f);
    EXPECT_LE(ulps(exp_canonical(x), std::exp(double{x})), 0.88) << x;
  }
}

TEST(Math, ExpAtItsEdges) {
  EXPECT_TRUE(bits_equal(exp_canonical(0.0f), 1.0f));
  EXPECT_TRUE(bits_equal(exp_canonical(-kInfinity), 0.0f));
  EXPECT_TRUE(bits_equal(exp_canonical(-104.5f), 0.0f));
  EXPECT_TRUE(bits_equal(exp_canonical(kInfinity), kInfinity));
  EXPECT_TRUE(bits_equal(exp_canonical(89.0f), kInfinity));
  EXPECT_TRUE(std::isnan(exp_canonical(NAN)));
}

TEST(Math, LogIsWithinItsBoundForEveryExponent) {
  Random random(2);
  for (int i = 0; i < 300000; ++i) {
    const auto bits = static_cast<uint32_t>(random.integer(1, 0x7f7fffff));
    const float x = float_from_bits(bits);
    EXPECT_LE(ulps(log_canonical(x), std::log(double{x})), 0.80) << x;
  }
}

TEST(Math, Log1pAndTanhAreWithinTheirBounds) {
  Random random(3);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::ldexp(1.0f + random.unit(), static_cast<int>(random.integer(-30, 30)));
    EXPECT_LE(ulps(log1p_canonical(x), std::log1p(double{x})), 1.35) << x;
    if (x < 1.0f) {
      EXPECT_LE(ulps(log1p_canonical(-x), std::log1p(-double{x})), 1.35) << -x;
    }
    EXPECT_LE(ulps(tanh_canonical(x), std::tanh(double{x})), 1.31) << x;
    EXPECT_EQ(tanh_canonical(-x), -tanh_canonical(x));
  }
}

TEST(Math, SiluOfLargeNegativeInputIsNegativeZeroNotNan) {
  EXPECT_TRUE(bits_equal(silu_canonical(-1000.0f), -0.0f));
  EXPECT_TRUE(bits_equal(silu_canonical(0.0f), 0.0f));
  EXPECT_EQ(silu_canonical(1000.0f), 1000.0f);
}

TEST(Math64, AgreesWithLibmToFortyFiveBits) {
  Random random(4);
  constexpr double kBound = 0x1p-45;
  for (int i = 0; i < 100000; ++i) {
    const double angle =
        (random.unit() * 2.0 - 1.0) * std::ldexp(1.0, static_cast<int>(random.integer(-20, 29)));
    EXPECT_NEAR(sin64(angle), std::sin(angle), kBound) << angle;
    EXPECT_NEAR(cos64(angle), std::cos(angle), kBound) << angle;
    const double x = random.unit() * 100.0 - 50.0;
    EXPECT_NEAR(exp64(x) / std::exp(x), 1.0, kBound) << x;
    const double y = std::ldexp(1.0 + random.unit(), static_cast<int>(random.integer(-1000, 1000)));
    EXPECT_NEAR(log64(y), std::log(y), kBound * std::max(1.0, std::fabs(std::log(y)))) << y;
  }
  EXPECT_EQ(sin64(0.0), 0.0);
  EXPECT_EQ(cos64(0.0), 1.0);
  EXPECT_EQ(exp64(0.0), 1.0);
  EXPECT_EQ(log64(1.0), 0.0);
}

}  // namespace
}  // namespace assay
