#include "convert/gguf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/core/parallel.h"
#include "convert/core/units.h"
#include "convert/gguf_vocabulary.h"
#include "convert/repack.h"
#include "convert/row_writer.h"
#include "convert/tokenizer.h"

namespace assay {

namespace {

constexpr int64_t kRowsPerTask = 16;

/// `format`, or what stands in for it where it cannot hold rows of `columns`.
const WeightFormat& format_for_rows(const WeightFormat& format, int64_t columns) {
  const WeightFormat* fitting = &format;
  while (columns % fitting->block_columns() != 0) {
    fitting = find_format(fitting->fallback_name());
    ASSAY_CHECK(fitting != nullptr);
  }
  return *fitting;
}

bool is_scalar(const WeightFormat& format) { return format.fold() == Fold::kFloat; }

/// Whether every value of scalar format `from` is one of `to`.
bool holds_every_value(const WeightFormat& to, const WeightFormat& from) {
  return &to == &from || to.code_bits() == 32;
}

std::string source_type_of(const StoredTensor& stored) {
  if (!stored.act_order.empty()) return stored.act_order;
  std::string text(stored.format->name());
  if (stored.scale_dtype) text += fmt::format(" group {}", stored.group_size);
  return text;
}

/// Calls body(values, rounded) for every row of `matrix`, on any thread: its values, and what they
/// become in the scalar `format`.
void for_each_rounded_row(
    const CheckpointMatrix& matrix, const WeightFormat& format,
    const std::function<void(std::span<const float>, std::span<const float>)>& body) {
  const auto columns = static_cast<size_t>(matrix.view.columns);
  parallel_for(matrix.view.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    std::vector<float> values(columns);
    std::vector<float> rounded(columns);
    std::vector<std::byte> bytes(static_cast<size_t>(format.row_bytes(matrix.view.columns)));
    const WeightView row_view{
        .format = &format, .rows = 1, .columns = matrix.view.columns, .data = bytes};
    for (int64_t row = begin; row < end; ++row) {
      matrix.decode_row(row, values);
      format.encode_row(values, {}, bytes);
      format.decode_row(row_view, 0, rounded);
      body(values, rounded);
    }
  });
}

NarrowingCounts count_narrowing(const CheckpointMatrix& matrix, const WeightFormat& format) {
  const float smallest_normal = &format == &scalar_format(DType::kF16) ? 0x1p-14f : 0x1p-126f;
  NarrowingCounts total;
  std::mutex mutex;
  for_each_rounded_row(
      matrix, format, [&](std::span<const float> values, std::span<const float> rounded) {
        NarrowingCounts counts;
        for (size_t i = 0; i < values.size(); ++i) {
          const float magnitude = std::fabs(rounded[i]);
          counts.nan += std::isnan(values[i]) ? 1 : 0;
          counts.infinite += std::isinf(rounded[i]) ? 1 : 0;
          counts.zero += rounded[i] == 0.0f && values[i] != 0.0f ? 1 : 0;
          counts.subnormal +=
              magnitude > 0.0f && magnitude < smallest_normal && std::fabs(values[i]) >= 0x1p-126f
                  ? 1
                  : 0;
        }
        const std::lock_guard lock(mutex);
        total.infinite += counts.infinite;
        total.zero += counts.zero;
        total.subnormal += counts.subnormal;
        total.nan += counts.nan;
      });
  return total;
}

/// How many values of `matrix` are not the same after rounding to the scalar `format`.
int64_t count_changed(const CheckpointMatrix& matrix, const WeightFormat& format) {
  std::atomic<int64_t> changed = 0;
  for_each_rounded_row(matrix, format,
                       [&](std::span<const float> values, std::span<const float> rounded) {
                         int64_t n = 0;
                         for (size_t i = 0; i < values.size(); ++i) {
                           n += same_value(values[i], rounded[i]) ? 0 : 1;
                         }
                         changed += n;
                       });
  return changed;
}

/// "llama-tiny" → "Llama Tiny": words with a capital where they had none and are no version.
std::string title_of(const std::string& folder) {
  std::filesystem::path path = std::filesystem::weakly_canonical(folder);
  std::string name = path.filename().string();
  std::replace(name.begin(), name.end(), '-', ' ');
  bool at_start = true;
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (at_start) {
      const size_t end = std::min(name.find(' ', i), name.size());
      const bool has_capital =
          std::any_of(name.begin() + static_cast<std::ptrdiff_t>(i),
                      name.begin() + static_cast<std::ptrdiff_t>(end),
                      [](unsigned char letter) { return std::isupper(letter) != 0; });
      const bool version =
          c == 'v' && i + 1 < end && std::isdigit(static_cast<unsigned char>(name[i + 1]));
      out += has_capital || version
                 ? c
                 : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
    at_start = c == ' ';
  }
  return out;
}

/// "4.5M": parameters with at least two digits.
std::string size_label(int64_t n_parameters) {
  const double n = static_cast<double>(n_parameters);
  const auto [scale, suffix] = n > 1e12  ? std::pair(1e12, 'T')
                               : n > 1e9 ? std::pair(1e9, 'B')
                               : n > 1e6 ? std::pair(1e6, 'M')
                                         : std::pair(1e3, 'K');
  const double scaled = n / scale;
  const bool one_digit = std::nearbyint(scaled) < 10.0;
  return fmt::format("{:.{}f}{}", scaled, one_digit ? 1 : 0, suffix);
}

}  // namespace

