#include "runtime/ops/linear_cuda_pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/parallel.h"

namespace assay::cuda {
namespace {

struct Form {
  MatrixKind kind;
  int pieces;
};

Form form_of(const std::string& module, const WeightFormat& format, int64_t columns,
             int64_t group_size) {
  const auto refuse = [&](const std::string& what) {
    throw UnsupportedError(
        fmt::format("{}: the CUDA kernels have no {} ({}); run it with --device cpu", module, what,
                    format.name()));
  };
  int pieces = 1;
  if (group_size == 32 || group_size == 64) {
    pieces = static_cast<int>(128 / group_size);
  } else if (group_size % 128 != 0 && group_size < columns) {
    refuse(fmt::format("group size {}", group_size));
  }
  switch (format.fold()) {
    case Fold::kFloat:
      return {MatrixKind::kFloat16, 1};
    case Fold::kGroup:
      if (format.code_bits() <= 4) return {MatrixKind::kGroup4, pieces};
      if (format.code_bits() <= 8) return {MatrixKind::kGroup8, pieces};
      break;
    case Fold::kAffine:
      if (format.code_bits() == 4 && pieces == 4) return {MatrixKind::kAffine4, 4};
      break;
    case Fold::kSuperBlock:
      if (format.code_bits() == 4 && format.sub_block() == 32 && format.code_zero() == 0)
        return {MatrixKind::kSuper4, 1};
      if (format.code_bits() == 6 && format.sub_block() == 16 && format.code_zero() == 32)
        return {MatrixKind::kSuper6, 1};
      break;
  }
  refuse(fmt::format("{}-bit codes with this fold", format.code_bits()));
  return {MatrixKind::kGroup4, 1};
}

DeviceMatrix shape_of(const Form& form, int64_t rows, int64_t columns) {
  DeviceMatrix m;
  m.kind = form.kind;
  m.pieces = form.pieces;
  m.rows = static_cast<int32_t>(rows);
  m.columns = static_cast<int32_t>(columns);
  m.tiles = static_cast<int32_t>((rows + kTileRows - 1) / kTileRows);
  m.groups = static_cast<int32_t>((columns + kGroupColumns - 1) / kGroupColumns);
  m.segments = (m.groups + kSegmentGroups - 1) / kSegmentGroups;
  return m;
}

bool fits_f16(float value) { return f16_to_f32(f32_to_f16(value)) == value; }
bool fits_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)) == value; }

/// Puts the 128 codes of one group of row r of a tile in operand order, as 8 bits.
void put_bytes(const uint8_t* codes, int r, uint32_t* group) {
  for (int j = 0; j < 4; ++j)
    for (int t = 0; t < 4; ++t) {
      uint32_t* to = group + ((r / 8 * 2 + j / 2) * 32 + r % 8 * 4 + t) * 4 + (j & 1) * 2;
      std::memcpy(to, codes + 32 * j + 4 * t, 4);
      std::memcpy(to + 1, codes + 32 * j + 16 + 4 * t, 4);
    }
}

/// The same as 4 bits; kSuper6: with their upper two bits behind. Loops over 16 bytes become one
/// instruction or two.
void put_nibbles(const uint8_t* codes, MatrixKind kind, int r, uint32_t* group) {
  uint8_t low[4][16], upper[2][16] = {};
  for (int j = 0; j < 4; ++j) {
    // Two blocks in a word, or the halves of one.
    const bool pairs = has_block_pairs(kind);
    const uint8_t* first = codes + (pairs ? j / 2 * 64 + j % 2 * 16 : 32 * j);
    const uint8_t* second = first + (pairs ? 32 : 16);
    for (int i = 0; i < 16; ++i)
      low[j][i] = static_cast<uint8_t>((first[i] & 15) | (second[i] & 15) << 4);
  }
  uint32_t* to = group + (r / 8 * 32 + r % 8 * 4) * 4;
  for (int t = 0; t < 4; ++t)
    for (int j = 0; j < 4; ++j) std::memcpy(to + t * 4 + j, low[j] + 4 * t, 4);
  if (kind != MatrixKind::kSuper6) return;
  for (int pair = 0; pair < 2; ++pair) {
    const uint8_t* first = codes + 64 * pair;
    for (int i = 0; i < 16; ++i)
      upper[pair][i] =
          static_cast<uint8_t>((first[i] >> 4 & 3) | (first[16 + i] >> 4 & 3) << 2 |
                               (first[32 + i] >> 4 & 3) << 4 | (first[48 + i] >> 4 & 3) << 6);
  }
  to = group + (64 + r % 8 * 4) * 4 + r / 8 * 2;
  for (int t = 0; t < 4; ++t)
    for (int pair = 0; pair < 2; ++pair) std::memcpy(to + t * 4 + pair, upper[pair] + 4 * t, 4);
}

/// What the scales of a matrix have in common, over rows of any order.
struct ScaleFacts {
  bool f16 = true, bf16 = true;              // every scale and minimum is such a number
  int32_t least_zero = 256, most_zero = -1;  // zero points of groups whose scale is not 0

