#pragma once

#include <memory>
#include <string>

#include "convert/checkpoint.h"
#include "convert/checkpoint/tensor_ledger.h"
#include "convert/core/json.h"

namespace assay {

/// How a folder stores its quantized linears, as its `quantization_config` says.
class QuantizedLayout {
 public:
  virtual ~QuantizedLayout() = default;
  virtual CheckpointKind kind() const = 0;
  /// The linear `module` with W (rows, columns), or nullptr if it is stored as a plain `.weight`
  /// (or is at fault, which the ledger then knows). Reads headers and index tensors only.
  virtual std::unique_ptr<const TensorOnDisk> open(const std::string& module, int64_t rows,
                                                   int64_t columns, TensorLedger& ledger) const = 0;
};

/// `quantization_config` of compressed-tensors, format pack-quantized, 3, 4 and 8 bits, per group
/// or per row. Throws FormatError, or UnsupportedError naming what is not implemented. Source:
/// formats.md §3.2.
std::unique_ptr<QuantizedLayout> read_compressed_tensors_config(const Json& json,
                                                                const std::string& source);

/// `quantization_config` of GPTQ, versions 1 and 2, 3, 4 and 8 bits. Source: formats.md §3.3.
std::unique_ptr<QuantizedLayout> read_gptq_config(const Json& json, const std::string& source);

/// `quantization_config` of AWQ, layout gemm, 4 bits with zero points. Source: formats.md §3.4.
std::unique_ptr<QuantizedLayout> read_awq_config(const Json& json, const std::string& source);

/// Chooses by `quant_method`.
std::unique_ptr<QuantizedLayout> read_quantization_config(const Json& json,
                                                          const std::string& source);

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
