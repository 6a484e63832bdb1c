#include "convert/formats/column_order.h"

#include <algorithm>

#include "convert/core/error.h"

namespace assay {
namespace {

/// One value per `from` columns, in places; result: one per `to` columns, a divisor of the block.
template <class T>
std::vector<T> in_order(const ColumnOrder& order, std::span<const T> values, int64_t from,
                        int64_t to) {
  std::vector<T> out;
  if (values.empty()) return out;
  const auto columns = static_cast<int64_t>(order.source.size()) * order.block;
  out.reserve(static_cast<size_t>(columns / to));
  for (int64_t column = 0; column < columns; column += to) {
    out.push_back(values[static_cast<size_t>(order.source_column(column) / from)]);
  }
  return out;
}

template <class T>
void put_in_order(const ColumnOrder& order, int64_t from, int64_t to, std::vector<T>& values) {
  values = in_order<T>(order, values, from, to);
}

}  // namespace

void reorder_columns(const ColumnOrder& order, std::span<float> row) {
  if (order.empty()) return;
  const std::vector<float> moved = in_order<float>(order, row, 1, 1);
  ASSAY_CHECK(moved.size() == row.size());
  std::copy(moved.begin(), moved.end(), row.begin());
}

void reorder_columns(const ColumnOrder& order, int64_t group, int64_t sub_block, IntegerRow& row) {
  if (order.empty()) return;
  const int64_t to = order.group_size(group);
  put_in_order(order, 1, 1, row.codes);
  put_in_order(order, 1, 1, row.values);
  put_in_order(order, group, to, row.scales);
  put_in_order(order, group, to, row.mins);
  put_in_order(order, group, to, row.zeros);
  if (sub_block == 0) return;
  ASSAY_CHECK(order.block % sub_block == 0);
  put_in_order(order, sub_block, sub_block, row.sub_scales);
  put_in_order(order, sub_block, sub_block, row.sub_mins);
}

}  // namespace assay
