#include "convert/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "convert/checkpoint/plain_tensor.h"
#include "convert/checkpoint/quantized_layout.h"
#include "convert/checkpoint/tensor_ledger.h"
#include "convert/core/error.h"
#include "convert/core/units.h"
#include "convert/families/config_reader.h"

namespace assay {

std::string_view checkpoint_kind_name(CheckpointKind kind) {
  switch (kind) {
    case CheckpointKind::kHuggingFace:
      return "Hugging Face";
    case CheckpointKind::kCompressedTensors:
      return "compressed-tensors";
    case CheckpointKind::kGptq:
      return "GPTQ";
    case CheckpointKind::kAwq:
      return "AWQ";
    case CheckpointKind::kGguf:
      return "GGUF";
  }
  return "unknown";
}

void CheckpointMatrix::decode_row(int64_t row, std::span<float> out) const {
  view.format->decode_row(view, source_row(row), out);
}

void CheckpointMatrix::read_integers(int64_t row, IntegerRow& out) const {
  view.format->read_integers(view, source_row(row), out);
}

// ---------------------------------------------------------------------------------------------
// Hugging Face folders

namespace {

/// Runs `read`; messages of its input errors get `prefix` in front.
template <class Read>
auto with_prefix(const std::string& prefix, const Read& read) {
  try {
    return read();
  } catch (const FormatError& error) {
    throw FormatError(prefix + error.what());
  } catch (const UnsupportedError& error) {
    throw UnsupportedError(prefix + error.what());
  }
}

Json read_json_if_there(const std::string& path) {
  return file_exists(path) ? read_json_file(path) : Json();
}

/// The configuration of the quantization: in config.json, else in the side file of older GPTQ
/// folders; nullptr if there is none.
std::unique_ptr<QuantizedLayout> quantization_of(const std::string& folder, const Json& config) {
  const Json* inside = config.find("quantization_config");
  if (inside != nullptr && !inside->is_null()) {
    return read_quantization_config(*inside, folder + "/config.json: quantization_config");
  }
  const std::string side_file = folder + "/quantize_config.json";
  if (!file_exists(side_file)) return nullptr;
  return read_gptq_config(read_json_file(side_file), side_file);
}

bool is_matrix_product(const TensorEntry& entry) {
  return entry.is_matrix() && entry.role != Role::kTokenEmbedding;
}

std::unique_ptr<const TensorOnDisk> open_plain(const TensorEntry& entry, TensorLedger& ledger) {
  const SafetensorsEntry* found =
      ledger.require(entry.hf_name, entry.shape, {DType::kBF16, DType::kF16, DType::kF32});
  if (found == nullptr) return nullptr;
  return std::make_unique<PlainTensor>(entry.hf_name, scalar_format(found->view.dtype), entry.shape,
                                       found->view.bytes, std::vector<int64_t>());
}

/// Whether the head of the model is its embedding: decided by config and tensors together (case
/// B47).
bool head_is_tied(const ModelSpec& spec, const Family& family, TensorLedger& ledger,
                  const SafetensorsModel& model, std::vector<std::string>& warnings) {
  if (!spec.tied_head) return false;
  ModelSpec untied = spec;
  untied.tied_head = false;
  std::string embedding_name;
  TensorEntry head;
  for (const TensorEntry& entry : family.tensors(untied)) {
    if (entry.role == Role::kTokenEmbedding) embedding_name = entry.hf_name;
    if (entry.role == Role::kHead) head = entry;
  }
  const std::string prefix = head.module_name() + ".";
  const std::vector<std::string> names = model.names();
  const bool has_head = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(prefix);
  });
  if (!has_head) return true;
  const SafetensorsEntry* plain = model.find(head.hf_name);
  const SafetensorsEntry* embedding = model.find(embedding_name);
  const bool same = plain != nullptr && embedding != nullptr &&
                    plain->view.dtype == embedding->view.dtype &&
                    std::ranges::equal(plain->view.bytes, embedding->view.bytes);
  if (same) {
    ledger.take(head.hf_name);
    warnings.push_back(
        fmt::format("config.json ties the head to the embedding; the identical \"{}\" is not used",
                    head.hf_name));
    return true;
  }
  warnings.push_back(fmt::format(
      "config.json ties the head to the embedding, but \"{}*\" differs from \"{}\"; both are used",
      prefix, embedding_name));
  return false;
}

}  // namespace

