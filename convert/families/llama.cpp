// Llama 2 and 3, Mistral, SmolLM2: architectures.md §2.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "convert/core/error.h"
#include "convert/families/config_reader.h"
#include "convert/families/family.h"
#include "convert/families/rope_config.h"

namespace assay {
namespace {

// Bounds of what is read from files. They are far above every model that exists and keep each
// product of two below 2^63.
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxHidden = int64_t{1} << 20;
constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxContext = int64_t{1} << 31;
constexpr double kMaxEps = 1.0;

constexpr std::string_view kModelTypes[] = {"llama", "mistral"};
constexpr std::string_view kArchitecture = "llama";

/// Ids under `key`: absent, an integer, or a list of integers.
std::set<int32_t> token_ids(const ConfigReader& config, std::string_view key, int64_t vocab_size) {
  std::set<int32_t> ids;
  const Json* value = config.find(key);
  if (value == nullptr) return ids;
  const auto add = [&](const Json& id) {
    if (!id.is_integer()) config.fail(key, "a token id or a list of token ids");
    const int64_t number = id.as_integer();
    if (number < 0 || number >= vocab_size) {
      config.fail(key, fmt::format("token ids from 0 to {}", vocab_size - 1));
    }
    ids.insert(static_cast<int32_t>(number));
  };
  if (value->is_array()) {
    for (const Json& id : value->as_array()) add(id);
  } else {
    add(*value);
  }
  return ids;
}

/// −1 and the like mean "none" in old configs; only ids inside the vocabulary count.
std::optional<int32_t> bos_of(const ConfigReader& config, int64_t vocab_size) {
  const Json* value = config.find("bos_token_id");
  if (value == nullptr || (value->is_integer() && value->as_integer() == -1)) return std::nullopt;
  const std::set<int32_t> ids = token_ids(config, "bos_token_id", vocab_size);
  if (ids.empty()) return std::nullopt;
  return *ids.begin();
}

void check_activation(const ConfigReader& config) {
  const std::string activation = config.text_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    throw UnsupportedError(
        fmt::format("{}: hidden_act \"{}\" is not supported for this model type; silu is",
                    config.source(), activation));
  }
}

/// Heads and their size; every later division and product relies on these checks.
AttentionSpec read_attention(const ConfigReader& config, bool is_mistral, int64_t hidden_size,
                             int64_t context_length) {
  AttentionSpec attention;
  const int64_t n_heads = config.integer("num_attention_heads", 1, kMaxHeads);
  const int64_t n_kv_heads =
      config.integer_or("num_key_value_heads", 1, kMaxHeads, is_mistral ? 8 : n_heads);
  if (n_heads % n_kv_heads != 0) {
    config.fail("num_key_value_heads",
                fmt::format("a divisor of num_attention_heads ({})", n_heads));
  }
  if (!config.has("head_dim") && hidden_size % n_heads != 0) {
    config.fail("hidden_size",
                fmt::format("a multiple of num_attention_heads ({}), or head_dim", n_heads));
  }
  const int64_t head_dim = config.integer_or("head_dim", 2, kMaxHeadDim, hidden_size / n_heads);
  if (head_dim < 2 || head_dim % 2 != 0) config.fail("head_dim", "an even number");
  attention.n_heads = static_cast<int>(n_heads);
  attention.n_kv_heads = static_cast<int>(n_kv_heads);
  attention.head_dim = static_cast<int>(head_dim);
  attention.scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  attention.qkv_bias = attention.o_bias = config.boolean_or("attention_bias", false);
  attention.rope = read_rope_config(config, attention.head_dim, context_length);
  if (is_mistral) {
    // Absent means the default of the model class; null means none.
    const Json* window = config.find("sliding_window");
    if (window != nullptr) {
      attention.sliding_window = config.integer("sliding_window", 1, kMaxContext);
    }
  }
  return attention;
}

ModelSpec read_config(const Json& json, const Json& generation_json) {
  const ConfigReader config(json, "config.json");
  const bool is_mistral = config.text("model_type") == "mistral";
  check_activation(config);

  ModelSpec spec;
  spec.family = "llama";
  spec.vocab_size = config.integer("vocab_size", 1, kMaxVocabulary);
  spec.hidden_size = config.integer("hidden_size", 1, kMaxHidden);
  spec.context_length =
      config.integer_or("max_position_embeddings", 1, kMaxContext, is_mistral ? 131072 : 2048);
  spec.rms_norm_eps = config.number_or("rms_norm_eps", 0.0, kMaxEps, 1e-6);
  spec.tied_head = config.boolean_or("tie_word_embeddings", false);

  LayerSpec layer;
  layer.attention = read_attention(config, is_mistral, spec.hidden_size, spec.context_length);
  if (is_mistral && json.find("sliding_window") == nullptr) layer.attention.sliding_window = 4096;
  layer.mlp.intermediate_size = config.integer("intermediate_size", 1, kMaxIntermediate);
  layer.mlp.bias = !is_mistral && config.boolean_or("mlp_bias", false);
  if (is_mistral) layer.attention.qkv_bias = layer.attention.o_bias = false;
  spec.layers.assign(static_cast<size_t>(config.integer("num_hidden_layers", 1, kMaxLayers)),
                     layer);

  spec.bos_id = bos_of(config, spec.vocab_size);
  std::set<int32_t> stop_ids = token_ids(config, "eos_token_id", spec.vocab_size);
  if (!generation_json.is_null()) {
    const ConfigReader generation(generation_json, "generation_config.json");
    stop_ids.merge(token_ids(generation, "eos_token_id", spec.vocab_size));
  }
  spec.stop_ids.assign(stop_ids.begin(), stop_ids.end());
  return spec;
}

// ---------------------------------------------------------------------------------------------

std::vector<TensorEntry> tensors(const ModelSpec& spec) {
  std::vector<TensorEntry> table;
  const int64_t hidden = spec.hidden_size;
  const auto add = [&table](Role role, int layer, std::string hf, std::string gguf, Shape shape) {
    TensorEntry entry;
    entry.role = role;
    entry.layer = layer;
    entry.hf_name = std::move(hf);
    entry.gguf_name = std::move(gguf);
    entry.shape = std::move(shape);
    table.push_back(std::move(entry));
  };

  add(Role::kTokenEmbedding, -1, "model.embed_tokens.weight", "token_embd.weight",
      {spec.vocab_size, hidden});
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& attention = spec.layers[i].attention;
    const MlpSpec& mlp = spec.layers[i].mlp;
    const auto layer = static_cast<int>(i);
    const int64_t q_rows = int64_t{attention.n_heads} * attention.head_dim;
    const int64_t kv_rows = int64_t{attention.n_kv_heads} * attention.head_dim;
    const std::string hf = fmt::format("model.layers.{}.", i);
    const std::string gguf = fmt::format("blk.{}.", i);
    const auto linear = [&](Role role, Role bias_role, const char* hf_module,
                            const char* gguf_module, int64_t rows, int64_t columns, bool bias,
                            int rope_heads) {
      const GgufTransform transform =
          rope_heads > 0 ? GgufTransform::kInterleaveRope : GgufTransform::kNone;
      add(role, layer, hf + hf_module + ".weight", gguf + gguf_module + ".weight", {rows, columns});
      table.back().quantizable = true;
      table.back().gguf_transform = transform;
      table.back().n_heads = rope_heads;
      if (!bias) return;
      add(bias_role, layer, hf + hf_module + ".bias", gguf + gguf_module + ".bias", {rows});
      table.back().gguf_transform = transform;
      table.back().n_heads = rope_heads;
    };
    add(Role::kAttentionNorm, layer, hf + "input_layernorm.weight", gguf + "attn_norm.weight",
        {hidden});
    linear(Role::kQProj, Role::kQBias, "self_attn.q_proj", "attn_q", q_rows, hidden,
           attention.qkv_bias, attention.n_heads);
    linear(Role::kKProj, Role::kKBias, "self_attn.k_proj", "attn_k", kv_rows, hidden,
           attention.qkv_bias, attention.n_kv_heads);
    linear(Role::kVProj, Role::kVBias, "self_attn.v_proj", "attn_v", kv_rows, hidden,
           attention.qkv_bias, 0);
    linear(Role::kOProj, Role::kOBias, "self_attn.o_proj", "attn_output", hidden, q_rows,
           attention.o_bias, 0);
    add(Role::kMlpNorm, layer, hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight",
        {hidden});
    linear(Role::kGateProj, Role::kGateBias, "mlp.gate_proj", "ffn_gate", mlp.intermediate_size,
           hidden, mlp.bias, 0);
    linear(Role::kUpProj, Role::kUpBias, "mlp.up_proj", "ffn_up", mlp.intermediate_size, hidden,
           mlp.bias, 0);
    linear(Role::kDownProj, Role::kDownBias, "mlp.down_proj", "ffn_down", hidden,
           mlp.intermediate_size, mlp.bias, 0);
  }
  add(Role::kOutputNorm, -1, "model.norm.weight", "output_norm.weight", {hidden});
  if (!spec.tied_head) {
    add(Role::kHead, -1, "lm_head.weight", "output.weight", {spec.vocab_size, hidden});
  }
  return table;
}

