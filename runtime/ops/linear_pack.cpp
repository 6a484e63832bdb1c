#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string>

#include "convert/core/dtype.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "runtime/math.h"
#include "runtime/ops/linear_state.h"

namespace assay {
namespace {

constexpr int kMaxSetColumns = 512;
constexpr size_t kLargePage = size_t{1} << 21;
constexpr int64_t kPackGrain = 4;  // tiles

using ReadRow = std::function<void(int64_t row, IntegerRow& out)>;

int32_t align64(int64_t bytes) { return static_cast<int32_t>((bytes + 63) / 64 * 64); }

bool is_exact_f16(float x) { return f16_to_f32(f32_to_f16(x)) == x; }
bool is_exact_bf16(float x) { return (bits_from_float(x) & 0xffffu) == 0; }

/// What is known of a matrix only after its rows are read. Packing begins with what the first tile
/// needs and starts again, wider, at a row that does not fit.
struct Traits {
  bool fits_f16 = true;  // all scales and minima are exact in f16
  bool fits_bf16 = true;
  bool zeros_differ = false;  // kGroup
  int32_t zero = 0;           // kGroup, kSuperBlock
  bool has_mins = false;      // kSuperBlock

  ScaleType scale_type() const {
    return fits_f16 ? ScaleType::kF16 : fits_bf16 ? ScaleType::kBF16 : ScaleType::kF32;
  }
};

/// Columns per integer sum and per stored scale; nullopt if pieces are uneven or no multiple of 16.
struct Pieces {
  int piece = 0;
  int set_columns = 0;
};

std::optional<Pieces> plan_pieces(const WeightFormat& format, int64_t columns, int64_t group) {
  if (format.fold() == Fold::kFloat) return Pieces{128, 128};
  Pieces pieces{128, kMaxSetColumns};
  if (group < columns) {
    const bool small = group == 16 || group == 32 || group == 64;
    if (!small && group % kActivationGroup != 0) return std::nullopt;
    if (small) pieces.piece = static_cast<int>(group);
    while (group % pieces.set_columns != 0) pieces.set_columns /= 2;
  }
  if (format.fold() != Fold::kSuperBlock) return pieces;
  const int64_t sub = format.sub_block();
  if (pieces.piece != 128 || (sub != 16 && sub != 32 && sub != 64 && sub != 128)) {
    return std::nullopt;
  }
  pieces.piece = static_cast<int>(sub);
  return pieces;
}

int stored_code_bits(const WeightFormat& format) {
  if (format.fold() == Fold::kFloat) return 16;
  const int bits = format.code_bits();
  return bits <= 4 ? 4 : bits <= 6 ? 6 : 8;
}

KernelFold kernel_fold(Fold fold, bool zeros_differ) {
  switch (fold) {
    case Fold::kGroup:
      return zeros_differ ? KernelFold::kZeros : KernelFold::kGroup;
    case Fold::kAffine:
      return KernelFold::kAffine;
    case Fold::kSuperBlock:
      return KernelFold::kSuper;
    case Fold::kFloat:
      break;
  }
  return KernelFold::kFloat;
}

SegmentLayout plan_segment(const MatrixLayout& matrix, int groups) {
  SegmentLayout s;
  const int columns = groups * static_cast<int>(kActivationGroup);
  s.groups = groups;
  s.sets = (columns + matrix.set_columns - 1) / matrix.set_columns;
  const int scale_bytes = matrix.scale_type == ScaleType::kF32 ? 4 : 2;
  const int subs = matrix.fold == KernelFold::kSuper ? columns / matrix.piece : 0;
  int32_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int32_t begin = at;
    at += align64(bytes);
    return begin;
  };
  s.scales = take(int64_t{s.sets} * kTileRows * scale_bytes);
  s.mins = take(matrix_has_mins(matrix) ? int64_t{s.sets} * kTileRows * scale_bytes : 0);
  s.zeros = take(matrix.fold == KernelFold::kZeros ? int64_t{s.sets} * kTileRows : 0);
  s.sub_scales = take(int64_t{subs} * kTileRows);
  s.sub_mins = take(matrix.has_mins ? int64_t{subs} * kTileRows : 0);
  s.codes = take(int64_t{columns} * kTileRows * matrix.code_bits / 8);
  s.bytes = at;
  return s;
}

MatrixLayout plan_layout(const WeightFormat& format, int64_t rows, int64_t columns,
                         const Pieces& pieces, const Traits& traits) {
  MatrixLayout m;
  m.fold = kernel_fold(format.fold(), traits.zeros_differ);
  m.scale_type = traits.scale_type();
  m.code_bits = stored_code_bits(format);
  m.piece = pieces.piece;
  m.set_columns = pieces.set_columns;
  m.zero = traits.zero;
  m.has_mins = m.fold == KernelFold::kSuper && traits.has_mins;
  m.rows = rows;
  m.n_tiles = (rows + kTileRows - 1) / kTileRows;
  m.n_segments = (columns + kSegment - 1) / kSegment;
  const int64_t last_columns = columns - (m.n_segments - 1) * kSegment;
  m.full = plan_segment(m, kSegmentGroups);
  m.last =
      plan_segment(m, static_cast<int>((last_columns + kActivationGroup - 1) / kActivationGroup));
  m.tile_bytes = (m.n_segments - 1) * m.full.bytes + m.last.bytes;
  return m;
}

/// One tile's rows, read and checked but not yet interleaved. Columns and rows that do not exist
/// are zeros.
class TileRows {
 public:
  TileRows(const WeightFormat& format, int64_t rows, int64_t columns, int64_t group,
           const Pieces& pieces)
      : fold_(format.fold()),
        rows_(rows),
        columns_(columns),
        padded_((columns + kActivationGroup - 1) / kActivationGroup * kActivationGroup),
        group_(fold_ == Fold::kFloat ? kActivationGroup : group),
        set_columns_(pieces.set_columns),
        piece_(pieces.piece),
        largest_code_(fold_ == Fold::kFloat ? 0 : (1 << format.code_bits()) - 1) {
    traits_.zero = format.code_zero();
  }

