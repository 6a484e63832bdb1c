#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "convert/core/json.h"

namespace assay {

class QuantizedLayout;

/// A program that loads checkpoints of some format.
struct Engine {
  std::string_view name;
  std::string_view note = {};             // what is to be known
  bool by_marlin = false;                 // linears that those kernels do not take are told
  std::string_view asymmetric_note = {};  // in place of it, for models with zero points
};

enum class CheckpointKind : uint8_t { kHuggingFace, kQuantizedFolder, kGguf };

/// A way in which the linears of a checkpoint are stored.
struct CheckpointFormat {
  CheckpointKind kind;
  std::string_view name;  // "GPTQ"
  std::span<const Engine> engines;
  // Of quantized folders:
  std::string_view quant_method = {};  // in quantization_config
  /// The file that holds the configuration in folders whose config.json has none; empty: no file.
  std::string_view side_file = {};
  /// `source` begins every message. Throws FormatError, or UnsupportedError naming what is not
  /// implemented.
  std::unique_ptr<QuantizedLayout> (*read)(const Json& quantization_config,
                                           const std::string& source) = nullptr;

  std::string_view container() const { return kind == CheckpointKind::kGguf ? "file" : "folder"; }
};

extern const CheckpointFormat kPlainFormat;  // a folder of 16- or 32-bit weights
extern const CheckpointFormat kGgufFormat;
/// Those of quantized folders.
std::span<const CheckpointFormat* const> quantized_folder_formats();

}  // namespace assay
