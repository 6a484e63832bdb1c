#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "convert/checkpoint/checkpoint_format.h"
#include "convert/core/json.h"
#include "convert/families/family.h"
#include "convert/formats/format.h"
#include "convert/gguf.h"
#include "convert/model_spec.h"
#include "convert/safetensors.h"

namespace assay {

/// A matrix of a checkpoint, ready to be read row by row in Hugging Face row order.
struct CheckpointMatrix {
  WeightView view;
  /// Empty, or for each row r in Hugging Face order the row of `view` that holds it.
  std::vector<int64_t> row_order;
  /// Columns in Hugging Face order from those of `view`.
  ColumnOrder column_order = {};
  /// Owns what could not be viewed in place (GPTQ words transposed, unpacked zero points).
  std::shared_ptr<const std::vector<std::byte>> storage;

  int64_t source_row(int64_t row) const {
    return row_order.empty() ? row : row_order[static_cast<size_t>(row)];
  }
  /// Columns per scale of read_integers(): those of `view`, or fewer where columns are moved.
  int64_t group_size() const { return column_order.group_size(view.group_size); }
  void decode_row(int64_t row, std::span<float> out) const;
  void read_integers(int64_t row, IntegerRow& out) const;
};

/// How one tensor lies on disk; known from headers alone.
struct StoredTensor {
  const WeightFormat* format = nullptr;
  int64_t group_size = 0;            // columns per scale; 0 for formats without groups
  std::optional<DType> scale_dtype;  // of W4A16 scales
  uint64_t bytes = 0;                // all parts together
  std::string act_order;             // what is stored, where it is read as fp32 values; else empty
  std::vector<std::string> parts;  // their names in the file: "….weight_packed", "….weight_scale"
};

/// Where one tensor of the table comes from. Implementations: convert/checkpoint/.
class TensorOnDisk {
 public:
  virtual ~TensorOnDisk() = default;
  const StoredTensor& stored() const { return stored_; }
  /// A 1-D tensor is one row.
  virtual CheckpointMatrix load() const = 0;

 protected:
  StoredTensor stored_;
};

/// A model on disk: Hugging Face folder (16- or 32-bit, compressed-tensors pack-quantized, GPTQ v1
/// and v2, AWQ) or GGUF file, with its spec. open() reads headers only, compares the tensors with
/// the family's table (missing, unexpected, wrong shape: FormatError naming each; cases B47–B49,
/// B56) and keeps the files mapped. Thread-safe after open.
class Checkpoint {
 public:
  static std::shared_ptr<const Checkpoint> open(const std::string& path);

  const std::string& path() const { return path_; }
  const CheckpointFormat& format() const { return *format_; }
  CheckpointKind kind() const { return format_->kind; }
  const Family& family() const { return *family_; }
  const ModelSpec& spec() const { return spec_; }
  const std::vector<TensorEntry>& tensors() const { return table_; }  // those present
  /// Tensors of the blocks that predict further tokens, if all of them are there as the family
  /// knows them. Conversions keep them; nothing here runs them.
  const std::vector<TensorEntry>& prediction_tensors() const { return prediction_table_; }
  /// config.json, or the text model's part of it; null for GGUF.
  const Json& config() const { return config_; }
  const Json& generation_config() const { return generation_config_; }
  const SafetensorsModel* safetensors() const { return safetensors_.get(); }
  const GgufFile* gguf() const { return gguf_.get(); }
  /// Tensors of a folder that are no part of the text model (vision tower, prediction of several
  /// tokens): nothing here runs them, and a GGUF file has prediction_tensors() of them alone.
  const std::vector<std::string>& left_out() const { return left_out_; }
  /// Things worth telling the user that do not stop a run (one line each).
  const std::vector<std::string>& warnings() const { return warnings_; }

  bool has(Role role, int layer = -1, int expert = -1) const;
  const TensorEntry& entry(Role role, int layer = -1, int expert = -1) const;
  /// Type, group size and bytes, without reading the tensor. For a tied head those of the
  /// embedding.
  const StoredTensor& stored(Role role, int layer = -1, int expert = -1) const;
  const StoredTensor& stored(const TensorEntry& entry) const {
    return stored(entry.role, entry.layer, entry.expert);
  }
  /// A 2-D tensor. The head of a tied model is the embedding. Throws FormatError if it is absent,
  /// or if a scale of a quantized matrix is not finite (or negative, W4A16): case B14. Values of
  /// plain matrices are checked where they are used. Goes over the whole matrix: stored() tells
  /// what needs no values.
  CheckpointMatrix matrix(Role role, int layer = -1, int expert = -1) const;
  CheckpointMatrix matrix(const TensorEntry& entry) const {
    return matrix(entry.role, entry.layer, entry.expert);
  }
  /// A tensor of rank 1 or 3 (convolution), flat, widened to fp32, in the order of Hugging Face, as
  /// the ops use it (apply_transform of families/family.h).
  std::vector<float> vector(Role role, int layer = -1) const;

 private:
  Checkpoint() = default;
  static std::shared_ptr<Checkpoint> open_folder(const std::string& path);
  static std::shared_ptr<Checkpoint> open_gguf(const std::string& path);
  void add(TensorEntry entry, std::unique_ptr<const TensorOnDisk> tensor);
  void add_prediction_block(TensorEntry entry, std::unique_ptr<const TensorOnDisk> tensor);
  void add_prediction_of_folder();
  void add_prediction_of_gguf(const std::set<std::string, std::less<>>& names);
  std::unique_ptr<const TensorOnDisk> gguf_tensor(const TensorEntry& entry) const;
  void leave_out(const std::vector<std::string>& names);
  const TensorEntry& entry_at(size_t index) const {
    return index < table_.size() ? table_[index] : prediction_table_[index - table_.size()];
  }
  size_t index_of(Role role, int layer, int expert) const;

  std::string path_;
  const CheckpointFormat* format_ = &kPlainFormat;
  const Family* family_ = nullptr;
  ModelSpec spec_;
  std::vector<TensorEntry> table_;
  std::vector<TensorEntry> prediction_table_;
  std::string prediction_problem_;  // why prediction_table_ lacks what the folder has
  std::vector<std::unique_ptr<const TensorOnDisk>> tensors_;  // of table_, then prediction_table_
  std::map<std::tuple<Role, int, int>, size_t> index_;        // role, layer, expert
  Json config_, generation_config_;
  std::unique_ptr<SafetensorsModel> safetensors_;
  std::unique_ptr<GgufFile> gguf_;
  std::vector<std::string> left_out_;
  std::vector<std::string> warnings_;
};

}  // namespace assay
