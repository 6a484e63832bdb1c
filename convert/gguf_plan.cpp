#include "convert/gguf_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/core/units.h"

namespace assay {

std::string_view export_method_name(ExportMethod method) {
  switch (method) {
    case ExportMethod::kCompute:
      return "computed";
    case ExportMethod::kCopy:
      return "copied";
    case ExportMethod::kWiden:
      return "widened";
    case ExportMethod::kRound:
      return "rounded";
    case ExportMethod::kQuantize:
      return "quantized";
    case ExportMethod::kMoveCodes:
      return "codes moved";
    case ExportMethod::kRoundScales:
      return "scales rounded";
    case ExportMethod::kRequantize:
      return "requantized";
  }
  return "unknown";
}

void GgufPlan::count_bytes() {
  for (ExportTensor& tensor : tensors_) {
    tensor.n_values = n_elements(tensor.shape);
    tensor.bytes = static_cast<uint64_t>(tensor.n_values / tensor.shape.back()) *
                   tensor.format->row_bytes(tensor.shape.back());
  }
}

// ---------------------------------------------------------------------------------------------
// Types by a mix

namespace {

/// How values of type `from` become those of `to`.
ExportMethod method_of(const WeightFormat& from, const WeightFormat& to) {
  if (&from == &to) return ExportMethod::kCopy;
  if (from.fold() != Fold::kFloat) return ExportMethod::kRequantize;
  if (to.fold() != Fold::kFloat) return ExportMethod::kQuantize;
  return to.code_bits() == 32 ? ExportMethod::kWiden : ExportMethod::kRound;
}

}  // namespace

void GgufPlan::apply_mix(const MixOptions& options, const std::vector<const WeightFormat*>& stored,
                         const std::shared_ptr<const ImportanceMatrix>& importance) {
  std::vector<MixTensor> tensors;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensors.push_back({tensors_[i].name, tensors_[i].shape, stored[i]});
  }
  MixOptions with_importance = options;
  with_importance.has_importance = importance != nullptr;
  importance_matrix_ = importance;
  importance_.assign(tensors_.size(), nullptr);
  const auto is_head = [](const ExportTensor& tensor) { return tensor.name == "output.weight"; };
  if (options.output_type != nullptr && std::none_of(tensors_.begin(), tensors_.end(), is_head)) {
    warnings_.emplace_back(
        "--output-tensor-type changes nothing: the head is the embedding, whose type is that of "
        "--token-embedding-type");
  }
  const std::vector<MixChoice> choices =
      choose_types(mix_model_of(metadata_), tensors, with_importance);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const MixChoice& choice = choices[i];
    if (!choice.allowed) continue;
    ExportTensor& tensor = tensors_[i];
    tensor.format = choice.format;
    tensor.method = method_of(*stored[i], *choice.format);
    tensor.note = choice.note;
    if (tensor.format->fold() == Fold::kFloat || tensor.method == ExportMethod::kCopy) continue;
    find_importance(i, choice.needs_importance);
  }
  metadata_.remove("general.quantization_version");
  metadata_.remove("general.file_type");
  metadata_.set("general.quantization_version", uint32_t{2});
  metadata_.set("general.file_type", options.mix->file_type);
  if (importance == nullptr) return;
  metadata_.set("quantize.imatrix.file", importance->file_name());
  if (!importance->datasets().empty()) {
    metadata_.set("quantize.imatrix.dataset", importance->datasets().front());
  }
  metadata_.set("quantize.imatrix.entries_count",
                static_cast<uint32_t>(importance->entries().size()));
  if (importance->chunk_count() > 0) {
    metadata_.set("quantize.imatrix.chunks_count",
                  static_cast<uint32_t>(importance->chunk_count()));
  }
}

void GgufPlan::find_importance(size_t index, bool needed) {
  ExportTensor& tensor = tensors_[index];
  const Shape& shape = tensor.shape;
  const Importance* found =
      importance_matrix_ == nullptr ? nullptr : importance_matrix_->find(tensor.name);
  const auto n_matrices = shape.size() < 3 ? int64_t{1} : shape[shape.size() - 3];
  const auto expected = static_cast<uint64_t>(shape.back() * n_matrices);
  if (found != nullptr && found->values.size() != expected) {
    const std::string what =
        fmt::format("{}: {} has {} values, its tensor needs {}", importance_matrix_->path(),
                    in_quotes(tensor.name), found->values.size(), expected);
    // llama-imatrix may write the head's input under the name of a tied embedding.
    if (!tensor.name.ends_with("token_embd.weight")) {
      throw FormatError(what + "; the matrix was made from another model");
    }
    warnings_.push_back(what + "; quantized without");
    found = nullptr;
  }
  importance_[index] = found;
  if (found == nullptr && (needed || tensor.format->needs_importance())) {
    missing_importance_.push_back(
        fmt::format("{} as {}", in_quotes(tensor.name), tensor.format->name()));
  } else if (found == nullptr && importance_matrix_ != nullptr &&
             !tensor.name.ends_with("token_embd.weight") && tensor.name != "output.weight") {
    warnings_.push_back(fmt::format("{}: nothing about {}; quantized without",
                                    importance_matrix_->path(), in_quotes(tensor.name)));
  }
}

