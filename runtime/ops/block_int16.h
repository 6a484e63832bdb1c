#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace assay {

inline constexpr int64_t kActivationGroup = 128;  // columns that share one activation scale
inline constexpr int64_t kSegment = 512;    // columns that are folded before segments are added
inline constexpr int64_t kSumColumns = 16;  // columns of one plane sum (Q6_K's sub-block)

/// Rows of activations as block int16 (arithmetic.md §3): per group of 128 columns x = s·q with
/// s = 2^e, q = rint(x/s), and the planes q = 256·high + low, both int8. Columns are padded with
/// zeros to a multiple of 128. Row-major.
struct BlockInt16 {
  int64_t rows = 0;
  int64_t columns = 0;             // as the linear sees them
  int64_t padded_columns = 0;      // multiple of kActivationGroup
  std::vector<int8_t> high;        // (rows, padded_columns)
  std::vector<int8_t> low;         // (rows, padded_columns)
  std::vector<float> scales;       // (rows, padded_columns / 128)
  std::vector<int16_t> high_sums;  // (rows, padded_columns / 16): sums over 16 columns
  std::vector<int16_t> low_sums;   // (rows, padded_columns / 16)

  int64_t n_groups() const { return padded_columns / kActivationGroup; }
  void resize(int64_t new_rows, int64_t new_columns);
};

/// Quantizes `rows` rows of `columns` fp32 values (row stride `stride`).
/// e is the smallest integer in [−100, 100] with amax ≤ 32,639·2^e; amax = 0 gives e = −100.
/// Returns −1, or the index (row · columns + column) of the first value that is NaN, infinite or
/// too large, in which case `out` is undefined: the caller throws NumericError with op and layer.
int64_t quantize_block_int16(const float* x, int64_t rows, int64_t columns, int64_t stride,
                             BlockInt16& out);

/// The same, one value at a time: the oracle of the tests.
int64_t quantize_block_int16_reference(const float* x, int64_t rows, int64_t columns,
                                       int64_t stride, BlockInt16& out);

/// Some rows of x, in the given order.
void gather_block_int16(const BlockInt16& x, std::span<const int64_t> rows, BlockInt16& out);

/// s·q of every element, exact in fp32; out (rows, columns).
void dequantize_block_int16(const BlockInt16& x, float* out);

/// The exponent e of the rule above for a given amax (finite, ≤ 32,639·2^100).
int block_int16_exponent(float amax);

}  // namespace assay
