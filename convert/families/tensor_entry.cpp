#include "convert/families/tensor_entry.h"

#include <string_view>

#include "convert/core/math64.h"

namespace assay {
namespace {

int64_t huggingface_block(const BlockOrder& order, int64_t p) {
  return p % order.groups * order.repeats + p / order.groups;
}

std::vector<int64_t> moved_rows(const BlockOrder& order, int64_t n_rows) {
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < n_rows; ++r) {
    const int64_t inside = r - order.begin;
    rows.push_back(inside < 0 ? r
                              : order.begin +
                                    huggingface_block(order, inside / order.block) * order.block +
                                    inside % order.block);
  }
  return rows;
}

}  // namespace

ColumnOrder gguf_columns_of_huggingface(const TensorEntry& entry) {
  const BlockOrder& order = entry.gguf_columns;
  ColumnOrder columns{.block = order.block};
  for (int64_t p = 0; order.block > 0 && p < order.groups * order.repeats; ++p) {
    columns.source.push_back(huggingface_block(order, p));
  }
  return columns;
}

ColumnOrder huggingface_columns_of_gguf(const TensorEntry& entry) {
  const ColumnOrder there = gguf_columns_of_huggingface(entry);
  ColumnOrder columns{.block = there.block, .source = std::vector<int64_t>(there.source.size())};
  for (size_t p = 0; p < there.source.size(); ++p) {
    columns.source[static_cast<size_t>(there.source[p])] = static_cast<int64_t>(p);
  }
  return columns;
}

std::vector<int64_t> huggingface_rows_of_gguf(const TensorEntry& entry) {
  if (entry.gguf_rows.block > 0) return moved_rows(entry.gguf_rows, entry.shape[0]);
  if (entry.gguf_transform != GgufTransform::kInterleaveRope) return {};
  const int64_t n_rows = entry.shape[0];
  const int64_t head_dim = n_rows / entry.n_heads;
  std::vector<int64_t> rows(static_cast<size_t>(n_rows));
  for (int64_t r = 0; r < n_rows; ++r) {
    const int64_t head = r / head_dim;
    const int64_t pair = (r % head_dim) / 2;
    const int64_t half = r % 2;
    rows[static_cast<size_t>(r)] = head * head_dim + half * (head_dim / 2) + pair;
  }
  return rows;
}

Shape gguf_shape(const TensorEntry& entry) {
  if (entry.gguf_stack) return entry.gguf_stack->shape;
  if (entry.shape.size() < 3) return entry.shape;
  Shape shape;
  for (const int64_t n : entry.shape) {
    if (n != 1) shape.push_back(n);
  }
  return shape;
}

void apply_transform(GgufTransform transform, std::span<float> values) {
  if (transform == GgufTransform::kAddOne) {
    for (float& value : values) value = 1.0f + value;
  }
  if (transform == GgufTransform::kNegativeExp) {
    for (float& value : values) value = -static_cast<float>(exp64(static_cast<double>(value)));
  }
}

std::string TensorEntry::module_name() const {
  constexpr std::string_view kSuffixes[] = {".weight", ".bias"};
  for (const std::string_view suffix : kSuffixes) {
    if (hf_name.size() > suffix.size() && hf_name.ends_with(suffix)) {
      return hf_name.substr(0, hf_name.size() - suffix.size());
    }
  }
  return hf_name;
}

}  // namespace assay
