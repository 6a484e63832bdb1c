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
#include "convert/core/words.h"
#include "convert/gguf_vocabulary.h"
#include "convert/norm_check.h"
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

void count_narrowing(const CheckpointMatrix& matrix, const WeightFormat& format,
                     NarrowingCounts& total) {
  const float smallest_normal = &format == &scalar_format(DType::kF16) ? 0x1p-14f : 0x1p-126f;
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
  if (std::string warning = folded_norms_warning(*checkpoint_); !warning.empty()) {
    warnings_.push_back(std::move(warning));
  }
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
    parts_.emplace_back();
    extra_of_.push_back(&extra);
  }
  for (Parts& parts : parts_in_file_order()) {
    const TensorEntry& entry = *parts.front();
    ExportTensor tensor;
    tensor.name = entry.gguf_name;
    tensor.source_name = checkpoint.stored(entry).scale_dtype || entry.expert < 0
                             ? entry.hf_name
                             : checkpoint.stored(entry).parts.front();
    tensor.shape = gguf_shape(entry);
    tensor.source_type = source_type_of(checkpoint.stored(entry));
    plan_parts(parts, tensor);
    tensors_.push_back(std::move(tensor));
    parts_.push_back(std::move(parts));
    extra_of_.push_back(nullptr);
  }
}

/// A plain folder keeps the order of its files; the table's order serves all others. Stacked
/// entries stand where the first of them does.
std::vector<GgufExport::Parts> GgufExport::parts_in_file_order() const {
  const Checkpoint& checkpoint = *checkpoint_;
  Parts entries;
  for (const TensorEntry& entry : checkpoint.tensors()) entries.push_back(&entry);
  for (const TensorEntry& entry : checkpoint.prediction_tensors()) entries.push_back(&entry);
  if (checkpoint.kind() == CheckpointKind::kHuggingFace) {
    std::map<std::string_view, size_t> position;
    for (const SafetensorsFile& shard : checkpoint.safetensors()->shards()) {
      for (const SafetensorsEntry& entry : shard.tensors()) {
        position.emplace(entry.name, position.size());
      }
    }
    const auto place = [&](const TensorEntry* entry) {
      return position.at(checkpoint.stored(*entry).parts.front());
    };
    std::stable_sort(entries.begin(), entries.end(),
                     [&](const auto* a, const auto* b) { return place(a) < place(b); });
  }
  std::vector<Parts> out;
  std::map<std::string_view, size_t> stacks;  // name in GGUF → position in `out`
  for (const TensorEntry* entry : entries) {
    if (!entry->gguf_stack) {
      out.push_back({entry});
      continue;
    }
    const auto [found, is_new] = stacks.emplace(entry->gguf_name, out.size());
    if (is_new) out.emplace_back();
    out[found->second].push_back(entry);
  }
  for (Parts& parts : out) {
    if (parts.size() < 2) continue;
    std::sort(parts.begin(), parts.end(), [](const auto* a, const auto* b) {
      return a->gguf_stack->first_row < b->gguf_stack->first_row;
    });
  }
  return out;
}