  void read(int64_t tile, const ReadRow& read_row);

  /// The traits of all rows read so far.
  const Traits& traits() const { return traits_; }
  int largest_sub_scale() const { return largest_sub_scale_; }

  /// Writes the tile as `layout` says.
  void write(const MatrixLayout& layout, uint8_t* out) const;

 private:
  void take_row(int64_t row, int lane);
  void take_float_row(int64_t row, int lane);
  void take_codes(int lane);
  void take_scales(int64_t row, int lane);
  void take_sub_blocks(int64_t row, int lane);
  void note_scale(int64_t row, const char* what, float value);
  void write_segment(const MatrixLayout& layout, const SegmentLayout& segment, int64_t column,
                     uint8_t* out) const;
  void write_codes(const MatrixLayout& layout, int64_t column, int64_t n, uint8_t* out) const;
  uint32_t quad(int lane, int64_t column, int plane) const;
  int64_t n_sets() const { return (padded_ + set_columns_ - 1) / set_columns_; }
  int64_t n_subs() const { return padded_ / piece_; }

  Fold fold_;
  int64_t rows_, columns_, padded_, group_;
  int set_columns_, piece_, largest_code_;
  IntegerRow row_;
  BlockInt16 block_;
  std::vector<uint8_t> codes_[2];              // (16, padded); second: low planes of kFloat
  std::vector<float> scales_, mins_;           // (n_sets, 16)
  std::vector<uint8_t> zeros_;                 // (n_sets, 16)
  std::vector<int8_t> sub_scales_, sub_mins_;  // (n_subs, 16)
  bool zero_known_ = false;
  int largest_sub_scale_ = 0;
  Traits traits_;
};

std::string where(int64_t row) { return "row " + std::to_string(row) + ": "; }

void TileRows::note_scale(int64_t row, const char* what, float value) {
  if (is_not_finite(value)) {
    throw NumericError(where(row) + what + " is not finite");
  }
  traits_.fits_f16 = traits_.fits_f16 && is_exact_f16(value);
  traits_.fits_bf16 = traits_.fits_bf16 && is_exact_bf16(value);
}

void TileRows::read(int64_t tile, const ReadRow& read_row) {
  const auto lanes = static_cast<size_t>(kTileRows);
  for (std::vector<uint8_t>& plane : codes_) plane.assign(lanes * static_cast<size_t>(padded_), 0);
  scales_.assign(lanes * static_cast<size_t>(n_sets()), 0.0f);
  mins_.assign(scales_.size(), 0.0f);
  zeros_.assign(scales_.size(), 0);
  sub_scales_.assign(lanes * static_cast<size_t>(n_subs()), 0);
  sub_mins_.assign(sub_scales_.size(), 0);
  for (int lane = 0; lane < kTileRows; ++lane) {
    const int64_t row = tile * kTileRows + lane;
    if (row >= rows_) break;
    read_row(row, row_);
    take_row(row, lane);
  }
}

void TileRows::take_row(int64_t row, int lane) {
  if (fold_ == Fold::kFloat) {
    take_float_row(row, lane);
    return;
  }
  ASSAY_CHECK(static_cast<int64_t>(row_.codes.size()) == columns_);
  take_codes(lane);
  take_scales(row, lane);
  if (fold_ == Fold::kSuperBlock) take_sub_blocks(row, lane);
}

void TileRows::take_float_row(int64_t row, int lane) {
  ASSAY_CHECK(static_cast<int64_t>(row_.values.size()) == columns_);
  const int64_t bad = quantize_block_int16(row_.values.data(), 1, columns_, columns_, block_);
  if (bad >= 0) {
    throw NumericError("row " + std::to_string(row) + ", column " + std::to_string(bad) +
                       ": weight is not finite or above 32639*2^100");
  }
  const auto base = static_cast<size_t>(lane * padded_);
  for (size_t k = 0; k < static_cast<size_t>(padded_); ++k) {
    codes_[0][base + k] = static_cast<uint8_t>(block_.high[k] + 128);
    codes_[1][base + k] = static_cast<uint8_t>(block_.low[k] + 128);
  }
  for (size_t g = 0; g < block_.scales.size(); ++g) {
    note_scale(row, "weight scale", block_.scales[g]);
    scales_[g * kTileRows + static_cast<size_t>(lane)] = block_.scales[g];
  }
}

void TileRows::take_codes(int lane) {
  uint8_t all = 0;
  for (const uint8_t code : row_.codes) all = static_cast<uint8_t>(all | code);
  ASSAY_CHECK(all <= largest_code_);
  std::copy(row_.codes.begin(), row_.codes.end(), codes_[0].begin() + lane * padded_);
}

void TileRows::take_scales(int64_t row, int lane) {
  const auto n_groups = static_cast<size_t>((columns_ + group_ - 1) / group_);
  ASSAY_CHECK(row_.scales.size() == n_groups);
  ASSAY_CHECK(row_.mins.size() == n_groups || (fold_ != Fold::kAffine && row_.mins.empty()));
  ASSAY_CHECK(row_.zeros.size() == n_groups || fold_ != Fold::kGroup);
  for (const float scale : row_.scales) note_scale(row, "weight scale", scale);
  for (const float min : row_.mins) note_scale(row, "weight minimum", min);
  if (fold_ == Fold::kGroup) {
    for (const int32_t zero : row_.zeros) {
      if (zero < 0 || zero > 255) {
        throw UnsupportedError(where(row) + "zero point " + std::to_string(zero) +
                               ", expected 0 to 255");
      }
      traits_.zeros_differ = traits_.zeros_differ || (zero_known_ && zero != traits_.zero);
      if (!zero_known_) traits_.zero = zero;
      zero_known_ = true;
    }
  }
  for (int64_t set = 0; set * set_columns_ < columns_; ++set) {
    const auto group = static_cast<size_t>(set * set_columns_ / group_);
    const auto at = static_cast<size_t>(set * kTileRows + lane);
    scales_[at] = row_.scales[group];
    if (!row_.mins.empty()) mins_[at] = row_.mins[group];
    if (fold_ == Fold::kGroup) zeros_[at] = static_cast<uint8_t>(row_.zeros[group]);
  }
}

void TileRows::take_sub_blocks(int64_t row, int lane) {
  const auto n = static_cast<size_t>((columns_ + piece_ - 1) / piece_);
  ASSAY_CHECK(row_.sub_scales.size() == n);
  ASSAY_CHECK(row_.sub_mins.size() == n || row_.sub_mins.empty());
  const auto as_byte = [row](int value) {
    if (value < -128 || value > 127) {
      throw UnsupportedError(where(row) + "sub-scale " + std::to_string(value) +
                             ", expected -128 to 127");
    }
    return static_cast<int8_t>(value);
  };
  for (size_t i = 0; i < n; ++i) {
    const size_t at = i * kTileRows + static_cast<size_t>(lane);
    sub_scales_[at] = as_byte(row_.sub_scales[i]);
    largest_sub_scale_ = std::max(largest_sub_scale_, std::abs(int{row_.sub_scales[i]}));
    if (row_.sub_mins.empty()) continue;
    sub_mins_[at] = as_byte(row_.sub_mins[i]);
    traits_.has_mins = traits_.has_mins || (row_.sub_mins[i] != 0 && !row_.mins.empty());
  }
}

/// 4 codes of a row as one word.
uint32_t TileRows::quad(int lane, int64_t column, int plane) const {
  uint32_t word;
  std::memcpy(&word, codes_[plane].data() + lane * padded_ + column, sizeof(word));
  return word;
}

void TileRows::write_codes(const MatrixLayout& layout, int64_t column, int64_t n,
                           uint8_t* out) const {
  const auto put = [&out](const auto& word_of) {
    uint32_t words[kTileRows];
    for (int lane = 0; lane < kTileRows; ++lane) words[lane] = word_of(lane);
    std::memcpy(out, words, sizeof(words));
    out += sizeof(words);
  };
  const auto put_nibbles = [&](int64_t k) {
    put([&](int lane) {
      return (quad(lane, k, 0) & 0x0f0f0f0fu) | (quad(lane, k + 4, 0) & 0x0f0f0f0fu) << 4;
    });
  };
  for (int64_t k = column; k < column + n; k += 16) {
    if (layout.code_bits <= 6) {
      put_nibbles(k);
      put_nibbles(k + 8);
    }
    if (layout.code_bits == 6) {
      put([&](int lane) {
        uint32_t word = 0;
        for (int q = 0; q < 4; ++q) word |= (quad(lane, k + 4 * q, 0) >> 4 & 0x03030303u) << 2 * q;
        return word;
      });
    }
    for (int64_t q = k; layout.code_bits >= 8 && q < k + 16; q += 4) {
      put([&](int lane) { return quad(lane, q, 0); });
      if (layout.code_bits == 16) put([&](int lane) { return quad(lane, q, 1); });
    }
  }
}

void put_scales(ScaleType type, const float* values, int64_t n, uint8_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    if (type == ScaleType::kF32) {
      std::memcpy(out + 4 * i, values + i, 4);
    } else {
      const uint16_t bits =
          type == ScaleType::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
      std::memcpy(out + 2 * i, &bits, 2);
    }
  }
}

