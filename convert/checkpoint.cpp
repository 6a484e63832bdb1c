#include "convert/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "convert/checkpoint/plain_tensor.h"
#include "convert/checkpoint/quantized_layout.h"
#include "convert/checkpoint/tensor_ledger.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/core/paths.h"
#include "convert/core/units.h"
#include "convert/families/config_reader.h"
#include "convert/families/text_part.h"

namespace assay {

void CheckpointMatrix::decode_row(int64_t row, std::span<float> out) const {
  view.format->decode_row(view, source_row(row), out);
  reorder_columns(column_order, out);
}

void CheckpointMatrix::read_integers(int64_t row, IntegerRow& out) const {
  view.format->read_integers(view, source_row(row), out);
  reorder_columns(column_order, view.group_size, view.format->sub_block(), out);
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

bool is_matrix_product(const TensorEntry& entry) {
  return entry.is_matrix() && entry.role != Role::kTokenEmbedding &&
         entry.role != Role::kPerLayerEmbedding;
}

/// The entry's rows of a tensor that holds several.
std::span<const std::byte> rows_of(const TensorEntry& entry, const TensorSlice& stack,
                                   const WeightFormat& format, std::span<const std::byte> bytes) {
  const uint64_t row_bytes = format.row_bytes(entry.shape.back());
  return bytes.subspan(static_cast<uint64_t>(stack.first_row) * row_bytes,
                       static_cast<uint64_t>(entry.shape[0]) * row_bytes);
}

std::unique_ptr<const TensorOnDisk> open_plain(const TensorEntry& entry, TensorLedger& ledger) {
  if (entry.hf_stack && !ledger.has(entry.hf_name) && ledger.has(entry.hf_stack->name)) {
    const TensorSlice& stack = *entry.hf_stack;
    const SafetensorsEntry* found =
        ledger.require(stack.name, stack.shape, {DType::kBF16, DType::kF16, DType::kF32});
    if (found == nullptr) return nullptr;
    const WeightFormat& format = scalar_format(found->view.dtype);
    return std::make_unique<PlainTensor>(stack.name, format, entry.shape,
                                         rows_of(entry, stack, format, found->view.bytes));
  }
  const SafetensorsEntry* found =
      ledger.require(entry.hf_name, entry.shape, {DType::kBF16, DType::kF16, DType::kF32});
  if (found == nullptr) return nullptr;
  return std::make_unique<PlainTensor>(entry.hf_name, scalar_format(found->view.dtype), entry.shape,
                                       found->view.bytes);
}

/// The family's table, with the names that the folder has.
std::vector<TensorEntry> table_of(const Family& family, const ModelSpec& spec,
                                  const SafetensorsModel& model) {
  std::vector<TensorEntry> table = family.tensors(spec);
  name_as_stored(table, model);
  return table;
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
  for (const TensorEntry& entry : table_of(family, untied, model)) {
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
  std::optional<Json> text_config = text_config_of(out->config_);
  if (text_config) out->config_ = std::move(*text_config);
  with_prefix(path + (text_config ? ": text_config of " : "/"), [&] {
    const ConfigReader config(out->config_, "config.json");
    const std::string model_type = config.text("model_type");
    out->family_ =
        with_prefix("config.json: ", [&] { return &find_family_by_model_type(model_type); });
    out->spec_ = out->family_->read_config(out->config_, out->generation_config_);
    return 0;
  });
  const FolderQuantization quantization = read_quantization(path, out->config_);
  const QuantizedLayout* layout = quantization.layout.get();
  out->format_ = quantization.format;
  out->safetensors_ = std::make_unique<SafetensorsModel>(SafetensorsModel::open(path));

  TensorLedger ledger(*out->safetensors_);
  out->spec_.tied_head =
      head_is_tied(out->spec_, *out->family_, ledger, *out->safetensors_, out->warnings_);
  with_prefix(path + ": ", [&] {
    for (TensorEntry& entry : table_of(*out->family_, out->spec_, *out->safetensors_)) {
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
  out->add_prediction_of_folder();
  std::vector<std::string> others;
  for (std::string& name : ledger.unused()) {
    if (!other_part_of(name).empty()) {
      others.push_back(std::move(name));
    } else if (!out->family_->ignores_tensor(name)) {
      ledger.problem(fmt::format("\"{}\" is not part of such a model", name));
    }
  }
  out->leave_out(others);
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
                                     const std::vector<GgufExtraTensor>& extras,
                                     const std::set<std::string, std::less<>>& others) {
  std::vector<std::string> problems;
  std::set<std::string, std::less<>> expected;
  for (const GgufExtraTensor& extra : extras) expected.insert(extra.name);
  for (const TensorEntry& entry : table) {
    expected.insert(entry.gguf_name);
    if (entry.gguf_stack && entry.gguf_stack->first_row > 0) continue;  // looked at before
    const GgufTensor* tensor = file.find(entry.gguf_name);
    if (tensor == nullptr) {
      problems.push_back(
          fmt::format("\"{}\" {} is missing", entry.gguf_name, to_string(gguf_shape(entry))));
    } else if (tensor->shape != gguf_shape(entry)) {
      problems.push_back(fmt::format("\"{}\" has shape {}, expected {}", entry.gguf_name,
                                     to_string(tensor->shape), to_string(gguf_shape(entry))));
    }
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (!expected.contains(tensor.name) && !others.contains(tensor.name)) {
      problems.push_back(fmt::format("\"{}\" is not part of such a model", tensor.name));
    }
  }
  return problems;
}

/// Tensors of the blocks behind the last layer, which predict further tokens.
std::set<std::string, std::less<>> prediction_names(const GgufFile& file,
                                                    std::string_view architecture,
                                                    size_t n_layers) {
  std::set<std::string, std::less<>> names;
  const std::optional<int64_t> n =
      file.metadata().integer(std::string(architecture) + ".nextn_predict_layers");
  if (n.value_or(0) <= 0) return names;
  constexpr std::string_view kBlock = "blk.";
  for (const GgufTensor& tensor : file.tensors()) {
    size_t block = 0;
    const char* end = tensor.name.data() + tensor.name.size();
    if (!tensor.name.starts_with(kBlock)) continue;
    const auto parsed = std::from_chars(tensor.name.data() + kBlock.size(), end, block);
    if (parsed.ec == std::errc() && block >= n_layers) names.insert(tensor.name);
  }
  return names;
}

}  // namespace

std::shared_ptr<Checkpoint> Checkpoint::open_gguf(const std::string& path) {
  std::shared_ptr<Checkpoint> out(new Checkpoint());
  out->path_ = path;
  out->format_ = &kGgufFormat;
  out->gguf_ = std::make_unique<GgufFile>(GgufFile::open(path));
  const GgufFile& file = *out->gguf_;
  const std::optional<std::string> architecture = file.metadata().string("general.architecture");
  if (!architecture) throw FormatError(path + ": \"general.architecture\" is missing");
  out->family_ =
      with_prefix(path + ": ", [&] { return &find_family_by_architecture(*architecture); });
  out->spec_ = out->family_->read_gguf(file);
  std::vector<TensorEntry> table = out->family_->tensors(out->spec_);
  const std::set<std::string, std::less<>> others =
      prediction_names(file, out->family_->gguf_architecture, out->spec_.layers.size());
  const std::vector<std::string> problems =
      differences(table, file, out->family_->gguf_extra_tensors(out->spec_), others);
  if (!problems.empty()) {
    throw FormatError(listed(path + ": the tensors do not fit the metadata:", problems));
  }
  for (const TensorEntry& entry : table) out->add(entry, out->gguf_tensor(entry));
  out->add_prediction_of_gguf(others);
  const WeightFormat& embedding = *out->stored(Role::kTokenEmbedding).format;
  out->spec_.source_dtype =
      embedding.fold() == Fold::kFloat ? *dtype_from_name(embedding.name()) : DType::kF16;
  return out;
}

std::unique_ptr<const TensorOnDisk> Checkpoint::gguf_tensor(const TensorEntry& entry) const {
  const GgufTensor& tensor = *gguf_->find(entry.gguf_name);
  if (entry.gguf_stack) {
    const std::span<const std::byte> rows =
        rows_of(entry, *entry.gguf_stack, *tensor.format, tensor.bytes);
    return std::make_unique<PlainTensor>(tensor.name, *tensor.format, entry.shape, rows);
  }
  std::vector<int64_t> order;
  if (entry.is_matrix()) order = row_order_of(entry);
  return std::make_unique<PlainTensor>(tensor.name, *tensor.format, tensor.shape, tensor.bytes,
                                       std::move(order), huggingface_columns_of_gguf(entry));
}

// ---------------------------------------------------------------------------------------------
// Blocks that predict further tokens

namespace {

constexpr int kMaxPredictionBlocks = 64;

/// How many blocks the names of a folder count.
int prediction_blocks_of(const SafetensorsModel& model) {
  constexpr std::string_view kPrefix = "mtp.layers.";
  int n_blocks = 0;
  for (const std::string& name : model.names()) {
    if (!name.starts_with(kPrefix)) continue;
    int block = 0;
    const auto parsed =
        std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), block);
    const bool is_number = parsed.ec == std::errc() && *parsed.ptr == '.' && block >= 0;
    if (is_number && block < kMaxPredictionBlocks) n_blocks = std::max(n_blocks, block + 1);
  }
  return n_blocks;
}

/// What keeps the folder's blocks out of the table; empty if all fits.
std::string prediction_problem(const std::vector<TensorEntry>& table,
                               const SafetensorsModel& model) {
  std::set<std::string_view> known;
  for (const TensorEntry& entry : table) {
    known.insert(entry.hf_name);
    const SafetensorsEntry* found = model.find(entry.hf_name);
    if (found == nullptr) return fmt::format("\"{}\" is missing", entry.hf_name);
    const TensorView& view = found->view;
    const bool is_plain =
        view.dtype == DType::kBF16 || view.dtype == DType::kF16 || view.dtype == DType::kF32;
    if (view.shape != entry.shape || !is_plain) {
      return fmt::format("\"{}\" is {} {}, expected {} BF16, F16 or F32", entry.hf_name,
                         to_string(view.shape), dtype_name(view.dtype), to_string(entry.shape));
    }
  }
  for (const std::string& name : model.names()) {
    if (other_part_of(name) == "mtp" && !known.contains(name)) {
      return fmt::format("\"{}\" is not known", name);
    }
  }
  return {};
}

}  // namespace

void Checkpoint::add_prediction_block(TensorEntry entry,
                                      std::unique_ptr<const TensorOnDisk> tensor) {
  index_[{entry.role, entry.layer, entry.expert}] = tensors_.size();
  prediction_table_.push_back(std::move(entry));
  tensors_.push_back(std::move(tensor));
}

void Checkpoint::add_prediction_of_folder() {
  const SafetensorsModel& model = *safetensors_;
  spec_.n_prediction_blocks = prediction_blocks_of(model);
  const std::vector<TensorEntry> table = family_->prediction_tensors(spec_);
  if (!table.empty()) prediction_problem_ = prediction_problem(table, model);
  if (table.empty() || !prediction_problem_.empty()) {
    spec_.n_prediction_blocks = 0;
    return;
  }
  for (const TensorEntry& entry : table) {
    const TensorView& view = model.find(entry.hf_name)->view;
    add_prediction_block(
        entry, std::make_unique<PlainTensor>(entry.hf_name, scalar_format(view.dtype), entry.shape,
                                             view.bytes));
  }
}

void Checkpoint::add_prediction_of_gguf(const std::set<std::string, std::less<>>& names) {
  const std::vector<TensorEntry> table = family_->prediction_tensors(spec_);
  const bool complete = std::all_of(table.begin(), table.end(), [&](const TensorEntry& entry) {
    return names.contains(entry.gguf_name) &&
           gguf_->find(entry.gguf_name)->shape == gguf_shape(entry);
  });
  if (!complete) spec_.n_prediction_blocks = 0;
  if (complete && !table.empty()) {
    for (const TensorEntry& entry : table) add_prediction_block(entry, gguf_tensor(entry));
    warnings_.push_back(fmt::format(
        "{} tensors of blocks that predict further tokens are kept, and nothing here runs them",
        table.size()));
  }
  if (names.size() > prediction_table_.size()) {
    warnings_.push_back(fmt::format("left out: {} tensors of blocks that predict further tokens",
                                    names.size() - prediction_table_.size()));
  }
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
  const std::string folder = without_trailing_slashes(path);
  if (!file_exists(folder + "/config.json")) {
    const bool is_cache = fs::is_directory(folder + "/snapshots", error);
    throw FormatError(
        folder + (is_cache ? ": is the cache of a model; give the folder of a commit inside "
                             "its folder snapshots"
                           : ": there is no config.json; expected a Hugging Face model folder, "
                             "or the path of a .gguf file"));
  }
  return open_folder(folder);
}

void Checkpoint::add(TensorEntry entry, std::unique_ptr<const TensorOnDisk> tensor) {
  ASSAY_CHECK(prediction_table_.empty());
  index_[{entry.role, entry.layer, entry.expert}] = table_.size();
  table_.push_back(std::move(entry));
  tensors_.push_back(std::move(tensor));
}

void Checkpoint::leave_out(const std::vector<std::string>& names) {
  struct Part {
    int64_t n_tensors = 0;
    uint64_t bytes = 0;
  };
  std::map<std::string_view, Part> parts;
  for (const std::string& name : names) {
    Part& part = parts[other_part_of(name)];
    part.n_tensors += 1;
    part.bytes += safetensors_->find(name)->view.bytes.size();
  }
  for (const auto& [name, part] : parts) {
    const std::string what =
        fmt::format("{} ({} tensors, {})", name, part.n_tensors, bytes_text(part.bytes));
    if (name == "mtp" && spec_.n_prediction_blocks > 0) {
      warnings_.push_back(what +
                          ", which predicts further tokens, is kept as it is, and nothing here "
                          "runs it");
      continue;
    }
    warnings_.push_back("left out: " + what +
                        ", which is no part of the text model; quantize keeps its tensors as they "
                        "are");
    if (name == "mtp" && !prediction_problem_.empty()) {
      warnings_.back() += "; GGUF is without it, for " + prediction_problem_;
    }
  }
  left_out_ = names;
  const Json* n_blocks = config_.find("mtp_num_hidden_layers");
  const int64_t counted =
      n_blocks != nullptr && n_blocks->is_integer() ? n_blocks->as_integer() : 0;
  const int found = prediction_blocks_of(*safetensors_);
  if (counted != found && (counted > 0 || found > 0)) {
    warnings_.push_back(fmt::format(
        "config.json counts {} blocks that predict further tokens (mtp_num_hidden_layers), the "
        "tensors are those of {}; the tensors count",
        counted, found));
  }
}

bool Checkpoint::has(Role role, int layer, int expert) const {
  return index_.contains({role, layer, expert});
}

size_t Checkpoint::index_of(Role role, int layer, int expert) const {
  auto found = index_.find({role, layer, expert});
  if (found == index_.end() && role == Role::kHead && spec_.tied_head) {
    found = index_.find({Role::kTokenEmbedding, -1, -1});
  }
  if (found == index_.end()) {
    throw FormatError(fmt::format("{}: there is no {}{} in layer {}", path_, role_name(role),
                                  expert < 0 ? "" : fmt::format(" of expert {}", expert), layer));
  }
  return found->second;
}

const TensorEntry& Checkpoint::entry(Role role, int layer, int expert) const {
  return entry_at(index_of(role, layer, expert));
}

const StoredTensor& Checkpoint::stored(Role role, int layer, int expert) const {
  return tensors_[index_of(role, layer, expert)]->stored();
}

CheckpointMatrix Checkpoint::matrix(Role role, int layer, int expert) const {
  const size_t index = index_of(role, layer, expert);
  const std::string& name =
      kind() == CheckpointKind::kGguf ? entry_at(index).gguf_name : entry_at(index).hf_name;
  ASSAY_CHECK(entry_at(index).is_matrix());
  CheckpointMatrix matrix = with_prefix(path_ + ": ", [&] { return tensors_[index]->load(); });
  if (matrix.view.format->fold() == Fold::kFloat) return matrix;
  parallel_for_anywhere(matrix.view.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (const auto fault = matrix.view.format->find_fault(matrix.view, row)) {
        throw FormatError(fmt::format("{}: \"{}\", row {}: {}", path_, name, row, *fault));
      }
    }
  });
  return matrix;
}

std::vector<float> Checkpoint::vector(Role role, int layer) const {
  const size_t index = index_of(role, layer, -1);
  const TensorEntry& entry = entry_at(index);
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
  if (kind() != CheckpointKind::kGguf) {
    apply_transform(entry.gguf_transform, values);
    return values;
  }
  const std::vector<int64_t> sources = huggingface_rows_of_gguf(entry);
  if (sources.empty()) return values;
  std::vector<float> ordered(values.size());
  const size_t width = values.size() / sources.size();
  for (size_t row = 0; row < sources.size(); ++row) {
    std::copy_n(values.data() + row * width, width,
                ordered.data() + static_cast<size_t>(sources[row]) * width);
  }
  return ordered;
}

}  // namespace assay
