#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"
#include "convert/families/family.h"
#include "convert/formats/format.h"
#include "convert/gguf.h"
#include "convert/model_spec.h"
#include "convert/safetensors.h"

namespace assay {

/// How the linears of a checkpoint are stored.
enum class CheckpointKind : uint8_t { kHuggingFace, kCompressedTensors, kGptq, kGguf };
std::string_view checkpoint_kind_name(CheckpointKind kind);

/// A matrix of a checkpoint, ready to be read row by row in Hugging Face row order.
struct CheckpointMatrix {
  WeightView view;
  /// Empty, or for each row r in Hugging Face order the row of `view` that holds it.
  std::vector<int64_t> row_order;
  /// Owns what could not be viewed in place (GPTQ words transposed, unpacked zero points).
  std::shared_ptr<const std::vector<std::byte>> storage;

  int64_t source_row(int64_t row) const {
    return row_order.empty() ? row : row_order[static_cast<size_t>(row)];
  }
  void decode_row(int64_t row, std::span<float> out) const;
  void read_integers(int64_t row, IntegerRow& out) const;
};

/// A model on disk: Hugging Face folder (16- or 32-bit, compressed-tensors pack-quantized, GPTQ v1)
/// or GGUF file, with its spec. open() reads headers only, compares the tensors with the family's
/// table (missing, unexpected, wrong shape: FormatError naming each; cases B47–B49, B56) and keeps
/// the files mapped. Thread-safe after open.
class Checkpoint {
 public:
  static std::shared_ptr<const Checkpoint> open(const std::string& path);

  const std::string& path() const { return path_; }
  CheckpointKind kind() const { return kind_; }
  const Family& family() const { return *family_; }
  const ModelSpec& spec() const { return spec_; }
  const std::vector<TensorEntry>& tensors() const { return table_; }  // those present
  /// config.json; null for GGUF.
  const Json& config() const { return config_; }
  const Json& generation_config() const { return generation_config_; }
  const SafetensorsModel* safetensors() const { return safetensors_.get(); }
  const GgufFile* gguf() const { return gguf_.get(); }
  /// Things worth telling the user that do not stop a run (one line each).
  const std::vector<std::string>& warnings() const { return warnings_; }

  bool has(Role role, int layer = -1) const;
  const TensorEntry& entry(Role role, int layer = -1) const;
  /// A 2-D tensor. The head of a tied model is the embedding. Throws FormatError if it is absent.
  CheckpointMatrix matrix(Role role, int layer = -1) const;
  /// A 1-D tensor widened to fp32, in Hugging Face convention.
  std::vector<float> vector(Role role, int layer = -1) const;

 private:
  Checkpoint() = default;
  std::string path_;
  CheckpointKind kind_ = CheckpointKind::kHuggingFace;
  const Family* family_ = nullptr;
  ModelSpec spec_;
  std::vector<TensorEntry> table_;
  Json config_, generation_config_;
  std::unique_ptr<SafetensorsModel> safetensors_;
  std::unique_ptr<GgufFile> gguf_;
  std::vector<std::string> warnings_;
};

}  // namespace assay