  void add(const IntegerRow& row) {
    const auto add_number = [&](float value) {
      f16 = f16 && fits_f16(value);
      bf16 = bf16 && fits_bf16(value);
    };
    for (const float scale : row.scales) add_number(scale);
    for (const float minimum : row.mins) add_number(minimum);
    for (size_t i = 0; i < row.zeros.size(); ++i) {
      if (row.scales[i] == 0.0f) continue;  // any zero point will do
      least_zero = std::min(least_zero, row.zeros[i]);
      most_zero = std::max(most_zero, row.zeros[i]);
    }
  }
  void add(const ScaleFacts& other) {
    f16 = f16 && other.f16;
    bf16 = bf16 && other.bf16;
    least_zero = std::min(least_zero, other.least_zero);
    most_zero = std::max(most_zero, other.most_zero);
  }
};

}  // namespace

MatrixPacker::MatrixPacker(std::string module, const WeightFormat& format, int64_t rows,
                           int64_t columns, int64_t group_size, RowReader read_row)
    : module_(std::move(module)),
      group_size_(std::max<int64_t>(group_size, 1)),
      read_row_(std::move(read_row)),
      shape_(shape_of(form_of(module_, format, columns, group_size), rows, columns)) {
  choose_storage();
  set_unit_layout(shape_);
}

/// Chooses how scales and zero points are stored, where the kind leaves it open.
void MatrixPacker::choose_storage() {
  switch (shape_.kind) {
    case MatrixKind::kSuper4:
    case MatrixKind::kSuper6:
      return;
    case MatrixKind::kFloat16:
      shape_.scale_type = ScaleType::kBF16;
      return;
    default:
      break;
  }
  ScaleFacts facts;
  std::mutex mutex;
  parallel_for(shape_.rows, 64, [&](int64_t begin, int64_t end) {
    IntegerRow row;
    ScaleFacts own;
    for (int64_t r = begin; r < end; ++r) {
      read_row_(r, row);
      own.add(row);
    }
    const std::lock_guard lock(mutex);
    facts.add(own);
  });
  shape_.scale_type = facts.f16 ? ScaleType::kF16 : facts.bf16 ? ScaleType::kBF16 : ScaleType::kF32;
  if (shape_.kind == MatrixKind::kAffine4) {
    if (shape_.scale_type == ScaleType::kF32)
      throw UnsupportedError(module_ +
                             ": minima that are neither f16 nor bf16 have no CUDA kernel");
  } else if (facts.least_zero >= facts.most_zero) {
    shape_.zero_constant = std::max(facts.most_zero, 0);
  }
}

void MatrixPacker::pack(int64_t begin, int64_t end, std::byte* to) const {
  const size_t tile_bytes = this->tile_bytes();
  parallel_for(end - begin, 1, [&](int64_t first, int64_t last) {
    thread_local Row row;  // its memory is kept from range to range
    for (int64_t tile = begin + first; tile < begin + last; ++tile) {
      std::byte* units = to + static_cast<size_t>(tile - begin) * tile_bytes;
      const int64_t n_rows = std::min<int64_t>(kTileRows, shape_.rows - tile * kTileRows);
      // Headers are put together bit by bit; codes are all written where nothing is padded.
      const bool padded = n_rows < kTileRows || shape_.groups % kSegmentGroups != 0;
      for (int segment = 0; segment < shape_.segments; ++segment)
        std::memset(units + static_cast<size_t>(segment) * static_cast<size_t>(shape_.unit_bytes),
                    0, static_cast<size_t>(padded ? shape_.unit_bytes : shape_.header_bytes));
      for (int r = 0; r < static_cast<int>(n_rows); ++r) {
        read_row_(tile * kTileRows + r, row.integers);
        if (shape_.kind == MatrixKind::kFloat16)
          quantize(tile * kTileRows + r, row);
        else
          row.integers.codes.resize(static_cast<size_t>(shape_.groups) * kGroupColumns);
        for (int group = 0; group < shape_.groups; ++group) put_group(row, r, group, units);
      }
    }
  });
}

/// The numbers of a row of kFloat16 as block int16.
void MatrixPacker::quantize(int64_t index, Row& row) const {
  const int64_t bad = quantize_block_int16(row.integers.values.data(), 1, shape_.columns,
                                           shape_.columns, row.block);
  if (bad >= 0)
    throw NumericError(fmt::format("{}: row {}, column {}: the weight {} has no block-int16 form",
                                   module_, index, bad,
                                   row.integers.values[static_cast<size_t>(bad)]));
  row.high.assign(static_cast<size_t>(shape_.groups) * kGroupColumns, 0);
  row.low = row.high;
  std::memcpy(row.high.data(), row.block.high.data(), static_cast<size_t>(shape_.columns));
  std::memcpy(row.low.data(), row.block.low.data(), static_cast<size_t>(shape_.columns));
}

