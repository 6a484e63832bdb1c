#include <string>

#include "convert/core/error.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/linear_row.h"

namespace assay {

InfiniteProduct::InfiniteProduct(int64_t token_index, int64_t row_index)
    : NumericError("row " + std::to_string(token_index) + " of the input, output " +
                   std::to_string(row_index) +
                   ": product of weight scale and activation scale is not finite"),
      token(token_index),
      row(row_index) {}

void linear_reference(const WeightFormat& format, int64_t rows, int64_t columns, int64_t group_size,
                      const std::function<void(int64_t row, IntegerRow& out)>& read_row,
                      const BlockInt16& x, std::span<const float> bias, float* out,
                      int64_t out_stride) {
  ASSAY_CHECK(x.columns == columns);
  for (int64_t row = 0; row < rows; ++row) {
    IntegerRow integers;
    read_row(row, integers);
    const ReferenceRow weights(format, columns, group_size, std::move(integers));
    if (weights.first_bad_value() >= 0) {
      throw NumericError("row " + std::to_string(row) + ", column " +
                         std::to_string(weights.first_bad_value()) +
                         ": weight is not finite or above 32639*2^100");
    }
    for (int64_t token = 0; token < x.rows; ++token) {
      bool bad = false;
      float y = weights.dot(x, token, &bad);
      if (bad) throw InfiniteProduct(token, row);
      if (!bias.empty()) y = y + bias[static_cast<size_t>(row)];
      out[token * out_stride + row] = y;
    }
  }
}

}  // namespace assay