void GgufExport::plan_parts(const Parts& parts, ExportTensor& tensor) {
  const TensorEntry& entry = *parts.front();
  const StoredTensor& stored = checkpoint_->stored(entry);
  for (const TensorEntry* part : parts) {
    const StoredTensor& other = checkpoint_->stored(*part);
    if (other.format == stored.format && other.group_size == stored.group_size) continue;
    throw UnsupportedError(fmt::format(
        "{}: GGUF holds \"{}\" and \"{}\" in one tensor, but one is stored as {}, the other as {}; "
        "keep the folder, or quantize all experts of a layer alike",
        checkpoint_->path(), entry.hf_name, part->hf_name, source_type_of(stored),
        source_type_of(other)));
  }
  if (!stored.act_order.empty()) {
    plan_act_order(parts, tensor);
  } else if (stored.scale_dtype) {
    plan_linear(parts, tensor);
  } else if (!entry.is_matrix() || entry.role == Role::kRouter) {
    plan_plain(parts, &scalar_format(DType::kF32), tensor);
  } else {
    const bool quantized_model = checkpoint_->kind() != CheckpointKind::kHuggingFace;
    plan_plain(parts, quantized_model ? options_.other_type : options_.type, tensor);
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
  sort(parts_);
  sort(extra_of_);
  plan_metadata();
  std::vector<const WeightFormat*> stored;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const bool as_stored = !parts_[i].empty() && parts_[i].front()->is_matrix() &&
                           parts_[i].front()->role != Role::kRouter;
    stored.push_back(as_stored ? checkpoint_->stored(*parts_[i].front()).format
                               : tensors_[i].format);
  }
  apply_mix(options_.mix, stored, options_.importance);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    ExportTensor& tensor = tensors_[i];
    const bool act_order =
        !parts_[i].empty() && !checkpoint_->stored(*parts_[i].front()).act_order.empty();
    if (act_order && tensor.method == ExportMethod::kQuantize) {
      tensor.method = ExportMethod::kRequantize;
    }
    if (tensor.method == ExportMethod::kRound) {
      tensor.narrowing = {};
      for (const TensorEntry* part : parts_[i]) {
        count_narrowing(checkpoint_->matrix(*part), *tensor.format, tensor.narrowing);
      }
    } else if (tensor.method == ExportMethod::kRequantize) {
      losses_.push_back(fmt::format("{} ({}) as {}", in_quotes(tensor.source_name),
                                    tensor.source_type, tensor.format->name()));
    }
  }
}

void GgufExport::plan_plain(const Parts& parts, const WeightFormat* wanted, ExportTensor& tensor) {
  const TensorEntry& entry = *parts.front();
  const WeightFormat& source = *checkpoint_->stored(entry).format;
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
    for (const TensorEntry* part : parts) {
      count_narrowing(checkpoint_->matrix(*part), *tensor.format, tensor.narrowing);
    }
  }
}

CheckpointMatrix GgufExport::matrix_of(const TensorEntry& entry) const {
  CheckpointMatrix matrix = checkpoint_->matrix(entry);
  matrix.column_order = gguf_columns_of_huggingface(entry);
  return matrix;
}

std::vector<CheckpointMatrix> GgufExport::matrices_of(const Parts& parts) const {
  std::vector<CheckpointMatrix> matrices;
  for (const TensorEntry* part : parts) matrices.push_back(matrix_of(*part));
  return matrices;
}

namespace {

/// What moving the codes of all of them would change.
RepackCheck check_repack(std::span<const CheckpointMatrix> matrices, const WeightFormat& target) {
  RepackCheck all;
  for (const CheckpointMatrix& matrix : matrices) {
    const RepackCheck check = check_repack(matrix, target);
    all.n_groups += check.n_groups;
    all.n_rounded += check.n_rounded;
    all.n_impossible += check.n_impossible;
    if (all.first.empty()) all.first = check.first;
  }
  return all;
}

std::vector<const WeightFormat*> exact_repack_formats(std::span<const CheckpointMatrix> matrices) {
  std::vector<const WeightFormat*> formats = exact_repack_formats(matrices.front());
  std::erase_if(formats, [&](const WeightFormat* format) {
    return !check_repack(matrices, *format).exact();
  });
  return formats;
}

/// The largest of what each of them needs; F32 if one fits into none.
const WeightFormat* smallest_format_for_codes(std::span<const CheckpointMatrix> matrices) {
  const WeightFormat* largest = nullptr;
  for (const CheckpointMatrix& matrix : matrices) {
    const WeightFormat* format = smallest_format_for_codes(matrix);
    if (format == nullptr) return &scalar_format(DType::kF32);
    if (largest == nullptr || bits_per_weight(*format, 0, {}) > bits_per_weight(*largest, 0, {})) {
      largest = format;
    }
  }
  return largest;
}

int64_t count_changed(std::span<const CheckpointMatrix> matrices, const WeightFormat& format) {
  int64_t changed = 0;
  for (const CheckpointMatrix& matrix : matrices) changed += count_changed(matrix, format);
  return changed;
}

}  // namespace

