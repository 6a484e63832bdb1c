#include "convert/core/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "convert/core/error.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::bits_equal;
using test::random_tensor;
using testing::HasSubstr;

TEST(DTypeTable, NamesAndSizesGoBothWays) {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2u);
  EXPECT_EQ(dtype_bytes(DType::kF64), 8u);
  EXPECT_EQ(dtype_bytes(DType::kF8E4M3), 1u);
  EXPECT_EQ(dtype_name(DType::kF8E5M2), "F8_E5M2");
  EXPECT_FALSE(dtype_from_name("bf16"));
}

TEST(Shapes, CountElementsAndRefuseOverflow) {
  EXPECT_EQ(n_elements({}), 1);
  EXPECT_EQ(n_elements({2, 0, 5}), 0);
  EXPECT_EQ(n_elements({256, 768}), 196608);
  EXPECT_EQ(n_elements({INT64_MAX, INT64_MAX, 0}), 0);
  EXPECT_THROW(n_elements({int64_t{1} << 32, int64_t{1} << 31}), ShapeError);
  EXPECT_THROW(n_elements({-1}), ShapeError);
  EXPECT_EQ(to_string(Shape{256, 768}), "[256, 768]");
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(WidenToF32, IsExactForEveryHalfAndAnyAlignment) {
  constexpr size_t kCount = 65536;
  std::vector<std::byte> bytes(2 * kCount + 1);
  std::vector<float> f16(kCount), bf16(kCount), out(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const auto half = static_cast<uint16_t>(i);
    std::memcpy(&bytes[2 * i + 1], &half, 2);
    f16[i] = f16_to_f32(half);
    bf16[i] = bf16_to_f32(half);
  }
  const auto unaligned = std::span(bytes).subspan(1);

  widen_to_f32({DType::kF16, {kCount}, unaligned}, out);
  EXPECT_TRUE(bits_equal(out, f16));
  widen_to_f32({DType::kBF16, {kCount}, unaligned}, out);
  EXPECT_TRUE(bits_equal(out, bf16));
}

TEST(WidenToF32, CopiesF32AndRefusesIntegers) {
  const Tensor x = random_tensor(DType::kF32, {3, 5}, 1);
  std::vector<float> out(15);

  widen_to_f32(x.view(), out);

  EXPECT_TRUE(bits_equal(std::as_bytes(std::span(out)), x.bytes));
  const Tensor ints = random_tensor(DType::kI32, {15}, 1);
  EXPECT_THROW(widen_to_f32(ints.view(), out), UnsupportedError);
}

TEST(BitsEqual, PrintsTheFirstDifferenceAndTheCount) {
  Tensor a = random_tensor(DType::kF32, {2, 3}, 1);
  const Tensor b = a;
  const float values[] = {-0.0f, 1.0f};
  std::memcpy(&a.bytes[16], values, 8);

  const testing::AssertionResult result = bits_equal(a, b);

  EXPECT_TRUE(bits_equal(b, b));
  EXPECT_FALSE(result);
  EXPECT_THAT(result.message(), HasSubstr("2 of 6 F32 elements differ, the first at index 4 = "
                                          "[1, 1]: actual -0 (0x80000000), expected "));
  EXPECT_FALSE(bits_equal(std::vector<float>{0.0f}, std::vector<float>{-0.0f}));
  EXPECT_FALSE(bits_equal(std::vector<float>{0.0f}, std::vector<float>{}));
}

TEST(RandomSupport, DependsOnSeedAndCounterAlone) {
  const test::Random random(42);

  EXPECT_EQ(random.bits_at(0), test::Random(42).bits());
  EXPECT_NE(random.bits_at(0), random.bits_at(1));
  EXPECT_NE(random.bits_at(0), test::Random(43).bits_at(0));
  double sum = 0, squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.bell_at(static_cast<uint64_t>(i));
    sum += x;
    squares += x * x;
    ASSERT_LT(random.below_at(7, static_cast<uint64_t>(i)), 7u);
    ASSERT_LT(std::abs(random.uniform_at(static_cast<uint64_t>(i))), 1.0000001);
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.02);
  EXPECT_NEAR(squares / kCount, 1.0, 0.02);
}

}  // namespace
}  // namespace assay