/// One group of row r of the tile whose units begin at `units`.
void MatrixPacker::put_group(const Row& row, int r, int group, std::byte* units) const {
  std::byte* header =
      units + static_cast<size_t>(group / kSegmentGroups) * static_cast<size_t>(shape_.unit_bytes);
  const int inside = group % kSegmentGroups;
  auto* codes = reinterpret_cast<uint32_t*>(header + shape_.header_bytes) +
                inside * words_per_group(shape_.kind) * 4;
  const auto first = static_cast<size_t>(group) * kGroupColumns;
  switch (shape_.kind) {
    case MatrixKind::kFloat16:
      put_bytes(row.high.data() + first, r, codes);
      put_bytes(row.low.data() + first, r, codes + 512);
      reinterpret_cast<uint16_t*>(header)[r * kSegmentGroups + inside] =
          f32_to_bf16(row.block.scales[static_cast<size_t>(group)]);
      return;
    case MatrixKind::kGroup8:
      put_bytes(row.integers.codes.data() + first, r, codes);
      return put_pieces(row.integers, r, group, header);
    case MatrixKind::kGroup4:
    case MatrixKind::kAffine4:
      put_nibbles(row.integers.codes.data() + first, shape_.kind, r, codes);
      return put_pieces(row.integers, r, group, header);
    case MatrixKind::kSuper4:
      put_nibbles(row.integers.codes.data() + first, shape_.kind, r, codes);
      return put_super4(row.integers, r, group, header);
    case MatrixKind::kSuper6:
      put_nibbles(row.integers.codes.data() + first, shape_.kind, r, codes);
      return put_super6(row.integers, r, group, header);
  }
}

void MatrixPacker::put_number(float value, std::byte* to, int index) const {
  if (shape_.scale_type == ScaleType::kF32) {
    std::memcpy(to + 4 * index, &value, 4);
    return;
  }
  const uint16_t bits =
      shape_.scale_type == ScaleType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
  std::memcpy(to + 2 * index, &bits, 2);
}

void MatrixPacker::put_pieces(const IntegerRow& row, int r, int group, std::byte* header) const {
  for (int piece = 0; piece < shape_.pieces; ++piece) {
    const int column = group * kGroupColumns + piece * (kGroupColumns / shape_.pieces);
    if (column >= shape_.columns) return;
    const auto from = static_cast<size_t>(column / group_size_);
    const int to = (r * kSegmentGroups + group % kSegmentGroups) * shape_.pieces + piece;
    put_number(row.scales[from], header, to);
    if (shape_.kind == MatrixKind::kAffine4)
      put_number(row.mins[from], header + shape_.extra_at, to);
    else if (shape_.zero_constant < 0)
      header[shape_.extra_at + to] = static_cast<std::byte>(row.zeros[from]);
  }
}

void MatrixPacker::put_super4(const IntegerRow& row, int r, int group, std::byte* header) {
  const int inside = group % kSegmentGroups;
  uint32_t* super = reinterpret_cast<uint32_t*>(header) + r * 8 + inside / 2 * 4;
  const auto block = static_cast<size_t>(group / 2);
  if (inside % 2 == 0)
    super[0] = f32_to_f16(row.scales[block]) | static_cast<uint32_t>(f32_to_f16(row.mins[block]))
                                                   << 16;
  uint32_t sub = 0, mins = 0;
  for (size_t j = 0; j < 4; ++j) {
    sub |= static_cast<uint32_t>(row.sub_scales[static_cast<size_t>(group) * 4 + j]) << (6 * j);
    mins |= static_cast<uint32_t>(row.sub_mins[static_cast<size_t>(group) * 4 + j]) << (6 * j);
  }
  if (inside % 2 == 0) {
    super[1] |= sub;
    super[2] |= mins;
  } else {
    super[3] |= sub;
    super[1] |= (mins & 0xffu) << 24;
    super[2] |= ((mins >> 8) & 0xffu) << 24;
    super[3] |= ((mins >> 16) & 0xffu) << 24;
  }
}

void MatrixPacker::put_super6(const IntegerRow& row, int r, int group, std::byte* header) const {
  const int inside = group % kSegmentGroups;
  auto* to = reinterpret_cast<int8_t*>(header) + r * 32 + inside * 8;
  for (size_t j = 0; j < 8; ++j)
    to[j] = static_cast<int8_t>(row.sub_scales[static_cast<size_t>(group) * 8 + j]);
  if (inside % 2 == 0)
    reinterpret_cast<uint16_t*>(header + shape_.extra_at)[r * 2 + inside / 2] =
        f32_to_f16(row.scales[static_cast<size_t>(group / 2)]);
}

uint64_t packed_bytes(const WeightFormat& format, int64_t rows, int64_t columns,
                      int64_t group_size) {
  const Form form = form_of(std::string(format.name()), format, columns, group_size);
  DeviceMatrix m = shape_of(form, rows, columns);
  set_unit_layout(m);
  return matrix_bytes(m);
}

HostMatrix pack_matrix(const std::string& module, const WeightFormat& format, int64_t rows,
                       int64_t columns, int64_t group_size, const RowReader& read_row) {
  const MatrixPacker packer(module, format, rows, columns, group_size, read_row);
  HostMatrix host{packer.shape(), std::vector<std::byte>(matrix_bytes(packer.shape()))};
  packer.pack(0, host.shape.tiles, host.units.data());
  return host;
}

}  // namespace assay::cuda
