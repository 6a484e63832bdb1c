#include <cctype>
#include <cmath>
#include <cstdio>
#include <set>

#include "convert/core/dtype.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/formats/block_format.h"
#include "convert/formats/format_list.h"

namespace assay {

std::span<const WeightFormat* const> all_formats() {
  static const WeightFormat* const kFormats[] = {
#define ASSAY_FORMAT(name) &name##_format(),
#include "convert/formats/formats.def"
#undef ASSAY_FORMAT
  };
  return kFormats;
}

namespace {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(a[i])) !=
        std::tolower(static_cast<unsigned char>(b[i])))
      return false;
  }
  return true;
}

}  // namespace

const WeightFormat* find_format(std::string_view name) {
  for (const WeightFormat* format : all_formats()) {
    if (equal_ignoring_case(format->name(), name)) return format;
  }
  return nullptr;
}

const WeightFormat* find_gguf_format(uint32_t type_id) {
  for (const WeightFormat* format : all_formats()) {
    if (format->gguf_type() == type_id) return format;
  }
  return nullptr;
}

const WeightFormat& scalar_format(DType dtype) {
  const WeightFormat* format = find_format(dtype_name(dtype));
  if (format == nullptr || format->fold() != Fold::kFloat) {
    throw UnsupportedError("weights of type " + std::string(dtype_name(dtype)) +
                           " are not supported; F32, F16 and BF16 are");
  }
  return *format;
}

namespace {

/// Codes in groups whose scales lie beside them: no GGUF block has that.
bool is_packed_integer(const WeightFormat& format) {
  return format.fold() == Fold::kGroup && !format.gguf_type();
}

}  // namespace

const WeightFormat* find_integer_format(int64_t bits, bool symmetric) {
  for (const WeightFormat* format : all_formats()) {
    if (is_packed_integer(*format) && format->code_bits() == bits &&
        format->has_zero_points() != symmetric) {
      return format;
    }
  }
  return nullptr;
}

const WeightFormat& integer_format(int bits, bool symmetric) {
  const WeightFormat* format = find_integer_format(bits, symmetric);
  ASSAY_CHECK(format != nullptr);
  return *format;
}

std::string integer_bits_text(std::string_view conjunction) {
  std::set<int> all;
  for (const WeightFormat* format : all_formats()) {
    if (is_packed_integer(*format)) all.insert(format->code_bits());
  }
  std::string text;
  for (const int bits : all) {
    if (!text.empty()) text += bits == *all.rbegin() ? " " + std::string(conjunction) + " " : ", ";
    text += std::to_string(bits);
  }
  return text;
}

uint64_t WeightFormat::row_bytes(int64_t columns) const {
  if (columns <= 0 || columns % block_columns() != 0) {
    throw ShapeError("rows of " + std::to_string(columns) + " columns cannot be stored as " +
                     std::string(name()) + ": its blocks hold " + std::to_string(block_columns()) +
                     " columns; choose a type with smaller blocks or keep 16 bits");
  }
  return checked_multiply(static_cast<uint64_t>(columns / block_columns()),
                          static_cast<uint64_t>(block_bytes()), "size of a row");
}

void WeightFormat::encode_row(std::span<const float>, std::span<const float>,
                              std::span<std::byte>) const {
  throw UnsupportedError("there is no encoder for " + std::string(name()));
}

std::optional<RepackObstacle> WeightFormat::repack_obstacle(int, float, int) const {
  return RepackObstacle{.only_rounding = false,
                        .reason = "codes cannot be moved into " + std::string(name())};
}

std::optional<RepackObstacle> WeightFormat::block_obstacle(int code_bits,
                                                           std::span<const float> scales,
                                                           std::span<const int32_t> zeros) const {
  for (size_t g = 0; g < scales.size(); ++g) {
    if (auto obstacle = repack_obstacle(code_bits, scales[g], zeros[g])) return obstacle;
  }
  return std::nullopt;
}

void WeightFormat::repack_row(const IntegerRow&, int64_t, std::span<std::byte>) const {
  throw UnsupportedError("codes cannot be moved into " + std::string(name()));
}

std::optional<RepackObstacle> f16_obstacle(std::string_view what, float value) {
  if (f16_to_f32(f32_to_f16(value)) == value) return std::nullopt;
  const bool fits = std::fabs(value) < 65520.0f;
  char text[96];
  std::snprintf(text, sizeof(text), "%.*s %.9g is no f16 value", static_cast<int>(what.size()),
                what.data(), static_cast<double>(value));
  return RepackObstacle{.only_rounding = fits, .reason = text};
}

void resize_integer_row(const WeightFormat& format, int64_t columns, int64_t group_size,
                        IntegerRow& out) {
  const Fold fold = format.fold();
  const auto n = static_cast<size_t>(columns);
  const auto n_groups =
      group_size == 0 ? size_t{0} : static_cast<size_t>((columns + group_size - 1) / group_size);
  const size_t n_sub_blocks =
      fold == Fold::kSuperBlock ? n / static_cast<size_t>(format.sub_block()) : 0;
  out.codes.resize(fold == Fold::kFloat ? 0 : n);
  out.scales.resize(fold == Fold::kFloat ? 0 : n_groups);
  out.mins.resize(fold == Fold::kAffine || fold == Fold::kSuperBlock ? n_groups : 0);
  out.zeros.resize(fold == Fold::kGroup ? n_groups : 0);
  out.sub_scales.resize(n_sub_blocks);
  out.sub_mins.resize(n_sub_blocks);
  out.values.resize(fold == Fold::kFloat ? n : 0);
}

std::span<const std::byte> row_bytes_of(const WeightView& view, int64_t row) {
  const uint64_t n = view.format->row_bytes(view.columns);
  ASSAY_CHECK(row >= 0 && row < view.rows);
  ASSAY_CHECK(view.data.size() >= n * static_cast<uint64_t>(view.rows));
  return view.data.subspan(n * static_cast<uint64_t>(row), n);
}

namespace {

/// The common case, all finite, takes one pass without branches.
std::optional<size_t> first_not_finite(std::span<const float> values) {
  bool finite = true;
  for (const float value : values) finite &= std::fabs(value) <= 3.402823466e38f;
  if (finite) return std::nullopt;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return i;
  }
  return std::nullopt;
}

}  // namespace

void check_encoder_input(const WeightFormat& format, std::span<const float> row,
                         std::span<const float> importance, std::span<std::byte> out) {
  if (out.size() != format.row_bytes(static_cast<int64_t>(row.size()))) {
    throw ShapeError(std::string(format.name()) + ": the output of a row of " +
                     std::to_string(row.size()) + " columns has " + std::to_string(out.size()) +
                     " bytes");
  }
  if (const auto i = first_not_finite(row)) {
    throw NumericError("column " + std::to_string(*i) + " is " + std::to_string(row[*i]) +
                       "; only finite values can be stored as " + std::string(format.name()));
  }
  if (importance.empty()) {
    if (!format.needs_importance()) return;
    throw UsageError(std::string(format.name()) +
                     " cannot be encoded without an importance matrix; give one with --imatrix or "
                     "choose a type with more bits");
  }
  if (importance.size() != row.size()) {
    throw ShapeError("an importance of " + std::to_string(importance.size()) +
                     " values does not fit rows of " + std::to_string(row.size()) + " columns");
  }
  for (size_t i = 0; i < importance.size(); ++i) {
    if (!std::isfinite(importance[i]) || importance[i] < 0.0f) {
      throw NumericError("the importance of column " + std::to_string(i) + " is " +
                         std::to_string(importance[i]) + "; it must be finite and not negative");
    }
  }
}

}  // namespace assay
