#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "convert/formats/format.h"
#include "runtime/ops/block_int16.h"
#include "runtime/ops/linear_cuda.h"

namespace assay::cuda {

/// Fills `out` with row `row` of the matrix to be packed.
using RowReader = std::function<void(int64_t row, IntegerRow& out)>;

/// Bytes that pack_matrix gives at most for a matrix of this form with scales of 16 bits, for the
/// ledger.
uint64_t packed_bytes(const WeightFormat& format, int64_t rows, int64_t columns,
                      int64_t group_size);

/// Packs a matrix by fold and code width alone, some tiles at a time; bits of the products are
/// those of ops/linear.h.
class MatrixPacker {
 public:
  /// Reads all rows once where the storage of their scales depends on them. Throws UnsupportedError
  /// naming `module` for a form that the kernels do not have.
  MatrixPacker(std::string module, const WeightFormat& format, int64_t rows, int64_t columns,
               int64_t group_size, RowReader read_row);

  const DeviceMatrix& shape() const { return shape_; }  // units is null
  size_t tile_bytes() const {
    return static_cast<size_t>(shape_.segments) * static_cast<size_t>(shape_.unit_bytes);
  }

  /// Packs tiles [begin, end) to `to`, on all threads. Throws NumericError for numbers without a
  /// finite form.
  void pack(int64_t begin, int64_t end, std::byte* to) const;

 private:
  /// A row in the terms of the kernels.
  struct Row {
    IntegerRow integers;             // codes padded to whole groups
    BlockInt16 block;                // kFloat16
    std::vector<uint8_t> high, low;  // its planes, padded
  };

  void choose_storage();
  void quantize(int64_t index, Row& row) const;
  void put_group(const Row& row, int r, int group, std::byte* units) const;
  void put_number(float value, std::byte* to, int index) const;
  void put_pieces(const IntegerRow& row, int r, int group, std::byte* header) const;
  static void put_super4(const IntegerRow& row, int r, int group, std::byte* header);
  void put_super6(const IntegerRow& row, int r, int group, std::byte* header) const;

  std::string module_;
  int64_t group_size_;
  RowReader read_row_;
  DeviceMatrix shape_;
};

/// A matrix in the layout of DeviceMatrix, on the host.
struct HostMatrix {
  DeviceMatrix shape;  // units is null
  std::vector<std::byte> units;
};

/// All of it.
HostMatrix pack_matrix(const std::string& module, const WeightFormat& format, int64_t rows,
                       int64_t columns, int64_t group_size, const RowReader& read_row);

}  // namespace assay::cuda
