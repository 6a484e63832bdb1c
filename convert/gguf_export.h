#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/gguf.h"
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
  std::optional<std::string> name = {};  // general.name; empty: from the folder's name
  std::optional<std::string> pre = {};   // tokenizer.ggml.pre; empty: from tokenizer.json
};

/// How the bytes of one tensor come about.
enum class ExportMethod : uint8_t {
  kCompute,      // not in the source: rope factors
  kCopy,         // the same bytes, perhaps with rows in another order
  kWiden,        // a wider scalar type, exact
  kRound,        // a narrower scalar type
  kQuantize,     // plain numbers into blocks, as llama-quantize does
  kMoveCodes,    // codes moved as they are, no value changes
  kRoundScales,  // codes moved as they are, scales rounded: --allow-requantize
  kRequantize,   // dequantized and encoded anew: --allow-requantize
};
std::string_view export_method_name(ExportMethod method);

/// What a narrower scalar type makes of values that are finite (and NaN); case B51.
struct NarrowingCounts {
  int64_t infinite = 0;
  int64_t zero = 0;
  int64_t subnormal = 0;
  int64_t nan = 0;
};

struct ExportTensor {
  std::string name;         // in GGUF
  std::string source_name;  // in the folder; empty if computed
  Shape shape;
  std::string source_type;  // "W4_ASYM group 128", "BF16"
  const WeightFormat* format = nullptr;
  ExportMethod method = ExportMethod::kCopy;
  std::string note;  // why not exact, or why another type than asked for
  uint64_t bytes = 0;
  NarrowingCounts narrowing;  // kRound to a narrower type
  int64_t n_values = 0;
  int64_t n_changed = 0;  // kRoundScales, kRequantize: values that differ, known after write()

  /// Every value stays the same, bit for bit (−0 counts as +0).
  bool exact() const {
    return method == ExportMethod::kCompute || method == ExportMethod::kCopy ||
           method == ExportMethod::kWiden || method == ExportMethod::kMoveCodes;
  }
};

/// A model folder on its way into a GGUF file: planned in full (types, sizes, everything that
/// would be lost) before a byte is written.
class GgufExport {
 public:
  /// Throws FormatError for a quantized linear whose values would change (every one named, with the
  /// reason and the types that would be exact) unless allow_requantize; NumericError for values
  /// that would become infinite unless allow_infinite; UsageError for options that do not fit.
  GgufExport(std::shared_ptr<const Checkpoint> checkpoint, const GgufExportOptions& options);

  const std::vector<ExportTensor>& tensors() const { return tensors_; }  // in file order
  const GgufMetadata& metadata() const { return metadata_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  uint64_t file_bytes() const;

  /// Writes the file; afterwards tensors() also say how many values changed. `progress` is told
  /// the bytes done and the tensor that is next.
  WrittenFile write(const std::string& path,
                    const std::function<void(uint64_t, const std::string&)>& progress = {});

 private:
  void plan_tensors();
  void plan_linear(const TensorEntry& entry, ExportTensor& tensor);
  void plan_plain(const TensorEntry& entry, const WeightFormat* wanted, ExportTensor& tensor);
  void refuse_losses() const;
  void plan_metadata();
  std::vector<GgufTensorSource> sources(const std::function<void(size_t)>& begin);
  void write_tensor(size_t index, const std::function<void(std::span<const std::byte>)>& sink);

  std::shared_ptr<const Checkpoint> checkpoint_;
  GgufExportOptions options_;
  std::vector<ExportTensor> tensors_;
  std::vector<const TensorEntry*> entries_;  // of each of tensors_; nullptr if computed
  std::vector<GgufExtraTensor> extras_;      // the first of tensors_
  std::vector<std::string> losses_;          // one line per tensor that would change
  GgufMetadata metadata_;
  std::vector<std::string> warnings_;
};

}  // namespace assay
