#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/core/dtype.h"
#include "convert/safetensors.h"

namespace assay {

struct HfExportOptions {
  DType dtype = DType::kBF16;  // of matrices that are not copied
  uint64_t max_shard_bytes = uint64_t{5} << 30;
  Json card = Json::object();   // parse_card_fields of model_card.h
  bool allow_infinite = false;  // values may become infinite in a narrower type, or stay NaN
};

/// One tensor of the folder.
struct HfTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::kBF16;
  std::string source_type;  // "Q4_K", "W4 group 128", "BF16"
  bool copied = false;      // the same bytes
  int64_t n_values = 0;
  int64_t n_changed = 0;  // values that rounding to `dtype` changes; known after write()
};

/// A plain Hugging Face folder of any checkpoint, with a model card: quantized linears become the
/// numbers that they mean, GGUF files go back to the names, order and values that their conversion
/// began with. Tensors of vectors and convolutions that `dtype` cannot hold exactly become F32.
/// Planned before a byte is written.
class HfExport {
 public:
  /// Throws UnsupportedError for a GGUF file of which config.json cannot say everything.
  HfExport(std::shared_ptr<const Checkpoint> checkpoint, const HfExportOptions& options);
  HfExport(const HfExport&) = delete;
  HfExport& operator=(const HfExport&) = delete;

  const std::vector<HfTensor>& tensors() const { return tensors_; }
  /// Files beside the weights: written, and those that a GGUF file has no content for.
  const std::vector<std::string>& companions() const { return companions_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  uint64_t weight_bytes() const;

  /// Writes into `folder`, which exists and is empty. `progress` is told the bytes done and the
  /// tensor that is written, every few MiB; what it throws ends the writing. Throws NumericError
  /// for values that the type cannot hold.
  std::vector<WrittenFile> write(
      const std::string& folder,
      const std::function<void(uint64_t, const std::string&)>& progress = {});

 private:
  /// How the bytes of a tensor come about.
  using Sink = std::function<void(std::span<const std::byte>)>;
  struct Source {
    const SafetensorsEntry* copy = nullptr;  // else
    std::vector<float> values = {};          // of a vector, in the order and form of Hugging Face
    std::vector<const TensorEntry*> matrices = {};  // else these, one after the other
  };
  void plan_folder();
  void plan_gguf();
  void add_copy(const SafetensorsEntry& entry);
  void add_matrix(const TensorEntry& entry);
  void order_stacks();
  void add_vector(const TensorEntry& entry);
  void plan_companions();
  void write_matrix(size_t index, const Sink& sink);

  std::shared_ptr<const Checkpoint> checkpoint_;
  HfExportOptions options_;
  std::vector<HfTensor> tensors_;
  std::vector<Source> sources_;                             // of each tensor
  std::map<std::string, size_t> stacks_;                    // name → position in tensors_
  std::vector<std::pair<std::string, std::string>> texts_;  // files with their contents
  std::vector<std::string> copies_;                         // files of the source folder
  std::vector<std::string> companions_;
  std::vector<std::string> warnings_;
};

/// The values of a Hugging Face tensor whose transform gives `values`, as numbers of `dtype` where
/// there are such; `n_inexact` counts those that no fp32 number gives.
std::vector<float> invert_transform(GgufTransform transform, std::span<const float> values,
                                    DType dtype, int64_t& n_inexact);

}  // namespace assay
