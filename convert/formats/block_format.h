#pragma once

#include <cmath>
#include <cstring>
#include <string>

#include "convert/core/error.h"
#include "convert/formats/format.h"

namespace assay {

/// Sizes the buffers of `out` that `format` fills for `columns` columns and empties the others.
/// `group_size` columns per scale; 0 for scalars.
void resize_integer_row(const WeightFormat& format, int64_t columns, int64_t group_size,
                        IntegerRow& out);

/// Bytes of row `row` of `view`; a row outside the view is our own mistake.
std::span<const std::byte> row_bytes_of(const WeightView& view, int64_t row);

/// What every encoder needs of its input: finite values, and an importance that is empty or
/// finite, not negative and as long as the row. Throws NumericError naming the column, ShapeError.
void check_encoder_input(const WeightFormat& format, std::span<const float> row,
                         std::span<const float> importance, std::span<std::byte> out);

/// Empty if `value` is an f16; else that it is not, naming `what` it is.
std::optional<RepackObstacle> f16_obstacle(std::string_view what, float value);

/// 1/d as the encoders use it: 0 where d is zero or so small that 1/d is infinite (d is then stored
/// as zero, too).
inline float inverse_or_zero(float d) {
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

/// Nearest integer of a number within ±1.5, halves away from zero.
inline int round_away(float value) { return value >= 0.5f ? 1 : (value <= -0.5f ? -1 : 0); }

/// Σ |w| == 0: an importance matrix that says nothing about these columns. They count alike then
/// (case B63); the searches would find no scale at all.
inline bool all_zero(const float* values, int n) {
  for (int i = 0; i < n; ++i) {
    if (values[i] != 0.0f) return false;
  }
  return true;
}

/// Whether an f16 has the exponent of infinities and NaN.
inline bool f16_is_not_finite(uint16_t bits) { return (bits & 0x7c00u) == 0x7c00u; }

/// Rows that are fixed-size blocks one after another, at any alignment. `Derived` gives, for one
/// block of `kColumns` columns:
///   static void decode(const Block&, float* out)
///   static void integers(const Block&, int64_t block_index, IntegerRow& out)
///   static const char* fault(const Block&)          nullptr, or what is wrong
///   static void encode(const EncoderInput&, Block& out)
template <class Derived, class Block, int64_t kColumns>
class BlockFormat : public WeightFormat {
 public:
  struct EncoderInput {
    const float* x;           // (kColumns)
    const float* importance;  // (kColumns), or nullptr: no importance matrix
    float row_mean_square;    // Σ x² / n over the whole row; only with importance, 32 columns
  };

  int64_t block_columns() const final { return kColumns; }
  int64_t block_bytes() const final { return static_cast<int64_t>(sizeof(Block)); }
  int64_t fixed_group() const override { return kColumns; }
  bool can_encode() const final { return true; }

  void read_integers(const WeightView& view, int64_t row, IntegerRow& out) const final {
    resize_integer_row(*this, view.columns, fixed_group(), out);
    for_each_block(view, row, [&](const Block& block, int64_t b) {
      Derived::integers(block, b, out);
      return true;
    });
  }

  void decode_row(const WeightView& view, int64_t row, std::span<float> out) const final {
    ASSAY_CHECK(static_cast<int64_t>(out.size()) == view.columns);
    for_each_block(view, row, [&](const Block& block, int64_t b) {
      Derived::decode(block, out.data() + b * kColumns);
      return true;
    });
  }

  std::optional<std::string> find_fault(const WeightView& view, int64_t row) const final {
    std::optional<std::string> fault;
    for_each_block(view, row, [&](const Block& block, int64_t b) {
      const char* what = Derived::fault(block);
      if (what != nullptr) {
        fault = std::string(what) + " in the block of columns " + std::to_string(b * kColumns) +
                " to " + std::to_string((b + 1) * kColumns - 1);
      }
      return what == nullptr;
    });
    return fault;
  }

  void encode_row(std::span<const float> row, std::span<const float> importance,
                  std::span<std::byte> out) const final {
    check_encoder_input(*this, row, importance, out);
    float mean_square = 0.0f;
    if (kColumns == 32 && !importance.empty()) {
      for (const float x : row) mean_square += x * x;
      mean_square = mean_square / static_cast<float>(row.size());
    }
    const auto n_blocks = static_cast<int64_t>(row.size()) / kColumns;
    float ones[kColumns];
    for (float& one : ones) one = 1.0f;
    for (int64_t b = 0; b < n_blocks; ++b) {
      const float* weights = importance.empty() ? nullptr : importance.data() + b * kColumns;
      if (weights != nullptr && all_zero(weights, kColumns)) weights = ones;
      Block block{};
      Derived::encode({row.data() + b * kColumns, weights, mean_square}, block);
      std::memcpy(out.data() + b * block_bytes(), &block, sizeof(Block));
    }
  }

 protected:
  /// repack_row of formats with one scale per block: body(codes, group, block).
  template <class Body>
  void for_each_repacked(const IntegerRow& row, int64_t group_size, std::span<std::byte> out,
                         const Body& body) const {
    ASSAY_CHECK(out.size() == row_bytes(static_cast<int64_t>(row.codes.size())));
    ASSAY_CHECK(group_size % kColumns == 0);
    const auto n_blocks = static_cast<int64_t>(row.codes.size()) / kColumns;
    for (int64_t b = 0; b < n_blocks; ++b) {
      Block block{};
      body(row.codes.data() + b * kColumns, static_cast<size_t>(b * kColumns / group_size), block);
      std::memcpy(out.data() + b * block_bytes(), &block, sizeof(Block));
    }
  }

 private:
  /// Calls body(block, index) until it returns false.
  template <class Body>
  static void for_each_block(const WeightView& view, int64_t row, const Body& body) {
    const std::byte* bytes = row_bytes_of(view, row).data();
    const int64_t n_blocks = view.columns / kColumns;
    for (int64_t b = 0; b < n_blocks; ++b) {
      Block block;
      std::memcpy(&block, bytes + b * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
      if (!body(block, b)) return;
    }
  }
};

}  // namespace assay
