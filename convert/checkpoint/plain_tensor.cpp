#include "convert/checkpoint/plain_tensor.h"

#include "convert/core/error.h"

namespace assay {

PlainTensor::PlainTensor(std::string name, const WeightFormat& format, const Shape& shape,
                         std::span<const std::byte> bytes, std::vector<int64_t> row_order,
                         ColumnOrder column_order) {
  ASSAY_CHECK(!shape.empty());
  matrix_.view.format = &format;
  matrix_.view.rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) matrix_.view.rows *= shape[i];
  matrix_.view.columns = shape.back();
  matrix_.view.group_size = format.fixed_group();
  matrix_.view.data = bytes;
  matrix_.row_order = std::move(row_order);
  stored_.format = &format;
  matrix_.column_order = std::move(column_order);
  stored_.group_size = matrix_.group_size();
  stored_.bytes = bytes.size();
  stored_.parts = {std::move(name)};
}

}  // namespace assay
