#include "convert/families/decoder_gguf.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "convert/core/error.h"
#include "convert/families/bounds.h"
#include "convert/families/rope_config.h"

namespace assay {

int64_t GgufIntegers::read(const std::string& name, int64_t minimum, int64_t maximum) const {
  const std::optional<int64_t> value = find(name, minimum, maximum);
  if (!value) {
    throw FormatError(fmt::format("{}: \"{}{}\" is missing", file_.path(), prefix_, name));
  }
  return *value;
}

std::optional<int64_t> GgufIntegers::find(const std::string& name, int64_t minimum,
                                          int64_t maximum) const {
  return find_key(prefix_ + name, minimum, maximum);
}

std::optional<int64_t> GgufIntegers::find_key(const std::string& key, int64_t minimum,
                                              int64_t maximum) const {
  const std::optional<int64_t> value = file_.metadata().integer(key);
  if (value && (*value < minimum || *value > maximum)) {
    throw FormatError(fmt::format("{}: \"{}\" is {}; expected an integer from {} to {}",
                                  file_.path(), key, *value, minimum, maximum));
  }
  return value;
}

namespace {

/// Stop ids of the tokenizer keys, and of the list that this project adds where there are several.
std::set<int32_t> stop_ids_gguf(const GgufIntegers& integers, int64_t vocab_size) {
  const GgufFile& file = integers.file();
  std::set<int32_t> ids;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    if (const auto id = integers.find_key(key, 0, vocab_size - 1)) {
      ids.insert(static_cast<int32_t>(*id));
    }
  }
  const GgufValue* list = file.metadata().find("assay.stop_token_ids");
  const auto* array = list == nullptr ? nullptr : std::get_if<GgufArray>(list);
  const auto* values =
      array == nullptr ? nullptr : std::get_if<std::vector<int32_t>>(&array->values);
  if (list != nullptr && values == nullptr) {
    throw FormatError(file.path() + ": \"assay.stop_token_ids\" is no array of int32");
  }
  if (values == nullptr) return ids;
  for (const int32_t id : *values) {
    if (id < 0 || id >= vocab_size) {
      throw FormatError(fmt::format("{}: \"assay.stop_token_ids\" holds {}; expected 0 to {}",
                                    file.path(), id, vocab_size - 1));
    }
    ids.insert(id);
  }
  return ids;
}

}  // namespace

ModelSpec read_decoder_sizes_gguf(const GgufIntegers& integers, const std::string& family) {
  const GgufFile& file = integers.file();
  ModelSpec spec;
  spec.family = family;
  spec.hidden_size = integers.read("embedding_length", 1, kMaxHidden);
  spec.context_length = integers.read("context_length", 1, kMaxContext);
  const std::string eps_key = integers.prefix() + "attention.layer_norm_rms_epsilon";
  const std::optional<double> eps = file.metadata().number(eps_key);
  if (!eps || !(*eps >= 0.0 && *eps <= kMaxEps)) {
    throw FormatError(fmt::format("{}: \"{}\" is {}; expected a number from 0 to {}", file.path(),
                                  eps_key, eps ? fmt::format("{}", *eps) : "missing", kMaxEps));
  }
  spec.rms_norm_eps = *eps;
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    throw FormatError(file.path() + ": there is no matrix \"token_embd.weight\"");
  }
  spec.vocab_size = embedding->shape[0];
  if (const auto size = integers.find("vocab_size", 1, kMaxVocabulary);
      size.value_or(spec.vocab_size) != spec.vocab_size) {
    throw FormatError(fmt::format("{}: \"{}vocab_size\" is {}, \"token_embd.weight\" has {} rows",
                                  file.path(), integers.prefix(), *size, spec.vocab_size));
  }
  spec.tied_head = file.find("output.weight") == nullptr;
  if (const auto bos = integers.find_key("tokenizer.ggml.bos_token_id", 0, spec.vocab_size - 1)) {
    spec.bos_id = static_cast<int32_t>(*bos);
  }
  const std::set<int32_t> stop_ids = stop_ids_gguf(integers, spec.vocab_size);
  spec.stop_ids.assign(stop_ids.begin(), stop_ids.end());
  return spec;
}

int64_t read_layer_count_gguf(const GgufIntegers& integers) {
  return integers.read("block_count", 1, kMaxLayers);
}

AttentionSpec read_heads_gguf(const GgufIntegers& integers, int64_t hidden_size) {
  const GgufFile& file = integers.file();
  const std::string& prefix = integers.prefix();
  AttentionSpec attention;
  const int64_t n_heads = integers.read("attention.head_count", 1, kMaxHeads);
  const int64_t n_kv_heads =
      integers.find("attention.head_count_kv", 1, kMaxHeads).value_or(n_heads);
  if (n_heads % n_kv_heads != 0) {
    throw FormatError(
        fmt::format("{}: \"{}attention.head_count_kv\" is {}; expected a divisor of the {} heads",
                    file.path(), prefix, n_kv_heads, n_heads));
  }
  const std::optional<int64_t> key_length = integers.find("attention.key_length", 2, kMaxHeadDim);
  if (!key_length && hidden_size % n_heads != 0) {
    throw FormatError(
        fmt::format("{}: \"{}embedding_length\" {} is no multiple of the {} heads, and "
                    "\"{}attention.key_length\" is missing",
                    file.path(), prefix, hidden_size, n_heads, prefix));
  }
  const int64_t head_dim = key_length.value_or(hidden_size / n_heads);
  if (head_dim < 2 || head_dim % 2 != 0) {
    throw FormatError(
        fmt::format("{}: heads of {} values; expected an even number", file.path(), head_dim));
  }
  const int64_t value_length =
      integers.find("attention.value_length", 1, kMaxHeadDim).value_or(head_dim);
  if (value_length != head_dim) {
    throw UnsupportedError(
        fmt::format("{}: \"{}attention.value_length\" is {}; only the head size {} is supported",
                    file.path(), prefix, value_length, head_dim));
  }
  attention.n_heads = static_cast<int>(n_heads);
  attention.n_kv_heads = static_cast<int>(n_kv_heads);
  attention.head_dim = static_cast<int>(head_dim);
  attention.scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  return attention;
}

