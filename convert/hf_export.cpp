#include "convert/hf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "convert/companions.h"
#include "convert/core/error.h"
#include "convert/core/math64.h"
#include "convert/core/parallel.h"
#include "convert/core/version.h"
#include "convert/families/config_writer.h"
#include "convert/hf_config.h"
#include "convert/hf_tokenizer.h"
#include "convert/model_card.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRowsPerPiece = 256;
constexpr int64_t kMostBaseModels = 64;
constexpr float kLargestInverse = 1e30f;  // beyond lie no weights, and NaN

std::string source_type_of(const StoredTensor& stored) {
  if (!stored.act_order.empty()) return stored.act_order;
  std::string text(stored.format->name());
  if (stored.scale_dtype) text += fmt::format(" group {}", stored.group_size);
  return text;
}

float rounded(float value, DType dtype) {
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(value));
  if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(value));
  return value;
}

/// Numbers of the same type near `value`, nearest first.
std::vector<float> neighbours(double value, DType dtype) {
  const float nearest = rounded(static_cast<float>(value), dtype);
  std::vector<float> all = {nearest};
  uint32_t bits = 0;
  std::memcpy(&bits, &nearest, sizeof(bits));
  const uint32_t step = dtype == DType::kBF16 ? 1u << 16 : 1u;
  for (const uint32_t moved : {bits + step, bits - step, bits + 2 * step, bits - 2 * step}) {
    float other = 0;
    std::memcpy(&other, &moved, sizeof(other));
    if (std::fabs(other) < kLargestInverse) all.push_back(other);
  }
  return all;
}

float transformed(GgufTransform transform, float value) {
  apply_transform(transform, std::span(&value, 1));
  return value;
}

/// The text of config.json without its quantization, for values of `dtype`.
std::string plain_config(const Json& config, std::optional<DType> dtype) {
  Json plain = Json::object();
  for (const auto& [key, value] : config.as_object()) {
    if (key == "quantization_config") continue;
    const bool is_type = key == "dtype" || key == "torch_dtype";
    if (is_type && dtype) {
      plain.set(key, config_dtype_name(*dtype));
    } else {
      plain.set(key, value);
    }
  }
  return plain.dump(2) + "\n";
}

/// Licence and origin as the keys of a GGUF file say them.
Json card_fields_of_gguf(const GgufMetadata& metadata) {
  constexpr std::string_view kHub = "https://huggingface.co/";
  Json fields = Json::object(), models = Json::array();
  const int64_t n_models = metadata.integer("general.base_model.count").value_or(0);
  for (int64_t i = 0; i < std::min<int64_t>(n_models, kMostBaseModels); ++i) {
    const auto url = metadata.string(fmt::format("general.base_model.{}.repo_url", i));
    if (url && url->starts_with(kHub)) models.push(url->substr(kHub.size()));
  }
  if (!models.as_array().empty()) fields.set("base_model", std::move(models));
  for (const auto& [name, key] :
       {std::pair{"license", "general.license"}, std::pair{"license_name", "general.license.name"},
        std::pair{"license_link", "general.license.link"}}) {
    if (const auto text = metadata.string(key)) fields.set(name, *text);
  }
  return fields;
}

/// How many tensors became what.
std::string type_rows(const std::vector<HfTensor>& tensors) {
  std::map<std::pair<std::string, std::string>, int64_t> counts;
  for (const HfTensor& tensor : tensors) {
    ++counts[{tensor.source_type, std::string(dtype_name(tensor.dtype))}];
  }
  std::string rows;
  for (const auto& [types, n] : counts) {
    rows += fmt::format("| {} | {} | {} |\n", types.first, types.second, n);
  }
  return rows;
}

