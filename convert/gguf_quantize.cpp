#include "convert/gguf_quantize.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/core/units.h"
#include "convert/row_writer.h"

namespace assay {

GgufQuantize::GgufQuantize(std::shared_ptr<const GgufFile> file, const GgufQuantizeOptions& options)
    : file_(std::move(file)), options_(options) {
  for (const GgufTensor& tensor : file_->tensors()) sources_.push_back(&tensor);
  if (!options.keep_split) {
    std::stable_sort(sources_.begin(), sources_.end(), [](const auto* a, const auto* b) {
      return quantized_order(a->name, b->name);
    });
  }
  std::vector<const WeightFormat*> stored;
  for (const GgufTensor* source : sources_) {
    ExportTensor tensor;
    tensor.name = source->name;
    tensor.source_name = source->name;
    tensor.shape = source->shape;
    tensor.source_type = std::string(source->format->name());
    tensor.format = source->format;
    tensors_.push_back(std::move(tensor));
    stored.push_back(source->format);
    if (options.keep_split) split_.part_of.push_back(source->part);
  }
  split_.max_bytes = options.split_max_bytes;
  metadata_ = file_->metadata();
  for (const char* key : {"split.no", "split.count", "split.tensors.count", "general.alignment"}) {
    metadata_.remove(key);
  }
  apply_mix(options.mix, stored, options.importance);
  count_bytes();
  std::vector<std::string> requantized;
  for (const ExportTensor& tensor : tensors_) {
    if (tensor.method != ExportMethod::kRequantize) continue;
    requantized.push_back(fmt::format("{} is {}, wanted {}", in_quotes(tensor.name),
                                      tensor.source_type, tensor.format->name()));
  }
  if (!requantized.empty() && !options.allow_requantize) {
    throw UsageError(listed(
        fmt::format("{}: {} tensors are quantized already and would lose more; start from a 16-bit "
                    "file, or allow it with --allow-requantize:",
                    file_->path(), requantized.size()),
        requantized));
  }
}

std::optional<StoredRows> GgufQuantize::stored_rows(size_t index) const {
  const ExportTensor& tensor = tensors_[index];
  if (tensor.method != ExportMethod::kCopy) return std::nullopt;
  const GgufTensor& source = *sources_[index];
  const int64_t columns = source.shape.back();
  const auto row_bytes = static_cast<size_t>(source.format->row_bytes(columns));
  const auto row_of = [&source, row_bytes](int64_t row) {
    return source.bytes.subspan(static_cast<size_t>(row) * row_bytes, row_bytes);
  };
  StoredRows rows{n_elements(source.shape) / columns, row_of};
  if (!options_.allow_infinite) {
    rows.check = [&tensor, columns, row_of](int64_t row) {
      check_row(tensor, columns, row, row_of(row));
    };
  }
  rows.release = [&source] { release_pages(source.bytes); };
  return rows;
}

void GgufQuantize::write_tensor(size_t index,
                                const std::function<void(std::span<const std::byte>)>& sink) {
  ExportTensor& tensor = tensors_[index];
  const GgufTensor& source = *sources_[index];
  const int64_t columns = source.shape.back();
  const int64_t rows = n_elements(source.shape) / columns;
  const int64_t rows_per_matrix =
      source.shape.size() < 2 ? 1 : source.shape[source.shape.size() - 2];
  const WeightView view{.format = source.format,
                        .rows = rows,
                        .columns = columns,
                        .group_size = source.format->fixed_group(),
                        .data = source.bytes};
  RowWriter writer(
      tensor,
      {.rows = rows,
       .columns = columns,
       .group_size = 0,
       .values = [&](int64_t row,
                     std::span<float> out) { source.format->decode_row(view, row, out); },
       .integers = {},
       .importance = [&](int64_t row) { return importance_of(index, row / rows_per_matrix); }},
      options_.allow_infinite);
  writer.run(sink);
  tensor.n_changed = writer.n_changed();
  file_->release_pages();
}

}  // namespace assay