// ---------------------------------------------------------------------------------------------
// Plan

GgufExport::GgufExport(std::shared_ptr<const Checkpoint> checkpoint,
                       const GgufExportOptions& options)
    : checkpoint_(std::move(checkpoint)), options_(options) {
  if (checkpoint_->kind() == CheckpointKind::kGguf) {
    throw UsageError(checkpoint_->path() + ": is a GGUF file already; give the model folder");
  }
  for (const WeightFormat* type : {options_.type, options_.other_type}) {
    if (type != nullptr && !type->gguf_type()) {
      throw UsageError("GGUF has no type for " + std::string(type->name()));
    }
  }
  warnings_ = checkpoint_->warnings();
  split_.max_bytes = options_.split_max_bytes;
  plan_tensors();
  if (options_.mix.mix != nullptr) {
    plan_mix();
  } else {
    plan_metadata();
  }
  count_bytes();
  refuse_losses();
  const std::string warning = checkpoint_->family().gguf_warning(checkpoint_->spec());
  if (!warning.empty()) warnings_.push_back(warning);
}

void GgufExport::plan_tensors() {
  const Checkpoint& checkpoint = *checkpoint_;
  extras_ = checkpoint.family().gguf_extra_tensors(checkpoint.spec());
  for (const GgufExtraTensor& extra : extras_) {
    ExportTensor tensor;
    tensor.name = extra.name;
    tensor.shape = {static_cast<int64_t>(extra.values.size())};
    tensor.source_type = "F32";
    tensor.format = &scalar_format(DType::kF32);
    tensor.method = ExportMethod::kCompute;
    tensors_.push_back(std::move(tensor));
    entries_.push_back(nullptr);
    extra_of_.push_back(&extra);
  }
  // A plain folder keeps the order of its files; the table's order serves all others.
  std::vector<const TensorEntry*> entries;
  for (const TensorEntry& entry : checkpoint.tensors()) entries.push_back(&entry);
  if (checkpoint.kind() == CheckpointKind::kHuggingFace) {
    std::map<std::string_view, size_t> position;
    for (const SafetensorsFile& shard : checkpoint.safetensors()->shards()) {
      for (const SafetensorsEntry& entry : shard.tensors()) {
        position.emplace(entry.name, position.size());
      }
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [&](const TensorEntry* a, const TensorEntry* b) {
                       return position.at(a->hf_name) < position.at(b->hf_name);
                     });
  }
  for (const TensorEntry* entry : entries) {
    const StoredTensor& stored = checkpoint.stored(entry->role, entry->layer);
    ExportTensor tensor;
    tensor.name = entry->gguf_name;
    tensor.source_name = entry->hf_name;
    tensor.shape = gguf_shape(*entry);
    tensor.source_type = source_type_of(stored);
    if (!stored.act_order.empty()) {
      plan_act_order(*entry, tensor);
    } else if (stored.scale_dtype) {
      plan_linear(*entry, tensor);
    } else if (!entry->is_matrix()) {
      plan_plain(*entry, &scalar_format(DType::kF32), tensor);
    } else {
      const bool quantized_model = checkpoint.kind() != CheckpointKind::kHuggingFace;
      plan_plain(*entry, quantized_model ? options_.other_type : options_.type, tensor);
    }
    tensors_.push_back(std::move(tensor));
    entries_.push_back(entry);
    extra_of_.push_back(nullptr);
  }
}

