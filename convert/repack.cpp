#include "convert/repack.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/core/error.h"
#include "convert/formats/packed_integer.h"

namespace assay {

RepackCheck check_repack(const CheckpointMatrix& matrix, const WeightFormat& target) {
  const WeightView& view = matrix.view;
  const int bits = view.format->code_bits();
  const int64_t block = target.block_columns(), group_size = matrix.group_size();
  const int64_t n_groups = (view.columns + group_size - 1) / group_size;  // columns in their places
  ASSAY_CHECK(view.format->fold() == Fold::kGroup && !view.scales.bytes.empty());
  RepackCheck check;
  check.n_groups = view.rows * n_groups;
  const bool whole_blocks =
      group_size % block == 0 || (group_size % target.repack_columns() == 0 &&
                                  block % group_size == 0 && view.columns % block == 0);
  if (!target.can_repack() || view.columns % block != 0 || !whole_blocks) {
    check.n_impossible = check.n_groups;
    check.first =
        target.can_repack()
            ? fmt::format("groups of {} columns do not hold whole blocks of {}", group_size, block)
            : fmt::format("codes cannot be moved into {}", target.name());
    return check;
  }
  const int64_t n_together = std::max<int64_t>(1, block / group_size);  // groups
  std::vector<float> scales(static_cast<size_t>(n_together));
  std::vector<int32_t> zeros(scales.size(), 1 << (bits - 1));
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int64_t g = 0; g < n_groups; g += n_together) {
      for (int64_t i = 0; i < n_together; ++i) {
        const int64_t column = matrix.column_order.source_column((g + i) * group_size);
        const int64_t index = row * view.n_groups() + column / view.group_size;
        scales[static_cast<size_t>(i)] = scalar_at(view.scales, index);
        if (view.zero_points.empty()) continue;
        zeros[static_cast<size_t>(i)] = view.zero_points[static_cast<size_t>(index)];
      }
      const std::optional<RepackObstacle> obstacle = target.block_obstacle(bits, scales, zeros);
      if (!obstacle) continue;
      (obstacle->only_rounding ? check.n_rounded : check.n_impossible) += n_together;
      if (check.first.empty()) {
        check.first = fmt::format("row {}, group {}: {}", row, g, obstacle->reason);
      }
    }
  }
  return check;
}

namespace {

/// Formats that take codes at all, fewest bits first.
std::vector<const WeightFormat*> formats_by_size() {
  std::vector<const WeightFormat*> formats;
  for (const WeightFormat* format : all_formats()) {
    if (format->can_repack()) formats.push_back(format);
  }
  std::stable_sort(
      formats.begin(), formats.end(), [](const WeightFormat* a, const WeightFormat* b) {
        return a->block_bytes() * b->block_columns() < b->block_bytes() * a->block_columns();
      });
  return formats;
}

}  // namespace

std::vector<const WeightFormat*> exact_repack_formats(const CheckpointMatrix& matrix) {
  std::vector<const WeightFormat*> formats = formats_by_size();
  std::erase_if(formats,
                [&](const WeightFormat* format) { return !check_repack(matrix, *format).exact(); });
  return formats;
}

const WeightFormat* smallest_format_for_codes(const CheckpointMatrix& matrix) {
  for (const WeightFormat* format : formats_by_size()) {
    if (check_repack(matrix, *format).n_impossible == 0) return format;
  }
  return nullptr;
}

double bits_per_weight(const WeightFormat& format, int64_t group_size,
                       std::optional<DType> scale_dtype) {
  const double codes =
      8.0 * static_cast<double>(format.block_bytes()) / static_cast<double>(format.block_columns());
  if (!scale_dtype || group_size == 0) return codes;
  const double zero_bits = format.has_zero_points() ? format.code_bits() : 0;
  return codes + (8.0 * static_cast<double>(dtype_bytes(*scale_dtype)) + zero_bits) /
                     static_cast<double>(group_size);
}

}  // namespace assay
