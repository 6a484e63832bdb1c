#include "runtime/ops/linear_cuda_pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "runtime/ops/block_int16.h"

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

/// Elements of `scales` per row of 16 and segment.
int64_t scales_per_row(const DeviceMatrix& m) { return int64_t{kSegmentGroups} * m.pieces; }

bool fits_f16(float value) { return f16_to_f32(f32_to_f16(value)) == value; }
bool fits_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)) == value; }

/// A row in the terms of the kernels: codes as bytes (kFloat16: planes), scales per piece.
struct Row {
  IntegerRow integers;
  BlockInt16 block;  // kFloat16
};

void put_code(uint32_t* group, MatrixKind kind, int r, int inside, uint32_t code) {
  const int half = r / 8, block = inside / 32, upper = inside % 32 / 16, t = inside % 16 / 4,
            byte = inside % 4;
  const int lane = (r % 8) * 4 + t;
  switch (kind) {
    case MatrixKind::kGroup8:
      group[((half * 2 + block / 2) * 32 + lane) * 4 + (block & 1) * 2 + upper] |= code
                                                                                   << (8 * byte);
      break;
    case MatrixKind::kSuper6:
      group[(64 + lane) * 4 + half * 2 + block / 2] |= (code >> 4)
                                                       << (8 * byte + (block & 1) * 4 + upper * 2);
      [[fallthrough]];
    default:
      group[(half * 32 + lane) * 4 + block] |= (code & 15u) << (8 * byte + 4 * upper);
  }
}

class Packer {
 public:
  Packer(const std::string& module, const WeightFormat& format, const Form& form, int64_t rows,
         int64_t columns, int64_t group_size)
      : module_(module), format_(format), group_size_(std::max<int64_t>(group_size, 1)) {
    out.shape = shape_of(form, rows, columns);
    const DeviceMatrix& m = out.shape;
    codes_.resize(static_cast<size_t>(m.tiles) * static_cast<size_t>(m.segments) *
                  unit_code_bytes());
    n_scales_ = static_cast<size_t>(m.tiles) * static_cast<size_t>(m.segments) * kTileRows *
                static_cast<size_t>(scales_per_row(m));
    switch (m.kind) {
      case MatrixKind::kSuper4:
        scale_bytes_.resize(n_scales_ / 4 * 32);
        break;
      case MatrixKind::kSuper6:
        scale_bytes_.resize(n_scales_ / 4 * 32);
        extra_bytes_.resize(n_scales_ / 4 * 4);
        break;
      case MatrixKind::kFloat16:
        scale_bytes_.resize(n_scales_ * 2);
        out.shape.scale_type = ScaleType::kBF16;
        break;
      default:
        scales_.resize(n_scales_);
        if (m.kind == MatrixKind::kAffine4)
          mins_.resize(n_scales_);
        else
          zeros_.resize(n_scales_);
    }
  }

  void add_row(int64_t row, Row& source) {
    const DeviceMatrix& m = out.shape;
    if (m.kind == MatrixKind::kFloat16) return add_float_row(row, source);
    const int64_t tile = row / kTileRows;
    const int r = static_cast<int>(row % kTileRows);
    const auto group_words = static_cast<size_t>(words_per_group(m.kind)) * 4;
    uint32_t* codes = codes_of(tile);
    for (int64_t column = 0; column < m.columns; ++column) {
      put_code(codes + static_cast<size_t>(column / kGroupColumns) * group_words, m.kind, r,
               static_cast<int>(column % kGroupColumns),
               source.integers.codes[static_cast<size_t>(column)]);
    }
    for (int64_t group = 0; group < m.groups; ++group) {
      const int64_t at_row = (tile * m.segments + group / kSegmentGroups) * kTileRows + r;
      const int64_t inside = group % kSegmentGroups;
      if (m.kind == MatrixKind::kSuper4) {
        add_super4(group, at_row, inside, source.integers);
      } else if (m.kind == MatrixKind::kSuper6) {
        add_super6(group, at_row, inside, source.integers);
      } else {
        for (int64_t piece = 0; piece < m.pieces; ++piece) {
          const int64_t first = group * kGroupColumns + piece * (kGroupColumns / m.pieces);
          if (first >= m.columns) break;
          const auto from = static_cast<size_t>(first / group_size_);
          const auto to =
              static_cast<size_t>(at_row * scales_per_row(m) + inside * m.pieces + piece);
          scales_[to] = source.integers.scales[from];
          if (m.kind == MatrixKind::kAffine4) {
            mins_[to] = source.integers.mins[from];
          } else {
            zeros_[to] = static_cast<uint8_t>(source.integers.zeros[from]);
          }
        }
      }
    }
  }