/// Types by the rules of a mix. What they leave alone stays as plan_tensors planned it: in the type
/// of the folder.
void GgufExport::plan_mix() {
  std::vector<size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return quantized_order(tensors_[a].name, tensors_[b].name);
  });
  const auto sort = [&order](auto& list) {
    std::remove_reference_t<decltype(list)> sorted;
    for (const size_t i : order) sorted.push_back(std::move(list[i]));
    list = std::move(sorted);
  };
  sort(tensors_);
  sort(entries_);
  sort(extra_of_);
  plan_metadata();
  std::vector<const WeightFormat*> stored;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorEntry* entry = entries_[i];
    const bool as_stored = entry != nullptr && entry->is_matrix();
    stored.push_back(as_stored ? checkpoint_->stored(entry->role, entry->layer).format
                               : tensors_[i].format);
  }
  apply_mix(options_.mix, stored, options_.importance);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    ExportTensor& tensor = tensors_[i];
    const TensorEntry* entry = entries_[i];
    const bool act_order =
        entry != nullptr && !checkpoint_->stored(entry->role, entry->layer).act_order.empty();
    if (act_order && tensor.method == ExportMethod::kQuantize) {
      tensor.method = ExportMethod::kRequantize;
    }
    if (tensor.method == ExportMethod::kRound) {
      tensor.narrowing =
          count_narrowing(checkpoint_->matrix(entry->role, entry->layer), *tensor.format);
    } else if (tensor.method == ExportMethod::kRequantize) {
      losses_.push_back(fmt::format("{} ({}) as {}", in_quotes(tensor.source_name),
                                    tensor.source_type, tensor.format->name()));
    }
  }
}

void GgufExport::plan_plain(const TensorEntry& entry, const WeightFormat* wanted,
                            ExportTensor& tensor) {
  const WeightFormat& source = *checkpoint_->stored(entry.role, entry.layer).format;
  if (wanted == nullptr) wanted = &source;
  tensor.format = &format_for_rows(*wanted, entry.shape.back());
  if (tensor.format != wanted) {
    tensor.note = fmt::format("rows of {} columns do not hold blocks of {}", entry.shape.back(),
                              wanted->name());
  }
  if (!is_scalar(*tensor.format)) {
    tensor.method = ExportMethod::kQuantize;
  } else if (tensor.format == &source) {
    tensor.method = ExportMethod::kCopy;
  } else if (holds_every_value(*tensor.format, source)) {
    tensor.method = ExportMethod::kWiden;
  } else {
    tensor.method = ExportMethod::kRound;
    tensor.narrowing =
        count_narrowing(checkpoint_->matrix(entry.role, entry.layer), *tensor.format);
  }
}

