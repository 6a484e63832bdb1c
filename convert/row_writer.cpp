#include "convert/row_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/core/parallel.h"

namespace assay {
namespace {

constexpr int64_t kRowsPerTask = 16;

/// Rows of a chunk that is encoded at a time: about 4 MiB of output.
int64_t rows_per_chunk(uint64_t row_bytes) {
  return std::max<int64_t>(1, static_cast<int64_t>((uint64_t{4} << 20) / row_bytes));
}

WeightView one_row(const WeightFormat& format, int64_t columns, std::span<const std::byte> bytes) {
  return {.format = &format,
          .rows = 1,
          .columns = columns,
          .group_size = format.fixed_group(),
          .data = bytes};
}

}  // namespace

void check_row(const ExportTensor& tensor, int64_t columns, int64_t row,
               std::span<const std::byte> bytes) {
  if (const auto fault = tensor.format->find_fault(one_row(*tensor.format, columns, bytes), 0)) {
    throw NumericError(fmt::format("{}, row {}, as {}: {}", in_quotes(tensor.source_name), row,
                                   tensor.format->name(), *fault));
  }
}

bool same_value(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void RowWriter::run(const std::function<void(std::span<const std::byte>)>& sink) {
  const uint64_t row_bytes = tensor_.format->row_bytes(source_.columns);
  const int64_t chunk_rows = std::min(source_.rows, rows_per_chunk(row_bytes));
  std::vector<std::byte> chunk(static_cast<size_t>(chunk_rows) * row_bytes);
  for (int64_t first = 0; first < source_.rows; first += chunk_rows) {
    const int64_t n = std::min(chunk_rows, source_.rows - first);
    parallel_for(n, kRowsPerTask, [&](int64_t begin, int64_t end) {
      Buffers buffers;
      for (int64_t i = begin; i < end; ++i) {
        write_row(first + i,
                  std::span(chunk).subspan(static_cast<size_t>(i) * row_bytes, row_bytes), buffers);
      }
    });
    sink(std::span(chunk).first(static_cast<size_t>(n) * row_bytes));
  }
}

void RowWriter::write_row(int64_t row, std::span<std::byte> out, Buffers& buffers) {
  switch (tensor_.method) {
    case ExportMethod::kMoveCodes:
    case ExportMethod::kRoundScales:
      source_.integers(row, buffers.integers);
      tensor_.format->repack_row(buffers.integers, source_.group_size, out);
      break;
    default:
      buffers.values.resize(static_cast<size_t>(source_.columns));
      source_.values(row, buffers.values);
      encode(row, buffers.values, out);
  }
  if (!allow_infinite_) check_row(tensor_, source_.columns, row, out);
  if (tensor_.method == ExportMethod::kRoundScales || tensor_.method == ExportMethod::kRequantize) {
    count_changes(row, out, buffers);
  }
}

void RowWriter::encode(int64_t row, std::span<const float> values, std::span<std::byte> out) const {
  try {
    const std::span<const float> importance =
        source_.importance ? source_.importance(row) : std::span<const float>();
    tensor_.format->encode_row(values, importance, out);
  } catch (const NumericError& error) {
    throw NumericError(
        fmt::format("{}, row {}: {}", in_quotes(tensor_.source_name), row, error.what()));
  }
}

void RowWriter::count_changes(int64_t row, std::span<const std::byte> out, Buffers& buffers) {
  const auto columns = static_cast<size_t>(source_.columns);
  buffers.values.resize(columns);
  buffers.written.resize(columns);
  source_.values(row, buffers.values);
  tensor_.format->decode_row(one_row(*tensor_.format, source_.columns, out), 0, buffers.written);
  int64_t changed = 0;
  for (size_t i = 0; i < columns; ++i) {
    changed += same_value(buffers.values[i], buffers.written[i]) ? 0 : 1;
  }
  n_changed_ += changed;
}

}  // namespace assay