bool ignores_tensor(std::string_view hf_name) {
  return hf_name.starts_with("model.layers.") && hf_name.ends_with(".rotary_emb.inv_freq");
}

// ---------------------------------------------------------------------------------------------

void write_gguf_metadata(const ModelSpec& spec, const Json&, uint32_t file_type,
                         GgufMetadata& metadata) {
  const LayerSpec& layer = spec.layers.front();
  const AttentionSpec& attention = layer.attention;
  const auto count = [](int64_t value) { return static_cast<uint32_t>(value); };
  metadata.set("llama.block_count", count(static_cast<int64_t>(spec.layers.size())));
  metadata.set("llama.context_length", count(spec.context_length));
  metadata.set("llama.embedding_length", count(spec.hidden_size));
  metadata.set("llama.feed_forward_length", count(layer.mlp.intermediate_size));
  metadata.set("llama.attention.head_count", count(attention.n_heads));
  metadata.set("llama.attention.head_count_kv", count(attention.n_kv_heads));
  write_rope_scaling_gguf(attention.rope, kArchitecture, metadata);
  metadata.set("llama.rope.freq_base", static_cast<float>(attention.rope.theta));
  metadata.set("llama.attention.layer_norm_rms_epsilon", static_cast<float>(spec.rms_norm_eps));
  metadata.set("llama.attention.key_length", count(attention.head_dim));
  metadata.set("llama.attention.value_length", count(attention.head_dim));
  metadata.set("general.file_type", file_type);
  metadata.set("llama.vocab_size", count(spec.vocab_size));
  metadata.set("llama.rope.dimension_count", count(attention.rope.rotary_dims));
}