void TileRows::write_segment(const MatrixLayout& layout, const SegmentLayout& segment,
                             int64_t column, uint8_t* out) const {
  std::memset(out, 0, static_cast<size_t>(segment.codes));  // gaps between the parts
  const int64_t first_set = column / set_columns_ * kTileRows;
  const int64_t sets = int64_t{segment.sets} * kTileRows;
  put_scales(layout.scale_type, scales_.data() + first_set, sets, out + segment.scales);
  if (matrix_has_mins(layout)) {
    put_scales(layout.scale_type, mins_.data() + first_set, sets, out + segment.mins);
  }
  if (layout.fold == KernelFold::kZeros) {
    std::memcpy(out + segment.zeros, zeros_.data() + first_set, static_cast<size_t>(sets));
  }
  const int64_t n = int64_t{segment.groups} * kActivationGroup;
  if (layout.fold == KernelFold::kSuper) {
    const int64_t first_sub = column / piece_ * kTileRows;
    const auto subs = static_cast<size_t>(n / piece_ * kTileRows);
    std::memcpy(out + segment.sub_scales, sub_scales_.data() + first_sub, subs);
    if (layout.has_mins) {
      std::memcpy(out + segment.sub_mins, sub_mins_.data() + first_sub, subs);
    }
  }
  write_codes(layout, column, n, out + segment.codes);
}