void GgufExport::plan_linear(const TensorEntry& entry, ExportTensor& tensor) {
  const CheckpointMatrix matrix = checkpoint_->matrix(entry.role, entry.layer);
  const WeightFormat* wanted = options_.type;
  if (wanted == nullptr) {
    const std::vector<const WeightFormat*> exact = exact_repack_formats(matrix);
    if (!exact.empty()) {
      tensor.format = exact.front();
      tensor.method = ExportMethod::kMoveCodes;
      return;
    }
    wanted = smallest_format_for_codes(matrix);
    if (wanted == nullptr) wanted = &scalar_format(DType::kF32);
  }
  const RepackCheck check = check_repack(matrix, *wanted);
  tensor.format = &format_for_rows(*wanted, entry.shape.back());
  if (wanted->can_repack() && check.exact()) {
    tensor.method = ExportMethod::kMoveCodes;
    return;
  }
  if (is_scalar(*wanted)) {
    const int64_t changed = count_changed(matrix, *wanted);
    if (changed == 0) {
      tensor.method = ExportMethod::kWiden;
      return;
    }
    tensor.note = fmt::format("{} of {} values are no {} values", changed, n_elements(entry.shape),
                              wanted->name());
  } else {
    tensor.note = check.first;
    if (check.n_rounded + check.n_impossible > 1 && check.n_groups > 1 && wanted->can_repack()) {
      tensor.note += fmt::format(" ({} of {} groups in all)", check.n_rounded + check.n_impossible,
                                 check.n_groups);
    }
  }
  tensor.method = wanted->can_repack() && check.n_impossible == 0 ? ExportMethod::kRoundScales
                                                                  : ExportMethod::kRequantize;
  std::string alternatives;
  for (const WeightFormat* format : exact_repack_formats(matrix)) {
    alternatives += fmt::format("{}{}", alternatives.empty() ? "" : ", ", format->name());
  }
  losses_.push_back(fmt::format("\"{}\" ({}) in {}: {}; exact: {}", entry.hf_name,
                                tensor.source_type, wanted->name(), tensor.note,
                                alternatives.empty() ? "F32" : alternatives + ", F32"));
}

/// No block of GGUF has columns of several groups: the values themselves go into the file.
void GgufExport::plan_act_order(const TensorEntry& entry, ExportTensor& tensor) {
  const CheckpointMatrix matrix = checkpoint_->matrix(entry.role, entry.layer);
  const WeightFormat* wanted = options_.type;
  if (wanted == nullptr) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      wanted = &scalar_format(dtype);
      if (count_changed(matrix, *wanted) == 0) break;
    }
  }
  tensor.format = &format_for_rows(*wanted, entry.shape.back());
  const int64_t changed = is_scalar(*wanted) ? count_changed(matrix, *wanted) : 1;
  if (changed == 0) {
    tensor.method = ExportMethod::kWiden;
    return;
  }
  tensor.method = ExportMethod::kRequantize;
  tensor.note = "groups in activation order do not fit the blocks of GGUF";
  losses_.push_back(fmt::format("\"{}\" ({}) in {}: {}; exact: F32", entry.hf_name,
                                tensor.source_type, wanted->name(), tensor.note));
}

void GgufExport::refuse_losses() const {
  if (!losses_.empty() && !options_.allow_requantize) {
    throw FormatError(
        listed(fmt::format("{}: the values of {} quantized linears would change; choose an exact "
                           "--type, or allow it with --allow-requantize:",
                           checkpoint_->path(), losses_.size()),
               losses_));
  }
  std::vector<std::string> infinite;
  for (const ExportTensor& tensor : tensors_) {
    if (tensor.narrowing.infinite == 0 && tensor.narrowing.nan == 0) continue;
    infinite.push_back(
        fmt::format("\"{}\" in {}: {} become infinite, {} zero, {} subnormal; {} are NaN",
                    tensor.source_name, tensor.format->name(), tensor.narrowing.infinite,
                    tensor.narrowing.zero, tensor.narrowing.subnormal, tensor.narrowing.nan));
  }
  if (!infinite.empty() && !options_.allow_infinite) {
    throw NumericError(listed(
        fmt::format("{}: values of {} tensors do not fit; choose --type BF16 or F32, or allow it "
                    "with --allow-infinite:",
                    checkpoint_->path(), infinite.size()),
        infinite));
  }
}

