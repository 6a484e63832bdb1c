#pragma once

#include <gtest/gtest.h>

#include <span>

#include "convert/core/tensor.h"

namespace assay::test {

/// Succeeds if dtype, shape and every bit agree (NaN equals NaN of the same bits, -0 is not 0).
/// Otherwise prints the first index that differs, both values, both bit patterns, and how many
/// elements differ: EXPECT_TRUE(bits_equal(actual, expected)).
testing::AssertionResult bits_equal(const TensorView& actual, const TensorView& expected);
testing::AssertionResult bits_equal(const Tensor& actual, const Tensor& expected);

/// The same for plain arrays; T is float, double, or an integer of 8 to 64 bits.
testing::AssertionResult bits_equal(std::span<const float> actual, std::span<const float> expected);
inline testing::AssertionResult bits_equal(float actual, float expected) {
  return bits_equal(std::span<const float>(&actual, 1), std::span<const float>(&expected, 1));
}
testing::AssertionResult bits_equal(std::span<const double> actual,
                                    std::span<const double> expected);
testing::AssertionResult bits_equal(std::span<const uint8_t> actual,
                                    std::span<const uint8_t> expected);
testing::AssertionResult bits_equal(std::span<const int8_t> actual,
                                    std::span<const int8_t> expected);
testing::AssertionResult bits_equal(std::span<const int16_t> actual,
                                    std::span<const int16_t> expected);
testing::AssertionResult bits_equal(std::span<const int32_t> actual,
                                    std::span<const int32_t> expected);
testing::AssertionResult bits_equal(std::span<const int64_t> actual,
                                    std::span<const int64_t> expected);
testing::AssertionResult bits_equal(std::span<const std::byte> actual,
                                    std::span<const std::byte> expected);

}  // namespace assay::test