/// The card of numbers that were something else before.
std::string plain_card(const Checkpoint& checkpoint, const std::vector<HfTensor>& tensors,
                       const HfExportOptions& options, std::vector<std::string>& warnings) {
  Json head = Json::object();
  if (checkpoint.left_out().empty()) head.set("pipeline_tag", "text-generation");
  Json found;
  if (checkpoint.kind() == CheckpointKind::kGguf) {
    found = card_fields_of_gguf(checkpoint.gguf()->metadata());
  } else {
    CardSource source = read_card_source(checkpoint.path());
    if (!source.fault.empty()) warnings.push_back(source.fault);
    found = std::move(source.fields);
  }
  for (const auto& [name, value] : found.as_object()) head.set(name, value);
  for (const auto& [name, value] : options.card.as_object()) head.set(name, value);
  head.set("library_name", "transformers");
  const std::string body = fmt::format(
      "# Plain weights\n\n"
      "The weights of a {} model as the numbers that they mean, written by Assay {} with\n"
      "`assay convert MODEL --to hf --type {} --out FOLDER`. Where the weights were quantized, "
      "what "
      "that changed is still in them.\n\n"
      "| from | to | tensors |\n|---|---|---|\n{}",
      checkpoint.format().name, version(), dtype_name(options.dtype), type_rows(tensors));
  return model_card_text(head, body);
}

void write_bytes(std::span<const float> values, DType dtype, std::vector<std::byte>& out) {
  const WeightFormat& format = scalar_format(dtype);
  out.resize(static_cast<size_t>(format.row_bytes(static_cast<int64_t>(values.size()))));
  format.encode_row(values, {}, out);
}

/// The rows of a matrix as numbers of `dtype`; adds up how many values that changes.
void write_rows(const CheckpointMatrix& matrix, DType dtype,
                const std::function<void(std::span<const std::byte>)>& sink,
                std::atomic<int64_t>& n_changed, std::atomic<int64_t>& n_infinite) {
  const auto columns = static_cast<size_t>(matrix.view.columns);
  const WeightFormat& format = scalar_format(dtype);
  const auto row_bytes = static_cast<size_t>(format.row_bytes(matrix.view.columns));
  std::vector<std::byte> piece;
  for (int64_t first = 0; first < matrix.view.rows; first += kRowsPerPiece) {
    const int64_t n_rows = std::min(kRowsPerPiece, matrix.view.rows - first);
    piece.resize(static_cast<size_t>(n_rows) * row_bytes);
    parallel_for(n_rows, 8, [&](int64_t begin, int64_t end) {
      std::vector<float> values(columns);
      int64_t changed = 0, infinite = 0;
      for (int64_t row = begin; row < end; ++row) {
        matrix.decode_row(first + row, values);
        for (const float value : values) {
          const float kept = rounded(value, dtype);
          changed += kept == value ? 0 : 1;
          infinite += std::isfinite(kept) ? 0 : 1;
        }
        format.encode_row(
            values, {}, std::span(piece).subspan(static_cast<size_t>(row) * row_bytes, row_bytes));
      }
      n_changed += changed;
      n_infinite += infinite;
    });
    sink(piece);
  }
}

}  // namespace

std::vector<float> invert_transform(GgufTransform transform, std::span<const float> values,
                                    DType dtype, int64_t& n_inexact) {
  std::vector<float> result(values.begin(), values.end());
  if (transform == GgufTransform::kNone || transform == GgufTransform::kInterleaveRope) {
    return result;
  }
  for (float& value : result) {
    const double inverse = transform == GgufTransform::kAddOne
                               ? static_cast<double>(value) - 1.0
                               : (value < 0.0f ? log64(-static_cast<double>(value)) : 0.0);
    std::vector<float> candidates = neighbours(inverse, dtype);
    for (const float other : neighbours(inverse, DType::kF32)) candidates.push_back(other);
    const auto exact = std::find_if(candidates.begin(), candidates.end(), [&](float candidate) {
      return transformed(transform, candidate) == value;
    });
    if (exact == candidates.end()) ++n_inexact;
    value = exact == candidates.end() ? static_cast<float>(inverse) : *exact;
  }
  return result;
}

HfExport::HfExport(std::shared_ptr<const Checkpoint> checkpoint, const HfExportOptions& options)
    : checkpoint_(std::move(checkpoint)), options_(options) {
  warnings_ = checkpoint_->warnings();
  if (checkpoint_->kind() == CheckpointKind::kGguf) {
    plan_gguf();
  } else {
    plan_folder();
  }
  plan_companions();
}