void TileRows::write(const MatrixLayout& layout, uint8_t* out) const {
  for (int64_t s = 0; s < layout.n_segments; ++s) {
    const SegmentLayout& segment = segment_layout(layout, s);
    write_segment(layout, segment, s * kSegment, out);
    out += segment.bytes;
  }
}

/// Whether rows with traits `found` fit a layout made for `planned`.
bool fits(const Traits& found, const Traits& planned) {
  const ScaleType type = planned.scale_type();
  const bool scales =
      type == ScaleType::kF32 || (type == ScaleType::kF16 ? found.fits_f16 : found.fits_bf16);
  const bool zeros = planned.zeros_differ || (!found.zeros_differ && found.zero == planned.zero);
  return scales && zeros && (planned.has_mins || !found.has_mins);
}

/// The least traits that hold both.
Traits wider(const Traits& a, const Traits& b) {
  Traits both = a;
  both.fits_f16 = a.fits_f16 && b.fits_f16;
  both.fits_bf16 = a.fits_bf16 && b.fits_bf16;
  both.zeros_differ = a.zeros_differ || b.zeros_differ || a.zero != b.zero;
  both.has_mins = a.has_mins || b.has_mins;
  return both;
}

struct PackInput {
  const WeightFormat& format;
  int64_t rows;
  int64_t columns;
  int64_t group;
  Pieces pieces;
  const ReadRow& read_row;