/// The mix's, or the one of most values in the layers.
uint32_t GgufExport::file_type() const {
  if (options_.mix.mix != nullptr) return options_.mix.mix->file_type;
  std::map<uint32_t, int64_t> values_of_type;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorEntry* entry = entries_[i];
    if (entry == nullptr || entry->layer < 0 || entry->shape.size() != 2) continue;
    values_of_type[tensors_[i].format->gguf_file_type().value_or(0)] += n_elements(entry->shape);
  }
  const auto most =
      std::max_element(values_of_type.begin(), values_of_type.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most->first;
}

void GgufExport::plan_metadata() {
  const Checkpoint& checkpoint = *checkpoint_;
  int64_t n_parameters = 0;
  for (const ExportTensor& tensor : tensors_) n_parameters += n_elements(tensor.shape);
  metadata_.set("general.architecture", std::string(checkpoint.family().gguf_architecture));
  metadata_.set("general.type", std::string("model"));
  metadata_.set("general.name", options_.name.value_or(title_of(checkpoint.path())));
  metadata_.set("general.size_label", size_label(n_parameters));
  checkpoint.family().write_gguf_metadata(checkpoint.spec(), checkpoint.config(), file_type(),
                                          metadata_);
  metadata_.set("general.quantization_version", uint32_t{2});
  write_vocabulary_gguf(Tokenizer::from_folder(checkpoint.path()), checkpoint.path(),
                        checkpoint.spec(), options_.pre, metadata_);
}

// ---------------------------------------------------------------------------------------------
// Write

void GgufExport::write_tensor(size_t index,
                              const std::function<void(std::span<const std::byte>)>& sink) {
  ExportTensor& tensor = tensors_[index];
  const TensorEntry* entry = entries_[index];
  if (entry == nullptr) {
    sink(std::as_bytes(std::span(extra_of_[index]->values)));
    return;
  }
  if (!entry->is_matrix()) {
    std::vector<float> values = checkpoint_->vector(entry->role, entry->layer);
    const std::vector<int64_t> rows = huggingface_rows_of_gguf(*entry);
    std::vector<float> ordered = values;
    for (size_t i = 0; i < rows.size(); ++i) ordered[i] = values[static_cast<size_t>(rows[i])];
    sink(std::as_bytes(std::span(ordered)));
    return;
  }
  const CheckpointMatrix matrix = checkpoint_->matrix(entry->role, entry->layer);
  const std::vector<int64_t> order = huggingface_rows_of_gguf(*entry);
  const auto source_row = [&](int64_t row) {
    return order.empty() ? row : order[static_cast<size_t>(row)];
  };
  const uint64_t row_bytes = tensor.format->row_bytes(matrix.view.columns);
  RowWriter writer(
      tensor,
      {.rows = matrix.view.rows,
       .columns = matrix.view.columns,
       .group_size = matrix.view.group_size,
       .bytes =
           [&](int64_t row) {
             const auto at = static_cast<size_t>(matrix.source_row(source_row(row)));
             return matrix.view.data.subspan(at * row_bytes, row_bytes);
           },
       .values = [&](int64_t row,
                     std::span<float> out) { matrix.decode_row(source_row(row), out); },
       .integers = [&](int64_t row,
                       IntegerRow& out) { matrix.read_integers(source_row(row), out); },
       .importance = [&](int64_t) { return importance_of(index, 0); }},
      options_.allow_infinite);
  writer.run(sink);
  tensor.n_changed = writer.n_changed();
}

}  // namespace assay