std::shared_ptr<Checkpoint> Checkpoint::open_folder(const std::string& path) {
  std::shared_ptr<Checkpoint> out(new Checkpoint());
  out->path_ = path;
  out->config_ = read_json_file(path + "/config.json");
  out->generation_config_ = read_json_if_there(path + "/generation_config.json");
  with_prefix(path + "/", [&] {
    const ConfigReader config(out->config_, "config.json");
    const std::string model_type = config.text("model_type");
    out->family_ =
        with_prefix("config.json: ", [&] { return &find_family_by_model_type(model_type); });
    out->spec_ = out->family_->read_config(out->config_, out->generation_config_);
    return 0;
  });
  const std::unique_ptr<QuantizedLayout> layout = quantization_of(path, out->config_);
  if (layout != nullptr) out->kind_ = layout->kind();
  out->safetensors_ = std::make_unique<SafetensorsModel>(SafetensorsModel::open(path));

  TensorLedger ledger(*out->safetensors_);
  out->spec_.tied_head =
      head_is_tied(out->spec_, *out->family_, ledger, *out->safetensors_, out->warnings_);
  with_prefix(path + ": ", [&] {
    for (TensorEntry& entry : out->family_->tensors(out->spec_)) {
      std::unique_ptr<const TensorOnDisk> tensor;
      const std::string module = entry.module_name();
      if (layout != nullptr && is_matrix_product(entry)) {
        tensor = layout->open(module, entry.shape[0], entry.shape[1], ledger);
      }
      if (tensor == nullptr) tensor = open_plain(entry, ledger);
      if (tensor != nullptr) out->add(std::move(entry), std::move(tensor));
    }
    return 0;
  });
  for (const std::string& name : ledger.unused()) {
    if (!out->family_->ignores_tensor(name)) {
      ledger.problem(fmt::format("\"{}\" is not part of such a model", name));
    }
  }
  ledger.throw_problems(path);
  if (const StoredTensor& embedding = out->stored(Role::kTokenEmbedding);
      embedding.format->fold() == Fold::kFloat) {
    out->spec_.source_dtype = *dtype_from_name(embedding.format->name());
  }
  return out;
}

// ---------------------------------------------------------------------------------------------
// GGUF files

namespace {

/// Row r of the Hugging Face order lies in row order[r] of the file.
std::vector<int64_t> row_order_of(const TensorEntry& entry) {
  const std::vector<int64_t> sources = huggingface_rows_of_gguf(entry);
  std::vector<int64_t> order(sources.size());
  for (size_t row = 0; row < sources.size(); ++row) {
    order[static_cast<size_t>(sources[row])] = static_cast<int64_t>(row);
  }
  return order;
}

/// What does not fit between the table and the file; both are compared in full.
std::vector<std::string> differences(const std::vector<TensorEntry>& table, const GgufFile& file,
                                     const std::vector<GgufExtraTensor>& extras) {
  std::vector<std::string> problems;
  std::set<std::string, std::less<>> expected;
  for (const GgufExtraTensor& extra : extras) expected.insert(extra.name);
  for (const TensorEntry& entry : table) {
    expected.insert(entry.gguf_name);
    const GgufTensor* tensor = file.find(entry.gguf_name);
    if (tensor == nullptr) {
      problems.push_back(
          fmt::format("\"{}\" {} is missing", entry.gguf_name, to_string(entry.shape)));
    } else if (tensor->shape != gguf_shape(entry)) {
      problems.push_back(fmt::format("\"{}\" has shape {}, expected {}", entry.gguf_name,
                                     to_string(tensor->shape), to_string(gguf_shape(entry))));
    }
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (!expected.contains(tensor.name)) {
      problems.push_back(fmt::format("\"{}\" is not part of such a model", tensor.name));
    }
  }
  return problems;
}

}  // namespace

