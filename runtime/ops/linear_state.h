#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/ops/linear.h"
#include "runtime/ops/linear_kernels.h"
#include "runtime/ops/linear_row.h"

namespace assay {

/// Memory that begins at a multiple of 64 bytes, in large pages where the system gives them.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  /// Contents are undefined. Throws std::bad_alloc.
  explicit AlignedBytes(size_t size);

  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(uint8_t* data) const;
  };
  std::unique_ptr<uint8_t[], Free> data_;
  size_t size_ = 0;
};

/// What a PackedMatrix holds: tiles, or (for groupings that have no tiled layout) plain rows.
struct PackedMatrix::State {
  int64_t rows = 0;
  int64_t columns = 0;
  MatrixLayout layout;
  AlignedBytes tiles;
  std::vector<std::unique_ptr<ReferenceRow>> plain_rows;
  uint64_t plain_bytes = 0;
};

/// Scale (or minimum, where `mins`) of a row at a column.
float packed_scale(const MatrixLayout& layout, int64_t row, int64_t column, bool mins);

}  // namespace assay
