#pragma once

#include "convert/checkpoint.h"

namespace assay {

/// A tensor whose bytes are read where they lie: scalars of a safetensors file, anything of GGUF.
class PlainTensor final : public TensorOnDisk {
 public:
  /// `shape` of rank 1 (one row) or more (rows of the last dimension); orders as in
  /// CheckpointMatrix.
  PlainTensor(std::string name, const WeightFormat& format, const Shape& shape,
              std::span<const std::byte> bytes, std::vector<int64_t> row_order = {},
              ColumnOrder column_order = {});
  CheckpointMatrix load() const override { return matrix_; }

 private:
  CheckpointMatrix matrix_;
};

}  // namespace assay
