#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/tensor.h"

namespace assay {

/// How canonical-1 sums a row of weights (arithmetic.md §3). Kernels are written per fold and per
/// code width, not per format: a new format that has one of these folds needs no new kernel.
enum class Fold : uint8_t {
  kGroup,   // w = scale · (code − zero); one fma per piece
  kAffine,  // w = scale · code + min (two floats per block); two fmas per piece: value, then min
  kSuperBlock,  // w = d · sub_scale · (code − zero) − dmin · sub_min; integer sub-scales, 2 fmas
                // per 128
  kFloat,  // plain numbers: rows become block int16, group 128, two planes
};

/// A row of weights as the integers that canonical-1 multiplies with. Buffers are reused from row
/// to row; unused ones are empty. n = number of columns.
struct IntegerRow {
  std::vector<uint8_t> codes;       // (n) unsigned; kGroup, kAffine, kSuperBlock
  std::vector<float> scales;        // (n / group) w_scale, or d per super-block
  std::vector<float> mins;          // (n / group) kAffine: min;  kSuperBlock: dmin per super-block
  std::vector<int32_t> zeros;       // (n / group) kGroup: integer zero point of the codes
  std::vector<int16_t> sub_scales;  // (n / sub_block) kSuperBlock
  std::vector<int16_t> sub_mins;    // (n / sub_block) kSuperBlock; all 0 where the format has none
  std::vector<float> values;        // (n) kFloat
};

/// Where a matrix in some format lies. Never owns. rows × columns, row-major.
struct WeightView {
  const class WeightFormat* format = nullptr;
  int64_t rows = 0;                           // out_features
  int64_t columns = 0;                        // in_features
  int64_t group_size = 0;                     // columns per scale; 0 for formats without groups
  std::span<const std::byte> data = {};       // blocks, or packed codes (rows · row_bytes)
  TensorView scales = {};                     // packed integers: (rows, n_groups), F16, BF16 or F32
  std::span<const uint8_t> zero_points = {};  // where asymmetric: (rows, n_groups), unsigned domain

  int64_t n_groups() const { return group_size == 0 ? 0 : (columns + group_size - 1) / group_size; }
};

/// Why a group of integers cannot be moved into another format with every value unchanged.
struct RepackObstacle {
  /// The codes fit and only the scale (or minimum) is rounded; else the codes do not fit either.
  bool only_rounding = false;
  std::string reason;  // "scale 2.3e-9 is no f16 value"
};

/// One way in which a matrix of weights is stored. All state is constant: callers hold a
/// `const WeightFormat&`. The list is formats.def; find_format and all_formats walk it.
class WeightFormat {
 public:
  virtual ~WeightFormat() = default;

  virtual std::string_view name() const = 0;  // "Q4_K", "BF16", "W4_ASYM"
  virtual std::optional<uint32_t> gguf_type() const { return std::nullopt; }
  /// general.file_type of a GGUF file whose matrices have this format (llama.cpp's
  /// llama-quant.cpp).
  virtual std::optional<uint32_t> gguf_file_type() const { return std::nullopt; }
  virtual Fold fold() const = 0;
  virtual int code_bits() const = 0;  // 2 to 8; 16 or 32 for kFloat
  /// Of packed integers (packed_integer.h): a zero point per group lies beside the scales.
  virtual bool has_zero_points() const { return false; }
  virtual int64_t block_columns() const = 0;       // columns that are stored together (1, 32, 256)
  virtual int64_t block_bytes() const = 0;         // bytes of one block in `data`
  virtual int64_t sub_block() const { return 0; }  // kSuperBlock: columns per sub-scale
  virtual int code_zero() const { return 0; }      // kSuperBlock: constant zero of the codes
  /// Columns per scale for formats that fix it; 0 where WeightView::group_size says it.
  virtual int64_t fixed_group() const { return 0; }

  /// Name of the format for rows that this one cannot hold, in the manner of llama-quantize
  /// (llama.cpp's llama-quant.cpp, Fallback).
  virtual std::string_view fallback_name() const { return "F16"; }

  /// Bytes of one row in `data`. Throws ShapeError where columns % block_columns() != 0.
  uint64_t row_bytes(int64_t columns) const;

  /// Fills `out` with row `row` of `view`.
  virtual void read_integers(const WeightView& view, int64_t row, IntegerRow& out) const = 0;
  /// Dequantizes a row to fp32, the format's own arithmetic (ggml-common.h), exactly.
  virtual void decode_row(const WeightView& view, int64_t row, std::span<float> out) const = 0;

  /// Whether encode_row exists.
  virtual bool can_encode() const { return false; }
  /// Whether encode_row refuses to work without importance.
  virtual bool needs_importance() const { return false; }
  /// Whether llama-quantize refuses to make it without an importance matrix.
  virtual bool mix_needs_importance() const { return needs_importance(); }
  /// Encodes one row the way ggml's reference quantizer does (ggml-quants.c, no contraction), or
  /// rounds to nearest even for scalars. `importance` is empty or has one weight per column; blocks
  /// in which it is all zero count their columns alike.
  virtual void encode_row(std::span<const float> row, std::span<const float> importance,
                          std::span<std::byte> out) const;

  /// Whether rows of kGroup integers can be moved into this format as they are (repack_row).
  virtual bool can_repack() const { return false; }
  /// Fewest columns with a scale of their own that a group can have for that.
  virtual int64_t repack_columns() const { return block_columns(); }
  /// Whether a group of unsigned codes of `code_bits` bits with w = scale · (code − zero) can be
  /// moved so that each value stays the same, bit for bit; empty if so.
  virtual std::optional<RepackObstacle> repack_obstacle(int code_bits, float scale, int zero) const;
  /// The same for the groups that lie in one block, in formats whose groups share numbers.
  virtual std::optional<RepackObstacle> block_obstacle(int code_bits, std::span<const float> scales,
                                                       std::span<const int32_t> zeros) const;
  /// Moves a row of kGroup integers, `group_size` columns per scale (a multiple of
  /// repack_columns(), and of a block or a part of one), into blocks, without going through values.
  /// Scales are rounded to the format's type, so the result is exact where no group has an
  /// obstacle. Groups whose codes do not fit are our own mistake.
  virtual void repack_row(const IntegerRow& row, int64_t group_size,
                          std::span<std::byte> out) const;

  /// First thing wrong with the numbers of a row (NaN or infinite scale, negative W4A16 scale), or
  /// empty. Case B14.
  virtual std::optional<std::string> find_fault(const WeightView& view, int64_t row) const = 0;
};

/// Every format, in the order of formats.def.
std::span<const WeightFormat* const> all_formats();
/// By name, case-insensitive; nullptr if there is none.
const WeightFormat* find_format(std::string_view name);
/// By GGUF type id; nullptr if there is none.
const WeightFormat* find_gguf_format(uint32_t type_id);
/// The scalar format of F32, F16 or BF16 tensors.
const WeightFormat& scalar_format(DType dtype);
/// The packed integer format with these properties; nullptr if there is none.
const WeightFormat* find_integer_format(int64_t bits, bool symmetric);
/// The same where there must be one.
const WeightFormat& integer_format(int bits, bool symmetric);
/// The bits that packed integers may have: "3, 4 and 8".
std::string integer_bits_text(std::string_view conjunction);

}  // namespace assay