void HfExport::add_copy(const SafetensorsEntry& entry) {
  const TensorView& view = entry.view;
  tensors_.push_back({.name = entry.name,
                      .shape = view.shape,
                      .dtype = view.dtype,
                      .source_type = std::string(dtype_name(view.dtype)),
                      .copied = true,
                      .n_values = n_elements(view.shape)});
  sources_.push_back({.copy = &entry});
}

/// Matrices that models of this class keep in one tensor become parts of it.
void HfExport::add_matrix(const TensorEntry& entry) {
  const bool stacked = entry.stacked_in_folder;
  if (stacked) {
    const auto [found, is_new] = stacks_.emplace(entry.hf_stack->name, tensors_.size());
    if (!is_new) return sources_[found->second].matrices.push_back(&entry);
  }
  const Shape& shape = stacked ? entry.hf_stack->shape : entry.shape;
  tensors_.push_back({.name = stacked ? entry.hf_stack->name : entry.hf_name,
                      .shape = shape,
                      .dtype = options_.dtype,
                      .source_type = source_type_of(checkpoint_->stored(entry)),
                      .n_values = n_elements(shape)});
  sources_.push_back({.matrices = {&entry}});
}

void HfExport::order_stacks() {
  for (const auto& [name, position] : stacks_) {
    std::ranges::sort(sources_[position].matrices, {},
                      [](const TensorEntry* entry) { return entry->hf_stack->first_row; });
  }
}

void HfExport::add_vector(const TensorEntry& entry) {
  HfTensor tensor{.name = entry.hf_name,
                  .shape = entry.shape,
                  .dtype = options_.dtype,
                  .source_type = source_type_of(checkpoint_->stored(entry)),
                  .n_values = n_elements(entry.shape)};
  std::vector<float> values =
      invert_transform(entry.gguf_transform, checkpoint_->vector(entry.role, entry.layer),
                       tensor.dtype, tensor.n_changed);
  const bool fits = std::all_of(values.begin(), values.end(),
                                [&](float value) { return rounded(value, tensor.dtype) == value; });
  if (!fits) tensor.dtype = DType::kF32;
  tensors_.push_back(std::move(tensor));
  sources_.push_back({.values = std::move(values)});
}

/// Everything in the files that is not part of a quantized linear, or of a stack with one, stays as
/// it is.
void HfExport::plan_folder() {
  const auto is_quantized = [&](const TensorEntry& entry) {
    const StoredTensor& stored = checkpoint_->stored(entry);
    return stored.scale_dtype || !stored.act_order.empty();
  };
  std::set<std::string, std::less<>> changed_stacks, parts;
  for (const TensorEntry& entry : checkpoint_->tensors()) {
    if (entry.stacked_in_folder && is_quantized(entry)) changed_stacks.insert(entry.hf_stack->name);
  }
  for (const TensorEntry& entry : checkpoint_->tensors()) {
    const bool in_stack = entry.stacked_in_folder && changed_stacks.contains(entry.hf_stack->name);
    if (!in_stack && !is_quantized(entry)) continue;
    const std::string module = entry.module_name() + ".";
    for (const std::string& name : checkpoint_->safetensors()->names()) {
      if (name.starts_with(module) && name != module + "bias") parts.insert(name);
    }
    add_matrix(entry);
  }
  order_stacks();
  for (const SafetensorsFile& shard : checkpoint_->safetensors()->shards()) {
    for (const SafetensorsEntry& entry : shard.tensors()) {
      if (!parts.contains(entry.name)) add_copy(entry);
    }
  }
}

void HfExport::plan_gguf() {
  for (const auto* table : {&checkpoint_->tensors(), &checkpoint_->prediction_tensors()}) {
    for (const TensorEntry& entry : *table) {
      if (entry.is_matrix()) {
        add_matrix(entry);
      } else {
        add_vector(entry);
      }
    }
  }
  order_stacks();
}

