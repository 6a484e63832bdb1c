#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"
#include "convert/families/tensor_entry.h"
#include "convert/gguf.h"
#include "convert/model_spec.h"

namespace assay {

/// A tensor that only GGUF has (rope_freqs.weight), computed from the spec.
struct GgufExtraTensor {
  std::string name;
  std::vector<float> values;  // 1-D, F32
};

class ConfigMembers;

/// One model family: plain functions, no state. A new family is one file and one row in
/// registry.cpp.
struct Family {
  std::string_view name;                          // "llama"
  std::span<const std::string_view> model_types;  // config.json model_type values
  std::string_view gguf_architecture;             // general.architecture
  /// tokenizer.ggml.model where tokens are pieces of text (tokenizer/vocabulary_kind.h).
  std::string_view gguf_pieces = "llama";
  /// Reads and range-checks config.json (and generation_config.json, null if absent).
  /// Throws FormatError or UnsupportedError naming the key, what was found and what is allowed.
  ModelSpec (*read_config)(const Json& config, const Json& generation_config);
  /// The same from GGUF metadata.
  ModelSpec (*read_gguf)(const GgufFile& file);
  /// Every tensor in canonical order (embedding, layers ascending, norm, head).
  std::vector<TensorEntry> (*tensors)(const ModelSpec& spec);
  /// The tensors of spec.n_prediction_blocks blocks; their layers count on from the model's. None:
  /// GGUF files of this family have no such blocks.
  std::vector<TensorEntry> (*prediction_tensors)(const ModelSpec& spec) = [](const ModelSpec&) {
    return std::vector<TensorEntry>();
  };
  /// Appends the `<arch>.*` keys, and `general.file_type` with `file_type` among them, in the order
  /// that the field's converter writes them. Throws UnsupportedError for what GGUF cannot say.
  void (*write_gguf_metadata)(const ModelSpec& spec, const Json& config, uint32_t file_type,
                              GgufMetadata& metadata);
  /// Adds to the config.json of a model that `file` holds what set_decoder_sizes (config_writer.h)
  /// has not said yet: class, layers, heads, rope. read_config must read the same spec from it.
  /// Throws UnsupportedError for what config.json cannot say.
  void (*write_config)(const ModelSpec& spec, const GgufFile& file, ConfigMembers& config);
  std::vector<GgufExtraTensor> (*gguf_extra_tensors)(const ModelSpec& spec);
  /// Why some run of this model in GGUF would differ from the Hugging Face one (Mistral's window);
  /// empty if it does not.
  std::string (*gguf_warning)(const ModelSpec& spec);
  /// Whether a tensor of a Hugging Face file is known to be of no use (old rotary caches).
  bool (*ignores_tensor)(std::string_view hf_name);
};

/// Every family.
std::span<const Family* const> all_families();
/// Throws UnsupportedError listing the known ones.
const Family& find_family_by_model_type(std::string_view model_type);
const Family& find_family_by_architecture(std::string_view gguf_architecture);
const Family& find_family(std::string_view name);

}  // namespace assay