std::shared_ptr<Checkpoint> Checkpoint::open_gguf(const std::string& path) {
  std::shared_ptr<Checkpoint> out(new Checkpoint());
  out->path_ = path;
  out->kind_ = CheckpointKind::kGguf;
  out->gguf_ = std::make_unique<GgufFile>(GgufFile::open(path));
  const GgufFile& file = *out->gguf_;
  const std::optional<std::string> architecture = file.metadata().string("general.architecture");
  if (!architecture) throw FormatError(path + ": \"general.architecture\" is missing");
  out->family_ =
      with_prefix(path + ": ", [&] { return &find_family_by_architecture(*architecture); });
  out->spec_ = out->family_->read_gguf(file);
  std::vector<TensorEntry> table = out->family_->tensors(out->spec_);
  const std::vector<std::string> problems =
      differences(table, file, out->family_->gguf_extra_tensors(out->spec_));
  if (!problems.empty()) {
    throw FormatError(listed(path + ": the tensors do not fit the metadata:", problems));
  }
  for (TensorEntry& entry : table) {
    const GgufTensor& tensor = *file.find(entry.gguf_name);
    std::vector<int64_t> order;
    if (entry.is_matrix()) order = row_order_of(entry);
    out->add(entry, std::make_unique<PlainTensor>(tensor.name, *tensor.format, tensor.shape,
                                                  tensor.bytes, std::move(order)));
  }
  const WeightFormat& embedding = *out->stored(Role::kTokenEmbedding).format;
  out->spec_.source_dtype =
      embedding.fold() == Fold::kFloat ? *dtype_from_name(embedding.name()) : DType::kF16;
  return out;
}

// ---------------------------------------------------------------------------------------------

std::shared_ptr<const Checkpoint> Checkpoint::open(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    throw FileError(path + ": there is no such file or folder; expected a model folder or a .gguf");
  }
  if (!fs::is_directory(status)) return open_gguf(path);
  std::string folder = path;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  if (!file_exists(folder + "/config.json")) {
    throw FormatError(folder +
                      ": there is no config.json; expected a Hugging Face model folder, or the "
                      "path of a .gguf file");
  }
  return open_folder(folder);
}

void Checkpoint::add(TensorEntry entry, std::unique_ptr<const TensorOnDisk> tensor) {
  index_[{entry.role, entry.layer}] = table_.size();
  table_.push_back(std::move(entry));
  tensors_.push_back(std::move(tensor));
}

bool Checkpoint::has(Role role, int layer) const { return index_.contains({role, layer}); }

size_t Checkpoint::index_of(Role role, int layer) const {
  auto found = index_.find({role, layer});
  if (found == index_.end() && role == Role::kHead && spec_.tied_head) {
    found = index_.find({Role::kTokenEmbedding, -1});
  }
  if (found == index_.end()) {
    throw FormatError(fmt::format("{}: there is no {} in layer {}", path_, role_name(role), layer));
  }
  return found->second;
}

const TensorEntry& Checkpoint::entry(Role role, int layer) const {
  return table_[index_of(role, layer)];
}

const StoredTensor& Checkpoint::stored(Role role, int layer) const {
  return tensors_[index_of(role, layer)]->stored();
}

CheckpointMatrix Checkpoint::matrix(Role role, int layer) const {
  const size_t index = index_of(role, layer);
  const std::string& name =
      kind_ == CheckpointKind::kGguf ? table_[index].gguf_name : table_[index].hf_name;
  ASSAY_CHECK(table_[index].is_matrix());
  CheckpointMatrix matrix = with_prefix(path_ + ": ", [&] { return tensors_[index]->load(); });
  if (matrix.view.format->fold() == Fold::kFloat) return matrix;
  for (int64_t row = 0; row < matrix.view.rows; ++row) {
    if (const auto fault = matrix.view.format->find_fault(matrix.view, row)) {
      throw FormatError(fmt::format("{}: \"{}\", row {}: {}", path_, name, row, *fault));
    }
  }
  return matrix;
}

std::vector<float> Checkpoint::vector(Role role, int layer) const {
  const size_t index = index_of(role, layer);
  const TensorEntry& entry = table_[index];
  ASSAY_CHECK(!entry.is_matrix());
  const CheckpointMatrix matrix = tensors_[index]->load();
  const auto columns = static_cast<size_t>(matrix.view.columns);
  std::vector<float> values(static_cast<size_t>(matrix.view.rows) * columns);
  for (int64_t row = 0; row < matrix.view.rows; ++row) {
    matrix.decode_row(row, std::span(values).subspan(static_cast<size_t>(row) * columns, columns));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      throw FormatError(fmt::format("{}: \"{}\"[{}] is {}; expected finite values", path_,
                                    tensors_[index]->stored().parts.front(), i, values[i]));
    }
  }
  if (kind_ != CheckpointKind::kGguf) {
    apply_transform(entry.gguf_transform, values);
    return values;
  }
  const std::vector<int64_t> sources = huggingface_rows_of_gguf(entry);
  if (sources.empty()) return values;
  std::vector<float> ordered(values.size());
  for (size_t i = 0; i < values.size(); ++i) ordered[static_cast<size_t>(sources[i])] = values[i];
  return ordered;
}

}  // namespace assay
