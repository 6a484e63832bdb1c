#include "runtime/ops/block_int16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::Random;

TEST(BlockInt16Exponent, IsTheSmallestThatHoldsTheMaximum) {
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto k = static_cast<int>(random.integer(-120, 113));
    const float amax = std::ldexp(1.0f + random.unit(), k);

    const int e = block_int16_exponent(amax);

    EXPECT_GE(e, -100);
    EXPECT_LE(double{amax}, std::ldexp(32639.0, e)) << amax;
    if (e > -100) {
      EXPECT_GT(double{amax}, std::ldexp(32639.0, e - 1)) << amax;
    }
  }
}

TEST(BlockInt16Exponent, TurnsExactlyAtTheLimit) {
  EXPECT_EQ(block_int16_exponent(32639.0f), 0);
  EXPECT_EQ(block_int16_exponent(std::nextafter(32639.0f, 1e9f)), 1);
  EXPECT_EQ(block_int16_exponent(0.0f), -100);
  EXPECT_EQ(block_int16_exponent(0x1p-149f), -100);
  EXPECT_EQ(block_int16_exponent(std::ldexp(32639.0f, -100)), -100);
  EXPECT_EQ(block_int16_exponent(std::nextafter(std::ldexp(32639.0f, -100), 1.0f)), -99);
  EXPECT_EQ(block_int16_exponent(std::ldexp(32639.0f, 100)), 100);
}

TEST(BlockInt16, RebuildsEveryValueWithinHalfAStepFromPlanesAndSums) {
  for (const int64_t columns : {1, 15, 16, 17, 127, 128, 129, 255, 256, 576}) {
    for (const float scale : {1.0f, 1e-30f, 1e30f, 1e-44f}) {
      Random random(static_cast<uint64_t>(columns));
      const int64_t rows = 3;
      const int64_t stride = columns + 5;
      const std::vector<float> x = random.reals(static_cast<size_t>(rows * stride), scale);
      BlockInt16 block;

      ASSERT_EQ(quantize_block_int16(x.data(), rows, columns, stride, block), -1);

      ASSERT_EQ(block.padded_columns, (columns + 127) / 128 * 128);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t k = 0; k < block.padded_columns; ++k) {
          const auto at = static_cast<size_t>(row * block.padded_columns + k);
          const int q = 256 * block.high[at] + block.low[at];
          const float s = block.scales[at / 128];
          const float expected = k < columns ? x[static_cast<size_t>(row * stride + k)] : 0.0f;
          EXPECT_LE(std::fabs(double{s} * q - double{expected}), 0.5 * double{s});
        }
        for (int64_t i = 0; i < block.padded_columns / 16; ++i) {
          int high = 0, low = 0;
          for (int64_t j = 0; j < 16; ++j) {
            high += block.high[static_cast<size_t>(row * block.padded_columns + 16 * i + j)];
            low += block.low[static_cast<size_t>(row * block.padded_columns + 16 * i + j)];
          }
          const auto at = static_cast<size_t>(row * block.padded_columns / 16 + i);
          EXPECT_EQ(block.high_sums[at], high);
          EXPECT_EQ(block.low_sums[at], low);
        }
      }
    }
  }
}

TEST(BlockInt16, RoundsTiesToEven) {
  std::vector<float> x(128, 0.0f);
  x[0] = 32639.0f;  // step 1
  x[1] = 0.5f;
  x[2] = 1.5f;
  x[3] = -0.5f;
  x[4] = -2.5f;
  x[5] = 127.5f;
  x[6] = -128.5f;
  BlockInt16 block;

  ASSERT_EQ(quantize_block_int16(x.data(), 1, 128, 128, block), -1);

  const std::vector<int> expected = {32639, 0, 2, 0, -2, 128, -128};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(256 * block.high[i] + block.low[i], expected[i]) << i;
  }
  EXPECT_EQ(block.high[5], 1);
  EXPECT_EQ(block.low[5], -128);
}

TEST(BlockInt16, ReportsTheFirstValueThatHasNoForm) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float too_large = std::nextafter(std::ldexp(32639.0f, 100), infinity);
  for (const float bad : {infinity, -infinity, nan, -nan, too_large, -too_large}) {
    std::vector<float> x(2 * 200, 1.0f);
    x[200 + 150] = bad;
    x[200 + 160] = bad;
    BlockInt16 block;

    EXPECT_EQ(quantize_block_int16(x.data(), 2, 200, 200, block), 200 + 150);
  }
}

TEST(BlockInt16, FastPathEqualsReferenceBitForBit) {
  Random random(7);
  for (const int64_t columns : {1, 31, 33, 128, 130, 2560}) {
    std::vector<float> x = random.reals(static_cast<size_t>(4 * columns), 1.0f);
    for (size_t i = 0; i < x.size(); i += 7) x[i] *= 0x1p-140f;
    for (size_t i = 0; i < x.size(); i += 11) x[i] = -0.0f;
    BlockInt16 fast, reference;

    ASSERT_EQ(quantize_block_int16(x.data(), 4, columns, columns, fast), -1);
    ASSERT_EQ(quantize_block_int16_reference(x.data(), 4, columns, columns, reference), -1);

    EXPECT_EQ(fast.high, reference.high);
    EXPECT_EQ(fast.low, reference.low);
    EXPECT_EQ(fast.high_sums, reference.high_sums);
    EXPECT_EQ(fast.low_sums, reference.low_sums);
    EXPECT_TRUE(test::bits_equal(fast.scales, reference.scales));
  }
}

}  // namespace
}  // namespace assay
