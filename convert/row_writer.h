#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "convert/formats/format.h"
#include "convert/gguf_plan.h"

namespace assay {

/// A matrix as the rows of a tensor to be written, in the order of the file. Functions may be
/// called on any thread; those that the tensor's method does not need may be missing.
struct RowSource {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t group_size = 0;  // of `integers`
  std::function<void(int64_t row, std::span<float> out)> values;
  std::function<void(int64_t row, IntegerRow& out)> integers;
  /// Importance of the columns of a row, or nothing.
  std::function<std::span<const float>(int64_t row)> importance;
};

/// Throws NumericError, naming tensor and column, for a row of `tensor` as it will be written that
/// holds NaN or infinity.
void check_row(const ExportTensor& tensor, int64_t columns, int64_t row,
               std::span<const std::byte> bytes);

/// Makes the rows of one tensor that is not copied, many at a time on all threads; the bytes do not
/// depend on how many there are.
class RowWriter {
 public:
  RowWriter(const ExportTensor& tensor, RowSource source, bool allow_infinite)
      : tensor_(tensor), source_(std::move(source)), allow_infinite_(allow_infinite) {}

  /// Throws NumericError naming the tensor, row and column of a value that cannot be stored.
  void run(const std::function<void(std::span<const std::byte>)>& sink);

  int64_t n_changed() const { return n_changed_; }

 private:
  struct Buffers {
    std::vector<float> values;
    std::vector<float> written;
    IntegerRow integers;
  };
  void write_row(int64_t row, std::span<std::byte> out, Buffers& buffers);
  void encode(int64_t row, std::span<const float> values, std::span<std::byte> out) const;
  void count_changes(int64_t row, std::span<const std::byte> out, Buffers& buffers);

  const ExportTensor& tensor_;
  RowSource source_;
  bool allow_infinite_;
  std::atomic<int64_t> n_changed_ = 0;
};

/// Both numbers equal, or both NaN.
bool same_value(float a, float b);

}  // namespace assay