  /// Chooses the storage of scales and zero points, and puts each unit together.
  void finish() {
    if (!scales_.empty()) store_scales();
    set_unit_layout(out.shape);
    const DeviceMatrix& m = out.shape;
    const int64_t n_units = int64_t{m.tiles} * m.segments;
    out.units.resize(matrix_bytes(m));
    const size_t n = static_cast<size_t>(n_units);
    const size_t scales = scale_bytes_.size() / n, extra = extra_bytes_.size() / n;
    parallel_for(n_units, 64, [&](int64_t begin, int64_t end) {
      for (auto unit = static_cast<size_t>(begin); unit < static_cast<size_t>(end); ++unit) {
        std::byte* to = out.units.data() + unit * static_cast<size_t>(m.unit_bytes);
        std::memcpy(to, scale_bytes_.data() + unit * scales, scales);
        if (extra != 0) std::memcpy(to + m.extra_at, extra_bytes_.data() + unit * extra, extra);
        std::memcpy(to + m.header_bytes, codes_.data() + unit * unit_code_bytes(),
                    unit_code_bytes());
      }
    });
  }

  HostMatrix out;

 private:
  size_t unit_code_bytes() const {
    return size_t{kSegmentGroups} * static_cast<size_t>(words_per_group(out.shape.kind)) * 16;
  }
  uint32_t* codes_of(int64_t tile) {
    return reinterpret_cast<uint32_t*>(codes_.data() + static_cast<size_t>(tile) *
                                                           static_cast<size_t>(out.shape.segments) *
                                                           unit_code_bytes());
  }

  void store_scales() {
    const auto all = [&](auto&& fits) {
      return std::all_of(scales_.begin(), scales_.end(), fits) &&
             std::all_of(mins_.begin(), mins_.end(), fits);
    };
    ScaleType& type = out.shape.scale_type;
    type = all(fits_f16) ? ScaleType::kF16 : all(fits_bf16) ? ScaleType::kBF16 : ScaleType::kF32;
    if (type == ScaleType::kF32 && out.shape.kind == MatrixKind::kAffine4)
      throw UnsupportedError(module_ +
                             ": minima that are neither f16 nor bf16 have no CUDA kernel");
    scale_bytes_ = stored(scales_, type);
    if (!mins_.empty()) {
      extra_bytes_ = stored(mins_, type);
      return;
    }
    // Padding rows and columns have zero point 0 and no weight: they follow whatever the others
    // have.
    const auto used = std::find_if(zeros_.begin(), zeros_.end(), [](uint8_t z) { return z != 0; });
    const uint8_t constant = used == zeros_.end() ? uint8_t{0} : *used;
    if (format_zero_is_constant(constant)) {
      out.shape.zero_constant = constant;
    } else {
      extra_bytes_.resize(zeros_.size());
      std::memcpy(extra_bytes_.data(), zeros_.data(), zeros_.size());
    }
  }

  static std::vector<std::byte> stored(const std::vector<float>& values, ScaleType type) {
    std::vector<std::byte> bytes(values.size() * (type == ScaleType::kF32 ? 4 : 2));
    for (size_t i = 0; i < values.size(); ++i) {
      if (type == ScaleType::kF32) {
        std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      } else {
        const uint16_t bits =
            type == ScaleType::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
        std::memcpy(bytes.data() + 2 * i, &bits, 2);
      }
    }
    return bytes;
  }

