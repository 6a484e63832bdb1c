#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "convert/gguf.h"
#include "convert/importance.h"
#include "convert/quantization_mix.h"

namespace assay {

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

/// How a file is cut into parts.
struct GgufSplit {
  uint64_t max_bytes = 0;        // of the tensors of a part; 0: one file
  std::vector<int64_t> part_of;  // of each tensor, ascending; empty: by max_bytes
};

/// A GGUF file about to be written: planned in full (types, sizes, everything that would be lost)
/// before a byte is. Derived classes know where the tensors come from.
class GgufPlan {
 public:
  virtual ~GgufPlan() = default;
  GgufPlan(const GgufPlan&) = delete;
  GgufPlan& operator=(const GgufPlan&) = delete;

  const std::vector<ExportTensor>& tensors() const { return tensors_; }  // in file order
  const GgufMetadata& metadata() const { return metadata_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Tensors whose type llama-quantize makes only with an importance matrix, of which there is
  /// none for them.
  const std::vector<std::string>& missing_importance() const { return missing_importance_; }

  uint64_t file_bytes() const;  // of all parts together
  /// How many files write() makes, and their paths.
  std::vector<std::string> paths(const std::string& path) const;

  using Progress = std::function<void(uint64_t, const std::string&)>;
  /// Writes the file, or its parts; afterwards tensors() also say how many values changed.
  /// `progress` is told the bytes done and the tensor that is written, every few MiB, perhaps on
  /// another thread; what it throws ends the writing.
  /// Throws UsageError while missing_importance() has entries.
  std::vector<WrittenGguf> write_parts(const std::string& path, const Progress& progress = {});
  /// The same for a plan of one file.
  WrittenGguf write(const std::string& path, const Progress& progress = {});

 protected:
  GgufPlan() = default;
  /// Rows of tensors_[index] if they are in the source as they will be in the file.
  virtual std::optional<StoredRows> stored_rows(size_t index) const = 0;
  /// Makes the bytes of another one.
  virtual void write_tensor(size_t index,
                            const std::function<void(std::span<const std::byte>)>& sink) = 0;

  /// Types of all tensors_ by the rules of a mix; metadata_ describes the model. Sets format,
  /// method, note and importance of those that get another type than they have (`stored`, of each
  /// of tensors_), file_type and the quantize.imatrix keys.
  void apply_mix(const MixOptions& options, const std::vector<const WeightFormat*>& stored,
                 const std::shared_ptr<const ImportanceMatrix>& importance);
  void count_bytes();  // fills n_values and bytes of tensors_
  /// Importance of the rows [0, n) of a matrix of tensors_[index]; empty if there is none.
  std::span<const float> importance_of(size_t index, int64_t matrix) const;

  std::vector<ExportTensor> tensors_;
  GgufMetadata metadata_;
  std::vector<std::string> warnings_;
  GgufSplit split_;

 private:
  std::vector<int64_t> part_of_tensors() const;
  void find_importance(size_t index, bool needed);

  std::vector<std::string> missing_importance_;
  std::shared_ptr<const ImportanceMatrix> importance_matrix_;
  std::vector<const Importance*> importance_;  // of each of tensors_, or empty
};

}  // namespace assay