double read_number_gguf(const GgufFile& file, const std::string& key, double minimum,
                        double maximum, double fallback) {
  const double value = file.metadata().number(key).value_or(fallback);
  if (!(value >= minimum && value <= maximum)) {
    throw FormatError(fmt::format("{}: \"{}\" is {}; expected a number from {} to {}", file.path(),
                                  key, value, minimum, maximum));
  }
  return value;
}

std::vector<bool> read_layer_flags_gguf(const GgufIntegers& integers, const std::string& name,
                                        int64_t n_layers) {
  const GgufValue* value = integers.file().metadata().find(integers.prefix() + name);
  const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  const auto* flags = array == nullptr ? nullptr : std::get_if<std::vector<bool>>(&array->values);
  if (flags == nullptr || static_cast<int64_t>(flags->size()) != n_layers) {
    throw FormatError(fmt::format("{}: \"{}{}\" is {}; expected {} booleans",
                                  integers.file().path(), integers.prefix(), name,
                                  value == nullptr ? "missing" : "something else", n_layers));
  }
  return *flags;
}

void refuse_keys_gguf(const GgufIntegers& integers, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (integers.find(name, 0, kMaxContext).value_or(0) == 0) continue;
    throw UnsupportedError(fmt::format("{}: models with \"{}{}\" are not supported",
                                       integers.file().path(), integers.prefix(), name));
  }
}

void write_dense_gguf(const ModelSpec& spec, std::string_view architecture, uint32_t file_type,
                      GgufMetadata& metadata) {
  const LayerSpec& layer = spec.layers.front();
  const AttentionSpec& attention = layer.attention;
  GgufKeys keys(std::string(architecture), metadata);
  keys.count("block_count", static_cast<int64_t>(spec.layers.size()));
  keys.count("context_length", spec.context_length);
  keys.count("embedding_length", spec.hidden_size);
  keys.count("feed_forward_length", layer.mlp.intermediate_size);
  keys.count("attention.head_count", attention.n_heads);
  keys.count("attention.head_count_kv", attention.n_kv_heads);
  write_rope_scaling_gguf(attention.rope, architecture, metadata);
  keys.number("rope.freq_base", attention.rope.theta);
  keys.number("attention.layer_norm_rms_epsilon", spec.rms_norm_eps);
  keys.count("attention.key_length", attention.head_dim);
  keys.count("attention.value_length", attention.head_dim);
  metadata.set("general.file_type", file_type);
}

ModelSpec read_dense_gguf(const GgufIntegers& integers, const std::string& family,
                          bool has_experts) {
  if (!has_experts) refuse_keys_gguf(integers, {"expert_count"});
  refuse_keys_gguf(integers, {"attention.sliding_window"});
  ModelSpec spec = read_decoder_sizes_gguf(integers, family);
  LayerSpec layer;
  layer.attention = read_heads_gguf(integers, spec.hidden_size);
  const GgufFile& file = integers.file();
  const int64_t rotary_dims =
      integers.find("rope.dimension_count", 1, kMaxHeadDim).value_or(layer.attention.head_dim);
  if (rotary_dims != layer.attention.head_dim) {
    throw UnsupportedError(
        fmt::format("{}: \"{}rope.dimension_count\" is {}; only the head size {} is supported",
                    file.path(), integers.prefix(), rotary_dims, layer.attention.head_dim));
  }
  const std::string architecture = integers.prefix().substr(0, integers.prefix().size() - 1);
  layer.attention.rope =
      read_rope_gguf(file, architecture, layer.attention.head_dim, spec.context_length);
  layer.attention.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  layer.attention.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  layer.mlp.intermediate_size = integers.read("feed_forward_length", 1, kMaxIntermediate);
  spec.layers.assign(static_cast<size_t>(read_layer_count_gguf(integers)), layer);
  return spec;
}

std::vector<GgufExtraTensor> no_gguf_extras(const ModelSpec&) { return {}; }

std::string no_gguf_warning(const ModelSpec&) { return {}; }

std::string gguf_window_warning(const ModelSpec& spec) {
  std::optional<int64_t> least;
  for (const LayerSpec& layer : spec.layers) {
    const std::optional<int64_t> window = layer.attention.sliding_window;
    if (window && *window < spec.context_length && (!least || *window < *least)) least = window;
  }
  if (!least) return {};
  return fmt::format(
      "the architecture {} of GGUF has no key for the sliding window of {} tokens: runs agree "
      "with the Hugging Face model only up to {} tokens",
      spec.family, *least, *least);
}

}  // namespace assay
