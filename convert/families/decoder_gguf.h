#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/families/family.h"
#include "convert/gguf.h"
#include "convert/model_spec.h"

namespace assay {

// The keys that GGUF files of every decoder family share: "<architecture>.block_count" and so on
// (llama.cpp's convert_hf_to_gguf.py).

/// Reads integer keys of one architecture with their bounds.
class GgufIntegers {
 public:
  /// `file` must outlive the object.
  GgufIntegers(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  /// "<architecture>.<name>" in [minimum, maximum]. Throws FormatError if missing or outside.
  int64_t read(const std::string& name, int64_t minimum, int64_t maximum) const;
  std::optional<int64_t> find(const std::string& name, int64_t minimum, int64_t maximum) const;
  /// The same for a key given in full.
  std::optional<int64_t> find_key(const std::string& key, int64_t minimum, int64_t maximum) const;
  const GgufFile& file() const { return file_; }
  const std::string& prefix() const { return prefix_; }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

/// family, sizes, eps, tied head, special ids; layers stay empty.
ModelSpec read_decoder_sizes_gguf(const GgufIntegers& integers, const std::string& family);
/// block_count.
int64_t read_layer_count_gguf(const GgufIntegers& integers);
/// head_count, head_count_kv, key_length; value_length must equal it. Scale 1/sqrt(head_dim).
AttentionSpec read_heads_gguf(const GgufIntegers& integers, int64_t hidden_size);
/// The number of a key given in full, in [minimum, maximum], or the fallback.
double read_number_gguf(const GgufFile& file, const std::string& key, double minimum,
                        double maximum, double fallback);
/// An array of booleans with one element per layer. FormatError if it is missing or another thing.
std::vector<bool> read_layer_flags_gguf(const GgufIntegers& integers, const std::string& name,
                                        int64_t n_layers);
/// Throws UnsupportedError for a key that is there and not 0.
void refuse_keys_gguf(const GgufIntegers& integers, std::initializer_list<const char*> names);

/// Sets "<architecture>.<name>".
class GgufKeys {
 public:
  GgufKeys(std::string architecture, GgufMetadata& metadata)
      : prefix_(std::move(architecture) + "."), metadata_(metadata) {}
  void count(const std::string& name, int64_t value) {
    metadata_.set(prefix_ + name, static_cast<uint32_t>(value));
  }
  void number(const std::string& name, double value) {
    metadata_.set(prefix_ + name, static_cast<float>(value));
  }
  void set(const std::string& name, GgufValue value) {
    metadata_.set(prefix_ + name, std::move(value));
  }

 private:
  std::string prefix_;
  GgufMetadata& metadata_;
};

/// Metadata of a dense decoder whose layers are alike, rotated in halves (NEOX).
void write_dense_gguf(const ModelSpec& spec, std::string_view architecture, uint32_t file_type,
                      GgufMetadata& metadata);
/// And back, with the biases of attention that the file has; other biases and the norms of q and k
/// are the family's to add, and so are experts, which are refused unless it has them.
ModelSpec read_dense_gguf(const GgufIntegers& integers, const std::string& family,
                          bool has_experts = false);
/// Family::gguf_extra_tensors of architectures without any.
std::vector<GgufExtraTensor> no_gguf_extras(const ModelSpec& spec);
/// Family::gguf_warning of architectures whose keys say everything.
std::string no_gguf_warning(const ModelSpec& spec);
/// Family::gguf_warning of architectures without a key for the sliding window.
std::string gguf_window_warning(const ModelSpec& spec);

}  // namespace assay
