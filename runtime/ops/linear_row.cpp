#include "runtime/ops/linear_row.h"

#include <algorithm>

#include "runtime/math.h"

namespace assay {

/// Folds of one row with one token, term by term. Pieces come in ascending order of columns; a new
/// segment begins at every multiple of 512 columns.
struct RowFold {
  const ReferenceRow& row;
  const BlockInt16& x;
  int64_t token;
  bool* bad;
  float segment = 0.0f;  // sum of the open segment
  float total = 0.0f;    // sum of the closed segments
  bool first_segment = true;

  int32_t q(int64_t column) const { return 256 * high(column) + low(column); }
  int32_t high(int64_t column) const {
    return x.high[static_cast<size_t>(token * x.padded_columns + column)];
  }
  int32_t low(int64_t column) const {
    return x.low[static_cast<size_t>(token * x.padded_columns + column)];
  }
  /// Scale of the activation group that holds this column.
  float scale_at(int64_t column) const {
    return x.scales[static_cast<size_t>(token * x.n_groups() + column / kActivationGroup)];
  }

  void add_term(float value, float weight_scale, float activation_scale) {
    const float c = weight_scale * activation_scale;
    if (is_not_finite(c)) *bad = true;
    segment = fused(value, c, segment);
  }

  void close_segment() {
    total = first_segment ? segment : total + segment;
    first_segment = false;
    segment = 0.0f;
  }

  /// Piece [begin, end) lies in one activation group and one weight group.
  void add_piece(int64_t begin, int64_t end) {
    switch (row.fold_) {
      case Fold::kGroup:
        add_group(begin, end);
        break;
      case Fold::kAffine:
        add_affine(begin, end);
        break;
      case Fold::kSuperBlock:
        add_super_block_half(begin, end);
        break;
      case Fold::kFloat:
        add_float(begin, end);
        break;
    }
  }

  void add_group(int64_t begin, int64_t end) {
    const auto group = static_cast<size_t>(begin / row.group_);
    int32_t s = 0;
    for (int64_t k = begin; k < end; ++k) {
      s += (row.row_.codes[static_cast<size_t>(k)] - row.row_.zeros[group]) * q(k);
    }
    add_term(static_cast<float>(s), row.row_.scales[group], scale_at(begin));
  }

  void add_affine(int64_t begin, int64_t end) {
    const auto group = static_cast<size_t>(begin / row.group_);
    int32_t s = 0;
    int32_t q_sum = 0;
    for (int64_t k = begin; k < end; ++k) {
      s += row.row_.codes[static_cast<size_t>(k)] * q(k);
      q_sum += q(k);
    }
    add_term(static_cast<float>(s), row.row_.scales[group], scale_at(begin));
    add_term(static_cast<float>(q_sum), row.row_.mins[group], scale_at(begin));
  }

  void add_super_block_half(int64_t begin, int64_t end) {
    const auto group = static_cast<size_t>(begin / row.group_);
    int32_t high_sum = 0;
    int32_t low_sum = 0;
    int32_t min_sum = 0;
    for (int64_t sub = begin; sub < end; sub += row.sub_block_) {
      const auto at = static_cast<size_t>(sub / row.sub_block_);
      int32_t h = 0;
      int32_t l = 0;
      int32_t q_sum = 0;
      for (int64_t k = sub; k < std::min(end, sub + row.sub_block_); ++k) {
        const int32_t code = row.row_.codes[static_cast<size_t>(k)] - row.code_zero_;
        h += code * high(k);
        l += code * low(k);
        q_sum += q(k);
      }
      high_sum += row.row_.sub_scales[at] * h;
      low_sum += row.row_.sub_scales[at] * l;
      min_sum += row.row_.sub_mins[at] * q_sum;
    }
    const float value = fused(256.0f, static_cast<float>(high_sum), static_cast<float>(low_sum));
    add_term(value, row.row_.scales[group], scale_at(begin));
    add_term(static_cast<float>(min_sum), -row.row_.mins[group], scale_at(begin));
  }

  void add_float(int64_t begin, int64_t end) {
    int32_t hh = 0;
    int32_t mixed = 0;  // HL + LH
    int32_t ll = 0;
    for (int64_t k = begin; k < end; ++k) {
      const int8_t wh = row.block_.high[static_cast<size_t>(k)];
      const int8_t wl = row.block_.low[static_cast<size_t>(k)];
      hh += wh * high(k);
      mixed += wh * low(k) + wl * high(k);
      ll += wl * low(k);
    }
    const float inner = fused(256.0f, static_cast<float>(mixed), static_cast<float>(ll));
    const float value = fused(65536.0f, static_cast<float>(hh), inner);
    add_term(value, row.block_.scales[static_cast<size_t>(begin / kActivationGroup)],
             scale_at(begin));
  }
};

int64_t columns_per_scale(const WeightFormat& format, int64_t columns, int64_t group_size) {
  const int64_t fixed = format.fixed_group();
  if (fixed == 0) return group_size > 0 ? group_size : columns;
  const bool is_split = group_size > 0 && group_size < fixed && fixed % group_size == 0;
  return is_split ? group_size : fixed;
}

ReferenceRow::ReferenceRow(const WeightFormat& format, int64_t columns, int64_t group_size,
                           IntegerRow row)
    : fold_(format.fold()),
      columns_(columns),
      group_(columns_per_scale(format, columns, group_size)),
      sub_block_(format.sub_block()),
      code_zero_(format.code_zero()),
      row_(std::move(row)) {
  if (fold_ == Fold::kFloat) {
    bad_value_ = quantize_block_int16_reference(row_.values.data(), 1, columns, columns, block_);
    group_ = kActivationGroup;
  } else if (fold_ == Fold::kSuperBlock && row_.mins.empty()) {
    row_.mins.assign(row_.scales.size(), 0.0f);  // formats without minima
  }
  if (row_.sub_mins.empty()) row_.sub_mins.assign(row_.sub_scales.size(), 0);
}

float ReferenceRow::dot(const BlockInt16& x, int64_t token, bool* bad) const {
  RowFold fold{*this, x, token, bad};
  for (int64_t begin = 0; begin < columns_;) {
    const int64_t activation_end = (begin / kActivationGroup + 1) * kActivationGroup;
    const int64_t weight_end = (begin / group_ + 1) * group_;
    const int64_t end = std::min({columns_, activation_end, weight_end});
    fold.add_piece(begin, end);
    if (end == columns_ || end % kSegment == 0) fold.close_segment();
    begin = end;
  }
  return fold.total;
}

}  // namespace assay
