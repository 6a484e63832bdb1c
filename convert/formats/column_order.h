#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "convert/formats/format.h"

namespace assay {

/// Columns of a matrix that lie in another order, block by block: block b of a row is block
/// source[b] of the row as it is stored.
struct ColumnOrder {
  int64_t block = 0;                 // columns of a block
  std::vector<int64_t> source = {};  // of each block; empty: the order is the same

  bool empty() const { return source.empty(); }
  /// Where the column is stored.
  int64_t source_column(int64_t column) const {
    return empty() ? column : source[static_cast<size_t>(column / block)] * block + column % block;
  }
  /// Columns per scale once the columns are in their places: `group` or the part of it that stays
  /// together.
  int64_t group_size(int64_t group) const {
    return empty() || group == 0 ? group : std::gcd(group, block);
  }
};

/// Puts the columns of a row into their places.
void reorder_columns(const ColumnOrder& order, std::span<float> row);
/// The same for integers with `group` columns per scale and `sub_block` per sub-scale (0: none).
/// Afterwards a scale counts for order.group_size(group) columns; the values are the same.
void reorder_columns(const ColumnOrder& order, int64_t group, int64_t sub_block, IntegerRow& row);

}  // namespace assay
