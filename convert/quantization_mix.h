#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/tensor.h"
#include "convert/formats/format.h"
#include "convert/gguf.h"

namespace assay {

/// A choice of types that has a name of its own among llama-quantize's ("Q4_K_M"): the type of most
/// matrices, and rules by which some get another one. Source: llama.cpp's llama-quant.cpp.
struct QuantizationMix {
  std::string_view name;
  uint32_t file_type;          // general.file_type
  std::string_view base_type;  // of most matrices
};

/// Every mix: those of several types, and each format that GGUF files can be encoded in.
std::span<const QuantizationMix> all_mixes();
/// By name, case-insensitive; Q3_K, Q4_K and Q5_K stand for the _M mixes. nullptr if there is none.
const QuantizationMix* find_mix(std::string_view name);

/// What the rules ask of a model; from the keys of its GGUF file.
struct MixModel {
  std::string architecture;
  int64_t n_layers = 0;  // with layers for the prediction of further tokens
  int64_t n_experts = 0;
  int64_t heads_per_kv_head = 0;  // of the first layer; 0 if it has no attention
  bool is_70b = false;            // 80 layers of a family that has a model of 70 B
};
MixModel mix_model_of(const GgufMetadata& metadata);

struct TypeOverride {
  std::regex pattern;  // searched in the tensor's name
  std::string text;    // as the user wrote it
  const WeightFormat* type = nullptr;
};
/// "REGEX=TYPE". UsageError.
TypeOverride parse_type_override(const std::string& text);

struct MixOptions {
  const QuantizationMix* mix = nullptr;
  bool pure = false;                          // the base type everywhere
  const WeightFormat* output_type = nullptr;  // of output.weight
  const WeightFormat* embedding_type = nullptr;
  std::vector<TypeOverride> overrides = {};  // the first that matches a name wins
  bool has_importance = false;
};

struct MixTensor {
  std::string name;
  Shape shape;
  const WeightFormat* stored = nullptr;
};

struct MixChoice {
  const WeightFormat* format = nullptr;
  bool allowed = false;  // may be quantized at all; else it keeps its type
  /// llama-quantize makes this type only with an importance matrix.
  bool needs_importance = false;
  std::string note;  // why it is not the type that the rules name
};

/// Whether llama-quantize writes tensor `a` before `b`: by layer (none first), then by name.
bool quantized_order(std::string_view a, std::string_view b);

/// The type of every tensor. `tensors` in quantized_order: the rules count them. UsageError for an
/// override that matches no tensor.
std::vector<MixChoice> choose_types(const MixModel& model, std::span<const MixTensor> tensors,
                                    const MixOptions& options);

}  // namespace assay