std::vector<GgufExtraTensor> gguf_extra_tensors(const ModelSpec& spec) {
  const RopeSpec& rope = spec.layers.front().attention.rope;
  if (rope.kind != RopeSpec::Kind::kLlama3) return {};
  return {{"rope_freqs.weight", llama3_frequency_factors(rope)}};
}

std::string gguf_warning(const ModelSpec& spec) {
  const std::optional<int64_t> window = spec.layers.front().attention.sliding_window;
  if (!window || *window >= spec.context_length) return {};
  return fmt::format(
      "the architecture llama of GGUF has no key for the sliding window of {} tokens: runs agree "
      "with the Hugging Face model only up to {} tokens",
      *window, *window);
}

// ---------------------------------------------------------------------------------------------

/// Reads one integer key of a GGUF file with its bounds.
class GgufIntegers {
 public:
  explicit GgufIntegers(const GgufFile& file) : file_(file) {}

  int64_t read(const std::string& key, int64_t minimum, int64_t maximum) const {
    const std::optional<int64_t> value = find(key, minimum, maximum);
    if (!value) throw FormatError(fmt::format("{}: \"{}\" is missing", file_.path(), key));
    return *value;
  }

  std::optional<int64_t> find(const std::string& key, int64_t minimum, int64_t maximum) const {
    const std::optional<int64_t> value = file_.metadata().integer(key);
    if (value && (*value < minimum || *value > maximum)) {
      throw FormatError(fmt::format("{}: \"{}\" is {}; expected an integer from {} to {}",
                                    file_.path(), key, *value, minimum, maximum));
    }
    return value;
  }

 private:
  const GgufFile& file_;
};

