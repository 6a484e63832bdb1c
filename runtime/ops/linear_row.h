#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "convert/formats/format.h"
#include "runtime/ops/block_int16.h"

namespace assay {

/// Columns that share a scale: what the format fixes, or a part of it where the scales of moved
/// columns were split (CheckpointMatrix::group_size); else group_size, else (0 or less) the row.
int64_t columns_per_scale(const WeightFormat& format, int64_t columns, int64_t group_size);

/// One row of a matrix ready for the plain dot product of arithmetic.md §3. kFloat rows are
/// converted to block int16 here, once.
class ReferenceRow {
 public:
  ReferenceRow(const WeightFormat& format, int64_t columns, int64_t group_size, IntegerRow row);

  /// Dot product with row `token` of x, folded in the order of the page. Sets *bad to true if a
  /// product c_g = w_scale·s_g is infinite or NaN.
  float dot(const BlockInt16& x, int64_t token, bool* bad) const;

  /// Index of the first value of a kFloat row that has no block-int16 form, or −1.
  int64_t first_bad_value() const { return bad_value_; }

 private:
  friend struct RowFold;
  Fold fold_ = Fold::kFloat;
  int64_t columns_ = 0;
  int64_t group_ = 0;      // columns per scale (kSuperBlock: per super-block)
  int64_t sub_block_ = 0;  // kSuperBlock: columns per sub-scale
  int code_zero_ = 0;      // kSuperBlock
  int64_t bad_value_ = -1;
  IntegerRow row_;
  BlockInt16 block_;  // kFloat
};

}  // namespace assay
