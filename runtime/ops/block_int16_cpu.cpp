#include <algorithm>
#include <bit>
#include <cmath>

#include "convert/core/error.h"
#include "runtime/math.h"
#include "runtime/ops/block_int16.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {
namespace {

constexpr float kLargestCode = 32639.0f;  // 127·256 + 127: the largest |q| whose planes fit int8

/// 2^e for e in [−126, 127].
float power_of_two(int e) { return float_from_bits(static_cast<uint32_t>(e + 127) << 23); }

float magnitude(float x) { return float_from_bits(bits_from_float(x) & 0x7fffffffu); }

/// Rounds to the nearest integer, ties to even; |x| < 2^22. Adding and subtracting 1.5·2^23 leaves
/// no fraction bits, so the IEEE addition does the rounding.
int32_t round_to_even(float x) { return static_cast<int32_t>((x + 12582912.0f) - 12582912.0f); }

/// Writes planes and plane sums of one group. `n` columns of it exist, the others count as zeros.
void encode_group(const float* x, int64_t n, float scale, int8_t* high, int8_t* low,
                  int16_t* high_sums, int16_t* low_sums) {
  for (int64_t j = 0; j < kActivationGroup; ++j) {
    const int32_t q = j < n ? round_to_even(x[j] / scale) : 0;
    const int32_t h = (q + 128) >> 8;
    high[j] = static_cast<int8_t>(h);
    low[j] = static_cast<int8_t>(q - 256 * h);
  }
  for (int64_t i = 0; i < kActivationGroup / kSumColumns; ++i) {
    int32_t high_sum = 0;
    int32_t low_sum = 0;
    for (int64_t j = i * kSumColumns; j < (i + 1) * kSumColumns; ++j) {
      high_sum += high[j];
      low_sum += low[j];
    }
    high_sums[i] = static_cast<int16_t>(high_sum);
    low_sums[i] = static_cast<int16_t>(low_sum);
  }
}

}  // namespace

void BlockInt16::resize(int64_t new_rows, int64_t new_columns) {
  rows = new_rows;
  columns = new_columns;
  padded_columns = (columns + kActivationGroup - 1) / kActivationGroup * kActivationGroup;
  const auto values = static_cast<size_t>(rows * padded_columns);
  high.resize(values);
  low.resize(values);
  scales.resize(values / kActivationGroup);
  high_sums.resize(values / kSumColumns);
  low_sums.resize(values / kSumColumns);
}

int block_int16_exponent(float amax) {
  // amax = m·2^k with m in [1, 2). 32,639·2^e = 1.992…·2^(e + 14), so e = k − 14 or one more.
  constexpr int kLowest = -100;
  const uint32_t bits = bits_from_float(amax);
  const int k = static_cast<int>(bits >> 23) - 127;
  if (k - 14 < kLowest) return kLowest;  // zero and subnormal values too
  const uint32_t limit_mantissa = bits_from_float(kLargestCode) & 0x7fffffu;
  return (bits & 0x7fffffu) <= limit_mantissa ? k - 14 : k - 13;
}

int64_t quantize_block_int16_reference(const float* x, int64_t rows, int64_t columns,
                                       int64_t stride, BlockInt16& out) {
  out.resize(rows, columns);
  const int64_t n_groups = out.n_groups();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t group = 0; group < n_groups; ++group) {
      const int64_t first = group * kActivationGroup;
      const int64_t n = std::min(kActivationGroup, columns - first);
      const float* values = x + row * stride + first;
      const float limit = kLargestCode * power_of_two(100);
      float amax = 0.0f;
      for (int64_t j = 0; j < n; ++j) {
        const float a = magnitude(values[j]);
        if (is_not_finite(a) || a > limit) return row * columns + first + j;
        if (a > amax) amax = a;
      }
      const float scale = power_of_two(block_int16_exponent(amax));
      const int64_t at = row * out.padded_columns + first;
      out.scales[static_cast<size_t>(row * n_groups + group)] = scale;
      encode_group(values, n, scale, &out.high[static_cast<size_t>(at)],
                   &out.low[static_cast<size_t>(at)],
                   &out.high_sums[static_cast<size_t>(at / kSumColumns)],
                   &out.low_sums[static_cast<size_t>(at / kSumColumns)]);
    }
  }
  return -1;
}

void gather_block_int16(const BlockInt16& x, std::span<const int64_t> rows, BlockInt16& out) {
  out.resize(static_cast<int64_t>(rows.size()), x.columns);
  const auto copy = [&](const auto& from, auto& to, int64_t width) {
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(from.data() + rows[i] * width, width,
                  to.data() + static_cast<int64_t>(i) * width);
    }
  };
  copy(x.high, out.high, x.padded_columns);
  copy(x.low, out.low, x.padded_columns);
  copy(x.scales, out.scales, x.n_groups());
  copy(x.high_sums, out.high_sums, x.padded_columns / kSumColumns);
  copy(x.low_sums, out.low_sums, x.padded_columns / kSumColumns);
}

void dequantize_block_int16(const BlockInt16& x, float* out) {
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t k = 0; k < x.columns; ++k) {
      const auto at = static_cast<size_t>(row * x.padded_columns + k);
      const int32_t q = 256 * x.high[at] + x.low[at];
      out[row * x.columns + k] = x.scales[at / kActivationGroup] * static_cast<float>(q);
    }
  }
}

int64_t quantize_block_int16(const float* x, int64_t rows, int64_t columns, int64_t stride,
                             BlockInt16& out) {
  out.resize(rows, columns);
  const VectorKernels& kernels = vector_kernels();
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = static_cast<size_t>(row * out.padded_columns);
    const BlockInt16Row target{&out.high[at], &out.low[at], &out.scales[at / kActivationGroup],
                               &out.high_sums[at / kSumColumns], &out.low_sums[at / kSumColumns]};
    if (kernels.quantize_row(x + row * stride, columns, target)) continue;
    BlockInt16 scratch;
    const int64_t bad =
        quantize_block_int16_reference(x + row * stride, 1, columns, columns, scratch);
    ASSAY_CHECK(bad >= 0);
    return row * columns + bad;
  }
  return -1;
}

}  // namespace assay