void GgufExport::plan_linear(const Parts& parts, ExportTensor& tensor) {
  const TensorEntry& entry = *parts.front();
  const std::vector<CheckpointMatrix> matrices = matrices_of(parts);
  const WeightFormat* wanted = options_.type;
  if (wanted == nullptr) {
    const std::vector<const WeightFormat*> exact = exact_repack_formats(matrices);
    if (!exact.empty()) {
      tensor.format = exact.front();
      tensor.method = ExportMethod::kMoveCodes;
      return;
    }
    wanted = smallest_format_for_codes(matrices);
  }
  const RepackCheck check = check_repack(matrices, *wanted);
  tensor.format = &format_for_rows(*wanted, entry.shape.back());
  if (wanted->can_repack() && check.exact()) {
    tensor.method = ExportMethod::kMoveCodes;
    return;
  }
  if (is_scalar(*wanted)) {
    const int64_t changed = count_changed(matrices, *wanted);
    if (changed == 0) {
      tensor.method = ExportMethod::kWiden;
      return;
    }
    tensor.note = fmt::format("{} of {} values are no {} values", changed, n_elements(tensor.shape),
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
  const std::string alternatives =
      join_words(exact_repack_formats(matrices), ", ",
                 [](const WeightFormat* format) { return format->name(); });
  losses_.push_back(fmt::format("\"{}\" ({}) in {}: {}; exact: {}", entry.hf_name,
                                tensor.source_type, wanted->name(), tensor.note,
                                alternatives.empty() ? "F32" : alternatives + ", F32"));
}

/// No block of GGUF has columns of several groups: the values themselves go into the file.
void GgufExport::plan_act_order(const Parts& parts, ExportTensor& tensor) {
  const TensorEntry& entry = *parts.front();
  const std::vector<CheckpointMatrix> matrices = matrices_of(parts);
  const WeightFormat* wanted = options_.type;
  if (wanted == nullptr) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      wanted = &scalar_format(dtype);
      if (count_changed(matrices, *wanted) == 0) break;
    }
  }
  tensor.format = &format_for_rows(*wanted, entry.shape.back());
  const int64_t changed = is_scalar(*wanted) ? count_changed(matrices, *wanted) : 1;
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
    const std::string message =
        listed(fmt::format("{}: the values of {} quantized linears would change; choose an exact "
                           "--type, or allow it with --allow-requantize:",
                           checkpoint_->path(), losses_.size()),
               losses_);
    // Nobody asked for a type that does not fit: GGUF has none.
    if (options_.type == nullptr && options_.mix.mix == nullptr) throw UnsupportedError(message);
    throw UsageError(message);
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
    if (parts_[i].empty()) continue;
    const TensorEntry& entry = *parts_[i].front();
    if (entry.layer < 0 || !entry.is_matrix()) continue;
    values_of_type[tensors_[i].format->gguf_file_type().value_or(0)] +=
        n_elements(tensors_[i].shape);
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
  const std::string warning =
      write_vocabulary_gguf(Tokenizer::from_folder(checkpoint.path()), checkpoint.path(),
                            checkpoint.spec(), options_.pre, metadata_);
  if (!warning.empty()) warnings_.push_back(warning);
}

// ---------------------------------------------------------------------------------------------
// Write