void HfExport::plan_companions() {
  if (checkpoint_->kind() != CheckpointKind::kGguf) {
    const bool plain = checkpoint_->kind() == CheckpointKind::kHuggingFace;
    texts_.emplace_back("config.json", plain ? read_text_file(checkpoint_->path() + "/config.json")
                                             : plain_config(checkpoint_->config(), options_.dtype));
    copies_ = companion_files(checkpoint_->path());
    // The same numbers, the same card.
    const std::string card(kModelCardName);
    if (plain && file_exists(checkpoint_->path() + "/" + card)) copies_.push_back(card);
  } else {
    texts_.emplace_back("config.json", config_of_gguf(*checkpoint_, options_.dtype).dump(2) + "\n");
    texts_.emplace_back("generation_config.json",
                        generation_config_of_gguf(*checkpoint_).dump(2) + "\n");
    try {
      for (auto& file :
           tokenizer_files_of_gguf(checkpoint_->gguf()->metadata(), checkpoint_->path())) {
        texts_.push_back(std::move(file));
      }
    } catch (const UnsupportedError& error) {
      warnings_.push_back(fmt::format("the folder gets no tokenizer: {}", error.what()));
    } catch (const FormatError& error) {
      warnings_.push_back(fmt::format("the folder gets no tokenizer: {}", error.what()));
    }
  }
  if (checkpoint_->kind() != CheckpointKind::kHuggingFace) {
    texts_.emplace_back(kModelCardName, plain_card(*checkpoint_, tensors_, options_, warnings_));
  } else if (!options_.card.as_object().empty()) {
    throw UsageError(
        "--card: nothing is made of a folder of plain weights; its card stays as it is");
  }
  for (const auto& [name, text] : texts_) companions_.push_back(name);
  companions_.insert(companions_.end(), copies_.begin(), copies_.end());
}

uint64_t HfExport::weight_bytes() const {
  uint64_t bytes = 0;
  for (const HfTensor& tensor : tensors_) {
    bytes += static_cast<uint64_t>(tensor.n_values) * dtype_bytes(tensor.dtype);
  }
  return bytes;
}

void HfExport::write_matrix(size_t index, const Sink& sink) {
  HfTensor& tensor = tensors_[index];
  std::atomic<int64_t> n_changed = 0, n_infinite = 0;
  for (const TensorEntry* entry : sources_[index].matrices) {
    write_rows(checkpoint_->matrix(*entry), tensor.dtype, sink, n_changed, n_infinite);
  }
  tensor.n_changed = n_changed;
  if (n_infinite > 0 && !options_.allow_infinite) {
    throw NumericError(
        fmt::format("{}: \"{}\": {} values are NaN or become infinite in {}; choose --type BF16 or "
                    "F32, or allow "
                    "it with --allow-infinite",
                    checkpoint_->path(), tensor.name, n_infinite.load(), dtype_name(tensor.dtype)));
  }
}

std::vector<WrittenFile> HfExport::write(
    const std::string& folder, const std::function<void(uint64_t, const std::string&)>& progress) {
  std::vector<TensorSource> sources;
  uint64_t done = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto write_tensor = [this, i, &done, &progress](const Sink& write) {
      const HfTensor& tensor = tensors_[i];
      const Source& source = sources_[i];
      uint64_t in_tensor = 0;
      const auto sink = [&](std::span<const std::byte> piece) {
        if (progress) progress(done + in_tensor, tensor.name);
        in_tensor += piece.size();
        write(piece);
      };
      if (source.copy != nullptr) {
        source_of(tensor.name, source.copy->view).write(sink);
      } else if (!source.values.empty()) {
        std::vector<std::byte> bytes;
        write_bytes(source.values, tensor.dtype, bytes);
        sink(bytes);
      } else {
        write_matrix(i, sink);
      }
      if (checkpoint_->safetensors() != nullptr) checkpoint_->safetensors()->release_pages();
      if (checkpoint_->gguf() != nullptr) checkpoint_->gguf()->release_pages();
      done += static_cast<uint64_t>(tensor.n_values) * dtype_bytes(tensor.dtype);
    };
    sources.push_back({tensors_[i].name, tensors_[i].dtype, tensors_[i].shape, write_tensor});
  }
  std::vector<WrittenFile> written =
      write_safetensors_model(folder, std::move(sources), options_.max_shard_bytes);
  for (const auto& [name, text] : texts_) {
    written.push_back(write_companion(folder, name, text));
  }
  for (const std::string& name : copies_) {
    written.push_back(copy_companion(checkpoint_->path(), folder, name));
  }
  return written;
}

}  // namespace assay
