// The oracle of the linear layers against plain fp64 sums over decoded weights: linear_test
// compares everything else with the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/ops/linear.h"
#include "runtime/ops/linear_row.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"
#include "tests/support/weight_matrix.h"

namespace assay {
namespace {

using test::Random;

std::vector<float> reference(const WeightView& view, const BlockInt16& x,
                             std::span<const float> bias = {}) {
  std::vector<float> out(static_cast<size_t>(x.rows * view.rows));
  linear_reference(
      *view.format, view.rows, view.columns, view.group_size,
      [&](int64_t row, IntegerRow& to) { view.format->read_integers(view, row, to); }, x, bias,
      out.data(), view.rows);
  return out;
}

void expect_close_to_fp64(const WeightFormat& format, int64_t columns, int64_t group_size) {
  const int64_t rows = 5, n_tokens = 3;
  const auto matrix = test::random_weight_matrix(format, rows, columns, group_size, 11);
  const std::vector<float> weights = test::decode_all(matrix.view);
  std::vector<float> input = Random(12).reals(static_cast<size_t>(n_tokens * columns), 3.0f);
  BlockInt16 x;
  ASSERT_EQ(quantize_block_int16(input.data(), n_tokens, columns, columns, x), -1);
  dequantize_block_int16(x, input.data());  // what the linear really reads

  const std::vector<float> out = reference(matrix.view, x);

  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t row = 0; row < rows; ++row) {
      double exact = 0.0, inputs = 0.0, largest = 0.0;
      for (int64_t k = 0; k < columns; ++k) {
        const double w = weights[static_cast<size_t>(row * columns + k)];
        const double v = input[static_cast<size_t>(t * columns + k)];
        exact += w * v;
        inputs += std::fabs(v);
        largest = std::max(largest, std::fabs(w));
      }
      // A fold has fewer than 100 roundings of 2^-24, each of a partial sum below
      // 2·Σ|x|·max|w| (value and minimum term); kFloat rounds its weights to a step of
      // at most max|w|·2^-14 first.
      double tolerance = 100.0 * 0x1p-24 * 2.0 * inputs * largest;
      if (format.fold() == Fold::kFloat) tolerance += 0x1p-15 * inputs * largest;
      EXPECT_NEAR(out[static_cast<size_t>(t * rows + row)], exact, tolerance)
          << format.name() << " columns " << columns << " group " << group_size;
    }
  }
}

TEST(LinearReference, IsTheSumOfDecodedWeightsTimesInputsForEveryFormat) {
  for (const WeightFormat* format : all_formats()) {
    for (const int64_t columns : {1, 32, 127, 130, 256, 512, 576, 768, 1280}) {
      if (columns % format->block_columns() != 0) continue;
      expect_close_to_fp64(*format, columns, 128);
      if (format->fixed_group() > 0 || format->fold() != Fold::kGroup) continue;
      for (const int64_t group_size : {32, 64, 0})
        expect_close_to_fp64(*format, columns, group_size);
    }
  }
}

TEST(LinearReference, AddsTheBiasAfterTheFold) {
  const auto matrix = test::random_weight_matrix(scalar_format(DType::kBF16), 4, 64, 0, 1);
  const std::vector<float> input = Random(2).reals(64, 1.0f);
  const std::vector<float> bias = {0.5f, -1.0f, 1e20f, 0.0f};
  BlockInt16 x;
  ASSERT_EQ(quantize_block_int16(input.data(), 1, 64, 64, x), -1);

  const std::vector<float> plain = reference(matrix.view, x);
  const std::vector<float> biased = reference(matrix.view, x, bias);

  for (size_t i = 0; i < bias.size(); ++i) {
    EXPECT_TRUE(test::bits_equal(biased[i], plain[i] + bias[i]));
  }
}

// A row of one W4 group each with code 9 (value 1) at the first column of every segment: the
// inputs are chosen so that the order of additions decides the result.
TEST(LinearReference, SumsSegmentsOf512ColumnsAndAddsThemInOrder) {
  const WeightFormat& format = integer_format(4, true);
  IntegerRow row;
  row.codes.assign(1536, 8);
  row.zeros.assign(12, 8);
  row.scales.assign(12, 1.0f);
  for (const size_t k : {0u, 128u, 512u, 640u, 1024u}) row.codes[k] = 9;
  std::vector<float> input(1536, 0.0f);
  // Segment 0: 2^24 + 1 = 2^24 (ties to even). Segment 1: 1 + 1 = 2. Segment 2: 1.
  // In order: (2^24 + 2) + 1 = 2^24 + 4 (tie to even); one chain over all would give 2^24 + 0.
  input[0] = 0x1p24f;
  input[128] = input[512] = input[640] = input[1024] = 1.0f;
  BlockInt16 x;
  ASSERT_EQ(quantize_block_int16(input.data(), 1, 1536, 1536, x), -1);
  float out = 0.0f;

  linear_reference(
      format, 1, 1536, 128, [&](int64_t, IntegerRow& to) { to = row; }, x, {}, &out, 1);

  EXPECT_EQ(out, 0x1p24f + 4.0f);
}

TEST(LinearReference, AnInfiniteProductOfScalesIsReportedWithItsPlace) {
  const WeightFormat& format = integer_format(4, true);
  std::vector<float> input(2 * 128, 0.0f);
  input[128] = 0x1p100f;
  BlockInt16 x;
  ASSERT_EQ(quantize_block_int16(input.data(), 2, 128, 128, x), -1);
  const auto read_row = [](int64_t r, IntegerRow& to) {
    to.codes.assign(128, 8);
    to.zeros.assign(1, 8);
    to.scales.assign(1, r == 2 ? 0x1p60f : 1.0f);
  };
  std::vector<float> out(6);

  try {
    linear_reference(format, 3, 128, 128, read_row, x, {}, out.data(), 3);
    FAIL() << "accepted";
  } catch (const InfiniteProduct& error) {
    EXPECT_EQ(error.token, 1);
    EXPECT_EQ(error.row, 2);
  }
}

}  // namespace
}  // namespace assay
