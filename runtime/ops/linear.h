#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "convert/core/error.h"
#include "convert/formats/format.h"
#include "runtime/ops/block_int16.h"

namespace assay {

/// A weight matrix in the layout that the CPU kernels read: tiles of 16 rows, codes of 4 columns of
/// each row side by side, scales of a tile together. Built once at load from any WeightFormat, by
/// fold and code width alone. Immutable; the same for every ISA.
class PackedMatrix {
 public:
  PackedMatrix();
  ~PackedMatrix();
  PackedMatrix(PackedMatrix&&) noexcept;
  PackedMatrix& operator=(PackedMatrix&&) noexcept;

  /// Reads every row through `read_row(row, out)`, which may be called from several threads.
  /// `format` gives fold, code width and sub-block; `group_size` columns per scale (whole row:
  /// columns). Throws NumericError naming the row for a scale that is not finite.
  static PackedMatrix pack(const WeightFormat& format, int64_t rows, int64_t columns,
                           int64_t group_size,
                           const std::function<void(int64_t row, IntegerRow& out)>& read_row);

  /// What bytes() of a matrix packed with these arguments will be; for estimates before loading.
  static uint64_t bytes_for(const WeightFormat& format, int64_t rows, int64_t columns,
                            int64_t group_size);

  int64_t rows() const;
  int64_t columns() const;
  uint64_t bytes() const;  // that the matrix takes in memory
  bool empty() const;

  struct State;
  const State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// A product c_g = w_scale·s_g that is not finite; the caller knows op, layer and position.
struct InfiniteProduct : NumericError {
  InfiniteProduct(int64_t token_index, int64_t row_index);
  int64_t token = 0;  // row of x
  int64_t row = 0;    // of the matrix
};

/// y = W x (+ bias) for every row of x: exact integer group sums and the ordered fold of
/// arithmetic.md §3.
/// x     (n_tokens, columns) block int16
/// bias  empty, or (rows), added after the fold
/// out   (n_tokens, rows), row stride `out_stride`
/// Parallel over tiles of rows; the bits do not depend on ISA, threads or n_tokens. Throws
/// InfiniteProduct if a product c_g = w_scale·s_g is infinite.
void linear(const PackedMatrix& weights, const BlockInt16& x, std::span<const float> bias,
            float* out, int64_t out_stride);

/// The same, straight from the page: one row at a time, no layout, no SIMD. The oracle of the
/// tests.
void linear_reference(const WeightFormat& format, int64_t rows, int64_t columns, int64_t group_size,
                      const std::function<void(int64_t row, IntegerRow& out)>& read_row,
                      const BlockInt16& x, std::span<const float> bias, float* out,
                      int64_t out_stride);

}  // namespace assay
