// Plain rows behind the packed interface, until the tiled layout replaces this file.
#include <mutex>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "runtime/math.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/linear_row.h"

namespace assay {

struct PackedMatrix::State {
  int64_t rows = 0;
  int64_t columns = 0;
  uint64_t bytes = 0;
  std::vector<std::unique_ptr<ReferenceRow>> data;
};

PackedMatrix::PackedMatrix() : state_(std::make_unique<State>()) {}
PackedMatrix::~PackedMatrix() = default;
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;
PackedMatrix& PackedMatrix::operator=(PackedMatrix&&) noexcept = default;

uint64_t PackedMatrix::bytes_for(const WeightFormat& format, int64_t rows, int64_t columns,
                                 int64_t group_size) {
  const int64_t group = group_size > 0 ? group_size : columns;
  const uint64_t scales = static_cast<uint64_t>((columns + group - 1) / group) * 12;
  const uint64_t codes = format.fold() == Fold::kFloat ? 7 : 1;
  return static_cast<uint64_t>(rows) * (static_cast<uint64_t>(columns) * codes + scales);
}

PackedMatrix PackedMatrix::pack(const WeightFormat& format, int64_t rows, int64_t columns,
                                int64_t group_size,
                                const std::function<void(int64_t row, IntegerRow& out)>& read_row) {
  PackedMatrix matrix;
  State& state = *matrix.state_;
  state.rows = rows;
  state.columns = columns;
  state.bytes = bytes_for(format, rows, columns, group_size);
  state.data.resize(static_cast<size_t>(rows));
  parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      IntegerRow integers;
      read_row(row, integers);
      for (const float scale : integers.scales) {
        if (is_not_finite(scale)) {
          throw NumericError("row " + std::to_string(row) + ": weight scale is not finite");
        }
      }
      for (const float min : integers.mins) {
        if (is_not_finite(min)) {
          throw NumericError("row " + std::to_string(row) + ": weight minimum is not finite");
        }
      }
      auto weights =
          std::make_unique<ReferenceRow>(format, columns, group_size, std::move(integers));
      if (weights->first_bad_value() >= 0) {
        throw NumericError("row " + std::to_string(row) + ", column " +
                           std::to_string(weights->first_bad_value()) +
                           ": weight is not finite or above 32639*2^100");
      }
      state.data[static_cast<size_t>(row)] = std::move(weights);
    }
  });
  return matrix;
}

int64_t PackedMatrix::rows() const { return state_->rows; }
int64_t PackedMatrix::columns() const { return state_->columns; }
uint64_t PackedMatrix::bytes() const { return state_->bytes; }
bool PackedMatrix::empty() const { return state_->rows == 0; }

void linear(const PackedMatrix& weights, const BlockInt16& x, std::span<const float> bias,
            float* out, int64_t out_stride) {
  ASSAY_CHECK(x.columns == weights.columns());
  parallel_for(weights.rows(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t token = 0; token < x.rows; ++token) {
        bool bad = false;
        float y = weights.state().data[static_cast<size_t>(row)]->dot(x, token, &bad);
        if (bad) throw InfiniteProduct(token, row);
        if (!bias.empty()) y = y + bias[static_cast<size_t>(row)];
        out[token * out_stride + row] = y;
      }
    }
  });
}

}  // namespace assay