  TileRows tile_rows() const { return {format, rows, columns, group, pieces}; }
};

/// Packs every tile, or returns wider traits at the first one that does not fit `traits`.
std::optional<Traits> try_pack(const PackInput& input, const Traits& traits,
                               PackedMatrix::State& state) {
  state.layout = plan_layout(input.format, input.rows, input.columns, input.pieces, traits);
  const int64_t n_tiles = state.layout.n_tiles;
  state.tiles = AlignedBytes(static_cast<size_t>(n_tiles * state.layout.tile_bytes));
  state.layout.data = state.tiles.data();
  std::atomic<bool> misfit{false};
  std::atomic<int> largest_sub_scale{0};
  std::vector<Traits> found(static_cast<size_t>((n_tiles + kPackGrain - 1) / kPackGrain), traits);
  parallel_for(n_tiles, kPackGrain, [&](int64_t begin, int64_t end) {
    TileRows rows = input.tile_rows();
    for (int64_t tile = begin; tile < end && !misfit.load(std::memory_order_relaxed); ++tile) {
      rows.read(tile, input.read_row);
      found[static_cast<size_t>(begin / kPackGrain)] = rows.traits();
      if (!fits(rows.traits(), traits)) {
        misfit = true;
        return;
      }
      rows.write(state.layout, state.tiles.data() + tile * state.layout.tile_bytes);
    }
    int largest = largest_sub_scale.load();
    while (largest < rows.largest_sub_scale() &&
           !largest_sub_scale.compare_exchange_weak(largest, rows.largest_sub_scale())) {
    }
  });
  if (misfit) {
    Traits needed = traits;
    for (const Traits& t : found) needed = wider(needed, t);
    return needed;
  }
  if (state.layout.fold == KernelFold::kSuper) {
    const int largest_code = (1 << input.format.code_bits()) - 1;
    const int largest_value = std::max(traits.zero, largest_code - traits.zero);
    state.layout.exact_floats = int64_t{largest_sub_scale} * largest_value * 128 * 128 <= 1 << 24;
  }
  return std::nullopt;
}

