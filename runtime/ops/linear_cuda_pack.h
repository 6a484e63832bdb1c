#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "convert/formats/format.h"
#include "runtime/ops/linear_cuda.h"

namespace assay::cuda {

/// A matrix in the layout of DeviceMatrix, on the host.
struct HostMatrix {
  DeviceMatrix shape;  // units is null
  std::vector<std::byte> units;
};

/// Fills `out` with row `row` of the matrix to be packed.
using RowReader = std::function<void(int64_t row, IntegerRow& out)>;

/// Bytes that pack_matrix gives at most for a matrix of this form with scales of 16 bits, for the
/// ledger.
uint64_t packed_bytes(const WeightFormat& format, int64_t rows, int64_t columns,
                      int64_t group_size);

/// Packs a matrix by fold and code width alone; bits of the products are those of ops/linear.h.
/// Throws UnsupportedError naming `module` for a form that the kernels do not have, NumericError
/// for numbers without a finite form.
HostMatrix pack_matrix(const std::string& module, const WeightFormat& format, int64_t rows,
                       int64_t columns, int64_t group_size, const RowReader& read_row);

}  // namespace assay::cuda
