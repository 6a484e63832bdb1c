#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/core/json.h"
#include "convert/core/tensor.h"

namespace assay::test {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

/// Bytes of a safetensors file, by a writer of the tests' own: tensors one after another in the
/// given order.
std::string safetensors_bytes(const std::vector<NamedTensor>& tensors);

struct TinyModelOptions {
  std::string model_type = "llama";
  int64_t vocab_size = 320;
  int64_t hidden_size = 64;
  int64_t intermediate_size = 96;
  int64_t n_layers = 2;
  int64_t n_heads = 4;
  int64_t n_kv_heads = 2;
  std::optional<int64_t> head_dim = {};  // empty: not in config.json, hidden_size / n_heads
  bool tied_head = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  /// Members that are added to config.json, or replace those of the same name.
  Json::Object config = {};
  DType dtype = DType::kBF16;
  uint64_t seed = 1;
};

/// A Hugging Face folder in memory, which tests may change before they write it.
struct TinyModel {
  Json config;
  Json generation_config;  // null: not written
  /// tokenizer.json: byte-level BPE with the split rule of Llama 3: 3 special tokens (0 <|bos|>,
  /// 1 <|eos|>, 2 <|pad|>), the 256 bytes, then merges. Not written where empty.
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::vector<NamedTensor> tensors;

  Tensor& tensor(std::string_view name);
  bool has(std::string_view name) const;
  void rename(std::string_view from, std::string_view to);
  void erase(std::string_view name);
  void add(std::string name, Tensor tensor) {
    tensors.push_back({std::move(name), std::move(tensor)});
  }

  /// Writes the folder (which may exist): config.json, model.safetensors, or `n_shards` shards with
  /// their index. Returns `folder`.
  std::string write(const std::string& folder, int n_shards = 1) const;
};

/// A Llama or Mistral with random weights that depend on the options alone.
TinyModel make_tiny_model(const TinyModelOptions& options = {});

/// tokenizer.json of pieces: four special tokens (2 <bos>, 3 <unk>), spaces as U+2581, letters and
/// some merges.
std::string piece_tokenizer_json();

/// The tiny random models of tests/data/families, by the names of their folders, ascending:
/// scripts/make_family_models.py. A family may have several.
std::vector<std::string> family_models();
std::string family_model_path(std::string_view name);

/// A folder with one safetensors file, to be changed and written elsewhere. Its tokenizer files are
/// not read.
TinyModel read_model(const std::string& folder);

struct TinyQuantization {
  int bits = 4;
  bool symmetric = true;
  int64_t group_size = 32;  // −1: whole row
  DType scale_dtype = DType::kBF16;
  /// Bits of the scales that may be other than zero: 8 for any bf16, fewer for scales whose
  /// products with zero points are short, too.
  int scale_bits = 8;
  uint64_t seed = 2;
};

/// Replaces every linear of the layers by random codes, scales and zero points in the manner of
/// compressed-tensors pack-quantized, and adds its quantization_config.
void quantize_as_compressed_tensors(TinyModel& model, const TinyQuantization& quantization);
/// The same numbers as GPTQ version 1 (zero points 1 … 2^bits − 1).
void quantize_as_gptq(TinyModel& model, const TinyQuantization& quantization);

/// The same numbers as AWQ, layout gemm; 4 bits.
void quantize_as_awq(TinyModel& model, const TinyQuantization& quantization);
/// GPTQ version 1 in activation order: column k of `columns` belongs to group
/// `group_of(k, columns, n_groups)`.
void set_group_index(TinyModel& model,
                     int32_t (*group_of)(int64_t k, int64_t columns, int64_t n_groups));

/// A tensor from its elements; T is the element type that the dtype has in memory.
template <class T>
Tensor tensor_of(DType dtype, Shape shape, const std::vector<T>& values) {
  Tensor tensor{dtype, std::move(shape), {}};
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  tensor.bytes.assign(bytes, bytes + values.size() * sizeof(T));
  return tensor;
}

}  // namespace assay::test