  /// A scale of 0 marks padding, where any zero point will do.
  bool format_zero_is_constant(uint8_t constant) const {
    for (size_t i = 0; i < zeros_.size(); ++i)
      if (zeros_[i] != constant && scales_[i] != 0.0f) return false;
    return true;
  }

  void add_super4(int64_t group, int64_t at_row, int64_t inside, const IntegerRow& row) {
    uint32_t* super =
        reinterpret_cast<uint32_t*>(scale_bytes_.data()) + at_row * 8 + inside / 2 * 4;
    const auto block = static_cast<size_t>(group / 2);
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

  void add_super6(int64_t group, int64_t at_row, int64_t inside, const IntegerRow& row) {
    auto* to = reinterpret_cast<int8_t*>(scale_bytes_.data()) + at_row * 32 + inside * 8;
    for (size_t j = 0; j < 8; ++j)
      to[j] = static_cast<int8_t>(row.sub_scales[static_cast<size_t>(group) * 8 + j]);
    reinterpret_cast<uint16_t*>(extra_bytes_.data())[at_row * 2 + inside / 2] =
        f32_to_f16(row.scales[static_cast<size_t>(group / 2)]);
  }

  void add_float_row(int64_t row, Row& source) {
    const DeviceMatrix& m = out.shape;
    const int64_t bad =
        quantize_block_int16(source.integers.values.data(), 1, m.columns, m.columns, source.block);
    if (bad >= 0)
      throw NumericError(fmt::format("{}: row {}, column {}: the weight {} has no block-int16 form",
                                     module_, row, bad,
                                     source.integers.values[static_cast<size_t>(bad)]));
    const int64_t tile = row / kTileRows;
    const int r = static_cast<int>(row % kTileRows);
    uint32_t* codes = codes_of(tile);
    for (int64_t column = 0; column < m.columns; ++column) {
      uint32_t* group = codes + static_cast<size_t>(column / kGroupColumns) * 1024;
      const int inside = static_cast<int>(column % kGroupColumns);
      put_code(group, MatrixKind::kGroup8, r, inside,
               static_cast<uint8_t>(source.block.high[static_cast<size_t>(column)]));
      put_code(group + 512, MatrixKind::kGroup8, r, inside,
               static_cast<uint8_t>(source.block.low[static_cast<size_t>(column)]));
    }
    for (int64_t group = 0; group < m.groups; ++group) {
      const int64_t at =
          ((tile * m.segments + group / kSegmentGroups) * kTileRows + r) * kSegmentGroups +
          group % kSegmentGroups;
      reinterpret_cast<uint16_t*>(scale_bytes_.data())[at] =
          f32_to_bf16(source.block.scales[static_cast<size_t>(group)]);
    }
  }

  const std::string& module_;
  const WeightFormat& format_;
  int64_t group_size_;
  size_t n_scales_ = 0;
  std::vector<std::byte> codes_, scale_bytes_, extra_bytes_;  // of all units, in order
  std::vector<float> scales_, mins_;
  std::vector<uint8_t> zeros_;
};

}  // namespace

uint64_t packed_bytes(const WeightFormat& format, int64_t rows, int64_t columns,
                      int64_t group_size) {
  const Form form = form_of(std::string(format.name()), format, columns, group_size);
  DeviceMatrix m = shape_of(form, rows, columns);
  set_unit_layout(m);
  return matrix_bytes(m);
}

HostMatrix pack_matrix(const std::string& module, const WeightFormat& format, int64_t rows,
                       int64_t columns, int64_t group_size, const RowReader& read_row) {
  const Form form = form_of(module, format, columns, group_size);
  Packer packer(module, format, form, rows, columns, group_size);
  const int64_t tiles = packer.out.shape.tiles;
  parallel_for(tiles, 1, [&](int64_t begin, int64_t end) {
    Row row;
    for (int64_t r = begin * kTileRows; r < std::min(end * kTileRows, rows); ++r) {
      read_row(r, row.integers);
      packer.add_row(r, row);
    }
  });
  packer.finish();
  return std::move(packer.out);
}

}  // namespace assay::cuda
