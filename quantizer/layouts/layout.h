#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"
#include "convert/core/tensor.h"
#include "quantizer/quantize.h"

namespace assay {

/// Shape of one linear that is to be written.
struct LinearShape {
  std::string_view module;  // "model.layers.0.mlp.down_proj"
  int64_t out_features = 0;
  int64_t in_features = 0;
};

/// A tensor of a checkpoint before its bytes exist.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t bytes() const { return static_cast<uint64_t>(n_elements(shape)) * dtype_bytes(dtype); }
};

/// What the configuration says beyond QuantizeOptions.
struct LayoutContext {
  std::vector<std::string> ignore;  // modules of class Linear that stay in 16 bits
  std::string_view program_version;
};

/// One way in which a quantized model lies in a Hugging Face folder (compressed-tensors,
/// GPTQModel). A new one is a file in layouts/ and one row in registry.cpp.
struct CheckpointLayout {
  std::string_view name;         // "compressed-tensors"
  std::string_view description;  // one line for the help
  /// Type in which scales are stored for a model whose weights have `source`.
  DType (*scale_dtype)(DType source);
  /// Throws UsageError if these options cannot be written.
  void (*check)(const QuantizeOptions& options);
  /// Why this linear cannot be written with these options; empty if it can.
  std::string (*find_fault)(const LinearShape& linear, const QuantizeOptions& options);
  /// The tensors that take the place of `<module>.weight`.
  std::vector<TensorSpec> (*tensors)(const LinearShape& linear, const QuantizeOptions& options);
  /// Their bytes, in the order of tensors().
  std::vector<std::vector<std::byte>> (*pack)(const LinearShape& linear,
                                              const QuantizeOptions& options,
                                              const LayerResult& result);
  /// The member `quantization_config` of config.json.
  Json (*config)(const QuantizeOptions& options, const LayoutContext& context);
  /// File that repeats the configuration beside config.json; empty: none.
  std::string_view side_file = {};
  /// Python package that transformers reads the folder with.
  std::string_view python_package = {};
};

std::span<const CheckpointLayout> all_layouts();
/// Throws UsageError with the names that exist.
const CheckpointLayout& find_layout(std::string_view name);

}  // namespace assay
