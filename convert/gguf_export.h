#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/gguf_plan.h"
#include "convert/safetensors.h"

namespace assay {

struct GgufExportOptions {
  /// Type of the matrices. Empty: a plain model keeps its type; quantized linears go to the
  /// smallest type that holds their codes exactly.
  const WeightFormat* type = nullptr;
  /// Quantized models: type of the matrices that are not quantized (embedding, head). Empty: their
  /// own.
  const WeightFormat* other_type = nullptr;
  /// Quantized linears may lose something on the way into `type`; what changed is counted.
  bool allow_requantize = false;
  /// Values may become infinite or stay NaN in a narrower type.
  bool allow_infinite = false;
  /// Types by the rules of llama-quantize instead of `type`, in its order of tensors. Linears that
  /// are quantized already need allow_requantize.
  MixOptions mix = {};
  std::shared_ptr<const ImportanceMatrix> importance = {};
  uint64_t split_max_bytes = 0;          // 0: one file
  std::optional<std::string> name = {};  // general.name; empty: from the folder's name
  std::optional<std::string> pre = {};   // tokenizer.ggml.pre; empty: from tokenizer.json
};

/// A model folder on its way into a GGUF file.
class GgufExport : public GgufPlan {
 public:
  /// Throws FormatError for a quantized linear whose values would change (every one named, with the
  /// reason and the types that would be exact) unless allow_requantize; NumericError for values
  /// that would become infinite unless allow_infinite; UsageError for options that do not fit.
  GgufExport(std::shared_ptr<const Checkpoint> checkpoint, const GgufExportOptions& options);

 private:
  void plan_tensors();
  /// Entries that one tensor of the file holds, one after the other: a single one, or all experts.
  using Parts = std::vector<const TensorEntry*>;

  /// Rows as in the folder, columns as in GGUF.
  CheckpointMatrix matrix_of(const TensorEntry& entry) const;
  std::vector<CheckpointMatrix> matrices_of(const Parts& parts) const;
  std::vector<Parts> parts_in_file_order() const;
  void plan_parts(const Parts& parts, ExportTensor& tensor);
  void plan_linear(const Parts& parts, ExportTensor& tensor);
  void plan_act_order(const Parts& parts, ExportTensor& tensor);
  void plan_plain(const Parts& parts, const WeightFormat* wanted, ExportTensor& tensor);
  void plan_mix();
  void refuse_losses() const;
  void plan_metadata();
  uint32_t file_type() const;
  std::optional<StoredRows> stored_rows(size_t index) const override;
  void write_matrix(size_t index, const TensorEntry& entry,
                    const std::function<void(std::span<const std::byte>)>& sink);
  void write_tensor(size_t index,
                    const std::function<void(std::span<const std::byte>)>& sink) override;

  std::shared_ptr<const Checkpoint> checkpoint_;
  GgufExportOptions options_;
  std::vector<Parts> parts_;                      // of each of tensors_; empty if computed
  std::vector<const GgufExtraTensor*> extra_of_;  // of each of tensors_; nullptr if stored
  std::vector<GgufExtraTensor> extras_;
  std::vector<std::string> losses_;  // one line per tensor that would change
};

}  // namespace assay
