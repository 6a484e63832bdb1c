#pragma once

#include <memory>
#include <string>

#include "convert/checkpoint.h"
#include "convert/checkpoint/checkpoint_format.h"
#include "convert/checkpoint/tensor_ledger.h"
#include "convert/core/json.h"

namespace assay {

/// How a folder stores its quantized linears, as its `quantization_config` says.
class QuantizedLayout {
 public:
  virtual ~QuantizedLayout() = default;
  /// The linear `module` with W (rows, columns), or nullptr if it is stored as a plain `.weight`
  /// (or is at fault, which the ledger then knows). Reads headers and index tensors only.
  virtual std::unique_ptr<const TensorOnDisk> open(const std::string& module, int64_t rows,
                                                   int64_t columns, TensorLedger& ledger) const = 0;
};

/// The quantization of a folder: which format, and the layout that its configuration describes.
/// `layout` is null if `config` (config.json) has no quantization_config and no side file is there.
struct FolderQuantization {
  const CheckpointFormat* format = &kPlainFormat;
  std::unique_ptr<QuantizedLayout> layout;
};
FolderQuantization read_quantization(const std::string& folder, const Json& config);

/// Throws UnsupportedError for a group size that is neither the whole row nor a multiple of 32 that
/// divides `columns`, or columns that do not fill 32-bit words. Returns columns per scale.
int64_t check_group_size(const std::string& module, int bits, int64_t group_size, int64_t columns);

/// The group of each column; empty if it is the natural one, column / group_size. Length and range
/// are checked (FormatError by way of the ledger). Case B40.
std::vector<int32_t> read_group_index(const SafetensorsEntry& entry, int64_t columns,
                                      int64_t group_size, TensorLedger& ledger);
/// `matrix` with columns that belong to these groups; as it is for an empty list.
std::unique_ptr<const TensorOnDisk> in_group_order(std::unique_ptr<const TensorOnDisk> matrix,
                                                   std::vector<int32_t> group_of);

}  // namespace assay