void pack_plain(const PackInput& input, PackedMatrix::State& state) {
  state.plain_rows.resize(static_cast<size_t>(input.rows));
  parallel_for(input.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      IntegerRow integers;
      input.read_row(row, integers);
      for (const std::vector<float>* values : {&integers.scales, &integers.mins}) {
        for (const float value : *values) {
          if (is_not_finite(value)) throw NumericError(where(row) + "weight scale is not finite");
        }
      }
      state.plain_rows[static_cast<size_t>(row)] = std::make_unique<ReferenceRow>(
          input.format, input.columns, input.group, std::move(integers));
    }
  });
}

uint64_t plain_bytes(int64_t rows, int64_t columns, int64_t group) {
  const auto n_groups = static_cast<uint64_t>((columns + group - 1) / group);
  return static_cast<uint64_t>(rows) * (static_cast<uint64_t>(columns) + n_groups * 12);
}

}  // namespace

AlignedBytes::AlignedBytes(size_t size) : size_(size) {
  if (size == 0) return;
  const size_t alignment = size >= kLargePage ? kLargePage : 64;
  const size_t rounded = (size + alignment - 1) / alignment * alignment;
  data_.reset(static_cast<uint8_t*>(std::aligned_alloc(alignment, rounded)));
  if (data_ == nullptr) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  // Fewer TLB misses while matrices are streamed; only a hint.
  if (size >= kLargePage) madvise(data_.get(), rounded, MADV_HUGEPAGE);
#endif
}

void AlignedBytes::Free::operator()(uint8_t* data) const { std::free(data); }

float packed_scale(const MatrixLayout& layout, int64_t row, int64_t column, bool mins) {
  const SegmentLayout& segment = segment_layout(layout, column / kSegment);
  const uint8_t* data = layout.data + row / kTileRows * layout.tile_bytes +
                        column / kSegment * layout.full.bytes +
                        (mins ? segment.mins : segment.scales);
  const int64_t index = column % kSegment / layout.set_columns * kTileRows + row % kTileRows;
  if (layout.scale_type == ScaleType::kF32) {
    float value;
    std::memcpy(&value, data + index * 4, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * 2, sizeof(bits));
  return layout.scale_type == ScaleType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

PackedMatrix::PackedMatrix() : state_(std::make_unique<State>()) {}
PackedMatrix::~PackedMatrix() = default;
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;
PackedMatrix& PackedMatrix::operator=(PackedMatrix&&) noexcept = default;

int64_t PackedMatrix::rows() const { return state_->rows; }
int64_t PackedMatrix::columns() const { return state_->columns; }
uint64_t PackedMatrix::bytes() const { return state_->tiles.size() + state_->plain_bytes; }
bool PackedMatrix::empty() const { return state_->rows == 0; }

uint64_t PackedMatrix::bytes_for(const WeightFormat& format, int64_t rows, int64_t columns,
                                 int64_t group_size) {
  const int64_t group = columns_per_scale(format, columns, group_size);
  const std::optional<Pieces> pieces = plan_pieces(format, columns, group);
  if (!pieces) return plain_bytes(rows, columns, group);
  Traits traits;
  traits.has_mins = format.code_zero() == 0;
  const MatrixLayout layout = plan_layout(format, rows, columns, *pieces, traits);
  return static_cast<uint64_t>(layout.n_tiles) * static_cast<uint64_t>(layout.tile_bytes);
}

PackedMatrix PackedMatrix::pack(const WeightFormat& format, int64_t rows, int64_t columns,
                                int64_t group_size, const ReadRow& read_row) {
  ASSAY_CHECK(rows >= 0 && columns > 0);
  PackedMatrix matrix;
  State& state = *matrix.state_;
  state.rows = rows;
  state.columns = columns;
  if (rows == 0) return matrix;
  const int64_t group = columns_per_scale(format, columns, group_size);
  const std::optional<Pieces> pieces = plan_pieces(format, columns, group);
  PackInput input{format, rows, columns, group, pieces.value_or(Pieces{}), read_row};
  if (!pieces) {
    pack_plain(input, state);
    state.plain_bytes = plain_bytes(rows, columns, group);
    return matrix;
  }
  TileRows first = input.tile_rows();
  first.read(0, read_row);
  std::optional<Traits> traits = first.traits();
  while (traits) traits = try_pack(input, *traits, state);
  return matrix;
}

}  // namespace assay