AttentionSpec read_attention_gguf(const GgufFile& file, int64_t hidden_size,
                                  int64_t context_length) {
  const GgufIntegers integers(file);
  AttentionSpec attention;
  const int64_t n_heads = integers.read("llama.attention.head_count", 1, kMaxHeads);
  const int64_t n_kv_heads =
      integers.find("llama.attention.head_count_kv", 1, kMaxHeads).value_or(n_heads);
  if (n_heads % n_kv_heads != 0) {
    throw FormatError(fmt::format(
        "{}: \"llama.attention.head_count_kv\" is {}; expected a divisor of the {} heads",
        file.path(), n_kv_heads, n_heads));
  }
  const std::optional<int64_t> key_length =
      integers.find("llama.attention.key_length", 2, kMaxHeadDim);
  if (!key_length && hidden_size % n_heads != 0) {
    throw FormatError(
        fmt::format("{}: \"llama.embedding_length\" {} is no multiple of the {} heads, and "
                    "\"llama.attention.key_length\" is missing",
                    file.path(), hidden_size, n_heads));
  }
  const int64_t head_dim = key_length.value_or(hidden_size / n_heads);
  if (head_dim < 2 || head_dim % 2 != 0) {
    throw FormatError(
        fmt::format("{}: heads of {} values; expected an even number", file.path(), head_dim));
  }
  const auto same_as_head = [&](const std::string& key) {
    const int64_t value = integers.find(key, 1, kMaxHeadDim).value_or(head_dim);
    if (value != head_dim) {
      throw UnsupportedError(fmt::format("{}: \"{}\" is {}; only the head size {} is supported",
                                         file.path(), key, value, head_dim));
    }
  };
  same_as_head("llama.attention.value_length");
  same_as_head("llama.rope.dimension_count");
  attention.n_heads = static_cast<int>(n_heads);
  attention.n_kv_heads = static_cast<int>(n_kv_heads);
  attention.head_dim = static_cast<int>(head_dim);
  attention.scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  attention.rope = read_rope_gguf(file, kArchitecture, attention.head_dim, context_length);
  attention.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  attention.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  return attention;
}

void refuse_other_kinds(const GgufFile& file) {
  const GgufIntegers integers(file);
  for (const char* key : {"llama.expert_count", "llama.attention.sliding_window"}) {
    if (integers.find(key, 0, kMaxContext).value_or(0) != 0) {
      throw UnsupportedError(
          fmt::format("{}: models with \"{}\" are not supported", file.path(), key));
    }
  }
}

/// Stop ids of the tokenizer keys, and of the list that this project adds where there are several.
std::set<int32_t> stop_ids_gguf(const GgufFile& file, int64_t vocab_size) {
  const GgufIntegers integers(file);
  std::set<int32_t> ids;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    if (const auto id = integers.find(key, 0, vocab_size - 1)) {
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

ModelSpec read_gguf(const GgufFile& file) {
  refuse_other_kinds(file);
  const GgufIntegers integers(file);
  ModelSpec spec;
  spec.family = "llama";
  spec.hidden_size = integers.read("llama.embedding_length", 1, kMaxHidden);
  spec.context_length = integers.read("llama.context_length", 1, kMaxContext);
  const std::optional<double> eps =
      file.metadata().number("llama.attention.layer_norm_rms_epsilon");
  if (!eps || !(*eps >= 0.0 && *eps <= kMaxEps)) {
    throw FormatError(fmt::format(
        "{}: \"llama.attention.layer_norm_rms_epsilon\" is {}; expected a number from 0 to {}",
        file.path(), eps ? fmt::format("{}", *eps) : "missing", kMaxEps));
  }
  spec.rms_norm_eps = *eps;
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    throw FormatError(file.path() + ": there is no matrix \"token_embd.weight\"");
  }
  spec.vocab_size = embedding->shape[0];
  if (const auto size = integers.find("llama.vocab_size", 1, kMaxVocabulary);
      size.value_or(spec.vocab_size) != spec.vocab_size) {
    throw FormatError(
        fmt::format("{}: \"llama.vocab_size\" is {}, \"token_embd.weight\" has {} rows",
                    file.path(), *size, spec.vocab_size));
  }
  spec.tied_head = file.find("output.weight") == nullptr;

  LayerSpec layer;
  layer.attention = read_attention_gguf(file, spec.hidden_size, spec.context_length);
  layer.mlp.intermediate_size = integers.read("llama.feed_forward_length", 1, kMaxIntermediate);
  layer.mlp.bias = file.find("blk.0.ffn_gate.bias") != nullptr;
  spec.layers.assign(static_cast<size_t>(integers.read("llama.block_count", 1, kMaxLayers)), layer);

  if (const auto bos = integers.find("tokenizer.ggml.bos_token_id", 0, spec.vocab_size - 1)) {
    spec.bos_id = static_cast<int32_t>(*bos);
  }
  const std::set<int32_t> stop_ids = stop_ids_gguf(file, spec.vocab_size);
  spec.stop_ids.assign(stop_ids.begin(), stop_ids.end());
  return spec;
}

}  // namespace

extern const Family kLlamaFamily;
const Family kLlamaFamily = {
    .name = "llama",
    .model_types = kModelTypes,
    .gguf_architecture = kArchitecture,
    .read_config = read_config,
    .read_gguf = read_gguf,
    .tensors = tensors,
    .write_gguf_metadata = write_gguf_metadata,
    .gguf_extra_tensors = gguf_extra_tensors,
    .gguf_warning = gguf_warning,
    .ignores_tensor = ignores_tensor,
};

}  // namespace assay