std::optional<StoredRows> GgufExport::stored_rows(size_t index) const {
  const ExportTensor& tensor = tensors_[index];
  if (parts_[index].empty() || tensor.method != ExportMethod::kCopy) return std::nullopt;
  struct Part {
    CheckpointMatrix matrix;
    std::vector<int64_t> order;  // of rows; empty: as they are
    int64_t end;                 // rows of the tensor up to and with this part
  };
  const auto parts = std::make_shared<std::vector<Part>>();
  int64_t n_rows = 0;
  for (const TensorEntry* entry : parts_[index]) {
    if (!entry->is_matrix()) return std::nullopt;
    CheckpointMatrix matrix = matrix_of(*entry);
    if (!matrix.column_order.empty() || matrix.storage != nullptr) return std::nullopt;
    n_rows += matrix.view.rows;
    parts->push_back({std::move(matrix), huggingface_rows_of_gguf(*entry), n_rows});
  }
  const int64_t columns = tensor.shape.back();
  const auto row_bytes = static_cast<size_t>(tensor.format->row_bytes(columns));
  const auto row_of = [parts, row_bytes](int64_t row) {
    const auto part = std::upper_bound(parts->begin(), parts->end(), row,
                                       [](int64_t at, const Part& one) { return at < one.end; });
    const CheckpointMatrix& matrix = part->matrix;
    const int64_t in_part = row - (part->end - matrix.view.rows);
    const int64_t in_folder =
        part->order.empty() ? in_part : part->order[static_cast<size_t>(in_part)];
    return matrix.view.data.subspan(static_cast<size_t>(matrix.source_row(in_folder)) * row_bytes,
                                    row_bytes);
  };
  StoredRows rows{n_rows, row_of};
  if (!options_.allow_infinite) {
    rows.check = [&tensor, columns, row_of](int64_t row) {
      check_row(tensor, columns, row, row_of(row));
    };
  }
  rows.release = [parts] {
    for (const Part& part : *parts) release_pages(part.matrix.view.data);
  };
  return rows;
}

void GgufExport::write_tensor(size_t index,
                              const std::function<void(std::span<const std::byte>)>& sink) {
  if (parts_[index].empty()) {
    sink(std::as_bytes(std::span(extra_of_[index]->values)));
    return;
  }
  const TensorEntry& entry = *parts_[index].front();
  if (!entry.is_matrix()) {
    std::vector<float> values = checkpoint_->vector(entry.role, entry.layer);
    const std::vector<int64_t> rows = huggingface_rows_of_gguf(entry);
    std::vector<float> ordered = values;
    const size_t width = rows.empty() ? 0 : values.size() / rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(values.data() + static_cast<size_t>(rows[i]) * width, width,
                  ordered.data() + i * width);
    }
    sink(std::as_bytes(std::span(ordered)));
    return;
  }
  tensors_[index].n_changed = 0;
  for (const TensorEntry* part : parts_[index]) {
    write_matrix(index, *part, sink);
    checkpoint_->safetensors()->release_pages();
  }
}

void GgufExport::write_matrix(size_t index, const TensorEntry& entry,
                              const std::function<void(std::span<const std::byte>)>& sink) {
  ExportTensor& tensor = tensors_[index];
  const CheckpointMatrix matrix = matrix_of(entry);
  const std::vector<int64_t> order = huggingface_rows_of_gguf(entry);
  const auto source_row = [&](int64_t row) {
    return order.empty() ? row : order[static_cast<size_t>(row)];
  };
  // gate and up of one expert may be two parts with one importance.
  const int64_t importance_part = std::max(0, entry.expert);
  ExportTensor how = tensor;
  // A copy that comes here has moved columns: it goes through its values, which is as exact.
  if (how.method == ExportMethod::kCopy) how.method = ExportMethod::kWiden;
  RowWriter writer(
      how,
      {.rows = matrix.view.rows,
       .columns = matrix.view.columns,
       .group_size = matrix.group_size(),
       .values = [&](int64_t row,
                     std::span<float> out) { matrix.decode_row(source_row(row), out); },
       .integers = [&](int64_t row,
                       IntegerRow& out) { matrix.read_integers(source_row(row), out); },
       .importance = [&](int64_t) { return importance_of(index, importance_part); }},
      options_.allow_infinite);
  writer.run(sink);
  tensor.n_changed += writer.n_changed();
}

}  // namespace assay
