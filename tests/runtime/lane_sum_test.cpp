#include <gtest/gtest.h>

#include <cmath>

#include "runtime/ops/rms_norm.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::bits_equal;
using test::Random;

/// The lane sum of up to 256 terms as a recursive pairwise sum of lanes, written from the other
/// end: result(m, l) = result(2m, l) + result(2m, l + m).
float folded(const std::vector<float>& lanes, size_t l, size_t m) {
  if (m == 32) return lanes[l];
  return folded(lanes, l, 2 * m) + folded(lanes, l + m, 2 * m);
}

float expected_sum(const std::vector<float>& a) {
  float total = 0.0f;
  for (size_t first = 0; first < a.size(); first += 256) {
    std::vector<float> lanes(32, 0.0f);
    for (size_t i = first; i < std::min(a.size(), first + 256); ++i) lanes[i % 32] += a[i];
    const float block = folded(lanes, 0, 1);
    total = first == 0 ? block : total + block;
  }
  return total;
}

TEST(LaneSum, AddsInTheOrderOfThePage) {
  Random random(3);
  for (const size_t n : {0u, 1u, 31u, 32u, 33u, 64u, 255u, 256u, 257u, 512u, 513u, 2560u, 5120u}) {
    const std::vector<float> a = random.reals(n, 10.0f);

    EXPECT_TRUE(bits_equal(lane_sum(a.data(), static_cast<int64_t>(n)), expected_sum(a))) << n;
  }
}

TEST(LaneSum, OfNegativeZerosIsPositiveZero) {
  const std::vector<float> a(300, -0.0f);

  EXPECT_TRUE(bits_equal(lane_sum(a.data(), 300), 0.0f));
}

TEST(LaneDot, FusesEachProduct) {
  // (1 + 2^-12)² = 1 + 2^-11 + 2^-24: the last bit survives only if the product is not rounded.
  const std::vector<float> a = {0, 1.0f + 0x1p-12f}, b = {0, 1.0f + 0x1p-12f};
  std::vector<float> c(64, 0.0f), d(64, 0.0f);
  c[0] = -1.0f - 0x1p-11f;
  d[0] = 1.0f;
  c[32] = a[1];
  d[32] = b[1];

  EXPECT_EQ(lane_dot(c.data(), d.data(), 64), 0x1p-24f);
}

TEST(LaneDot, IsCloseToTheExactSumAndEqualsReference) {
  Random random(4);
  for (const int64_t n : {1, 31, 64, 128, 300, 4096}) {
    const std::vector<float> a = random.reals(static_cast<size_t>(n), 1.0f);
    const std::vector<float> b = random.reals(static_cast<size_t>(n), 1.0f);
    double exact = 0.0;
    for (size_t i = 0; i < a.size(); ++i) exact += double{a[i]} * b[i];

    const float sum = lane_dot(a.data(), b.data(), n);

    EXPECT_NEAR(sum, exact, 1e-4);
    EXPECT_TRUE(bits_equal(sum, lane_dot_reference(a.data(), b.data(), n)));
  }
}

TEST(RmsNorm, EqualsTheFormulaInFp64WithinTwoRoundingsAndTheReferenceBitForBit) {
  Random random(5);
  for (const int64_t n : {1, 31, 32, 256, 257, 2560}) {
    const int64_t rows = 3;
    const std::vector<float> x = random.reals(static_cast<size_t>(rows * n), 2.0f);
    const std::vector<float> w = random.reals(static_cast<size_t>(n), 1.5f);
    std::vector<float> y(x.size()), reference(x.size());

    rms_norm(x.data(), w.data(), 1e-5f, rows, n, y.data());
    rms_norm_reference(x.data(), w.data(), 1e-5f, rows, n, reference.data());

    EXPECT_TRUE(bits_equal(y, reference));
    for (int64_t row = 0; row < rows; ++row) {
      double square = 0.0;
      for (int64_t i = 0; i < n; ++i) {
        square += std::pow(double{x[static_cast<size_t>(row * n + i)]}, 2);
      }
      const double r = 1.0 / std::sqrt(square / static_cast<double>(n) + double{1e-5f});
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(row * n + i);
        const double exact = x[at] * r * w[static_cast<size_t>(i)];
        EXPECT_NEAR(y[at], exact, std::fabs(exact) * 1e-6);
      }
    }
  }
}

TEST(RmsNorm, OfARowOfZerosIsZero) {
  const std::vector<float> x(64, 0.0f), w(64, 1.0f);
  std::vector<float> y(64, 7.0f);

  rms_norm(x.data(), w.data(), 1e-5f, 1, 64, y.data());

  EXPECT_TRUE(bits_equal(y, x));
}

}  // namespace
}  // namespace assay
