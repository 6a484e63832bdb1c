#include "convert/checkpoint/act_order.h"

#include <fmt/format.h>

#include <utility>

#include "convert/core/error.h"
#include "convert/core/parallel.h"

namespace assay {

ActOrderMatrix::ActOrderMatrix(std::unique_ptr<const TensorOnDisk> codes,
                               std::vector<int32_t> group_of)
    : codes_(std::move(codes)), group_of_(std::move(group_of)) {
  const StoredTensor& stored = codes_->stored();
  stored_ = stored;
  stored_.format = &scalar_format(DType::kF32);
  stored_.group_size = 0;
  stored_.scale_dtype.reset();
  stored_.act_order =
      fmt::format("{} group {} in activation order", stored.format->name(), stored.group_size);
}

CheckpointMatrix ActOrderMatrix::load() const {
  const CheckpointMatrix codes = codes_->load();
  const int64_t rows = codes.view.rows, columns = codes.view.columns;
  auto storage =
      std::make_shared<std::vector<std::byte>>(static_cast<size_t>(rows * columns) * sizeof(float));
  auto* const values = reinterpret_cast<float*>(storage->data());
  parallel_for_anywhere(rows, 16, [&](int64_t begin, int64_t end) {
    IntegerRow integers;
    for (int64_t row = begin; row < end; ++row) {
      if (const auto fault = codes.view.format->find_fault(codes.view, row)) {
        throw FormatError(fmt::format("\"{}\", row {}: {}", stored_.parts.front(), row, *fault));
      }
      codes.read_integers(row, integers);
      for (int64_t k = 0; k < columns; ++k) {
        const auto group = static_cast<size_t>(group_of_[static_cast<size_t>(k)]);
        values[row * columns + k] =
            integers.scales[group] * (static_cast<float>(integers.codes[static_cast<size_t>(k)]) -
                                      static_cast<float>(integers.zeros[group]));
      }
    }
  });
  CheckpointMatrix matrix;
  matrix.view.format = stored_.format;
  matrix.view.rows = rows;
  matrix.view.columns = columns;
  matrix.view.data = *storage;
  matrix.storage = std::move(storage);
  return matrix;
}

}  // namespace assay