std::span<const float> GgufPlan::importance_of(size_t index, int64_t matrix) const {
  if (importance_.empty() || importance_[index] == nullptr) return {};
  const auto columns = static_cast<size_t>(tensors_[index].shape.back());
  return std::span(importance_[index]->values)
      .subspan(columns * static_cast<size_t>(matrix), columns);
}

// ---------------------------------------------------------------------------------------------
// Parts and files

namespace {

/// Keys of part `index`: the first has all of them, the others those of the split alone.
GgufMetadata metadata_of_part(const GgufMetadata& all, int64_t index, int64_t count,
                              size_t n_tensors) {
  GgufMetadata metadata;
  if (index == 0) metadata = all;
  if (count == 1) return metadata;
  metadata.set("split.no", static_cast<uint16_t>(index));
  metadata.set("split.count", static_cast<uint16_t>(count));
  metadata.set("split.tensors.count", static_cast<int32_t>(n_tensors));
  return metadata;
}

}  // namespace

std::vector<int64_t> GgufPlan::part_of_tensors() const {
  if (!split_.part_of.empty()) return split_.part_of;
  std::vector<int64_t> parts;
  int64_t part = 0;
  uint64_t bytes = 0;  // of the open part
  for (const ExportTensor& tensor : tensors_) {
    if (split_.max_bytes > 0 && bytes > 0 && bytes + tensor.bytes > split_.max_bytes) {
      ++part;
      bytes = 0;
    }
    bytes += tensor.bytes;
    parts.push_back(part);
  }
  if (part > 65534) {
    throw UsageError(
        fmt::format("the file would have {} parts; choose a larger --split-max-size", part + 1));
  }
  return parts;
}

std::vector<std::string> GgufPlan::paths(const std::string& path) const {
  const std::vector<int64_t> parts = part_of_tensors();
  const int64_t count = parts.empty() ? 1 : parts.back() + 1;
  if (count == 1) return {path};
  std::vector<std::string> paths;
  for (int64_t i = 0; i < count; ++i) paths.push_back(gguf_part_path(path, i, count));
  return paths;
}

uint64_t GgufPlan::file_bytes() const {
  const std::vector<int64_t> parts = part_of_tensors();
  const int64_t count = parts.empty() ? 1 : parts.back() + 1;
  uint64_t total = 0;
  for (int64_t part = 0; part < count; ++part) {
    std::vector<GgufTensorSource> sources;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (parts[i] == part) {
        sources.push_back({tensors_[i].name, tensors_[i].shape, tensors_[i].format, {}});
      }
    }
    total +=
        gguf_file_bytes("", metadata_of_part(metadata_, part, count, tensors_.size()), sources);
  }
  return total;
}

WrittenGguf GgufPlan::write(const std::string& path, const Progress& progress) {
  std::vector<WrittenGguf> files = write_parts(path, progress);
  ASSAY_CHECK(files.size() == 1);
  return files.front();
}

std::vector<WrittenGguf> GgufPlan::write_parts(const std::string& path, const Progress& progress) {
  if (!missing_importance_.empty()) {
    throw UsageError(listed(
        fmt::format("{} tensors need an importance matrix; give one with --imatrix that knows "
                    "them, or choose a type with more bits:",
                    missing_importance_.size()),
        missing_importance_));
  }
  const std::vector<int64_t> parts = part_of_tensors();
  const std::vector<std::string> names = paths(path);
  const auto count = static_cast<int64_t>(names.size());
  uint64_t done = 0;
  std::vector<WrittenGguf> files;
  for (int64_t part = 0; part < count; ++part) {
    std::vector<GgufTensorSource> sources;
    std::vector<size_t> indices;  // of the sources
    uint64_t part_bytes = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (parts[i] != part) continue;
      indices.push_back(i);
      part_bytes += tensors_[i].bytes;
      sources.push_back({tensors_[i].name, tensors_[i].shape, tensors_[i].format,
                         [&, i](const auto& sink) { write_tensor(i, sink); }, stored_rows(i)});
    }
    const auto tell = [&](size_t source, uint64_t in_part) {
      if (progress) progress(done + in_part, tensors_[indices[source]].name);
    };
    files.push_back(write_gguf(names[static_cast<size_t>(part)],
                               metadata_of_part(metadata_, part, count, tensors_.size()), sources,
                               tell));
    done += part_bytes;
  }
  return files;
}

}  // namespace assay
