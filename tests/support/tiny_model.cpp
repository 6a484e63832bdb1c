#include "tests/support/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>

#include "convert/core/dtype.h"
#include "convert/formats/format.h"
#include "convert/safetensors.h"
#include "tests/support/random.h"
#include "tests/support/shared_data.h"

namespace assay::test {
namespace {

void write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

/// Random values of standard deviation `scale`, rounded to `dtype`.
Tensor random_weights(DType dtype, Shape shape, float mean, float scale, Random& random) {
  Tensor tensor{dtype, std::move(shape), {}};
  const auto n = static_cast<size_t>(n_elements(tensor.shape));
  std::vector<float> values(n);
  for (float& value : values) value = mean + scale * random.bell();
  tensor.bytes.resize(n * dtype_bytes(dtype));
  scalar_format(dtype).encode_row(values, {}, tensor.bytes);
  return tensor;
}

/// The printable character that stands for a byte in byte-level vocabularies, as UTF-8.
std::string byte_level_character(int byte) {
  const auto is_plain = [](int b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int code = byte;
  if (!is_plain(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += is_plain(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

Json object(Json::Object members) { return Json(std::move(members)); }

std::string make_tokenizer_json(int64_t vocab_size) {
  constexpr const char* kSplit =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const std::vector<std::string> specials = {"<|bos|>", "<|eos|>", "<|pad|>"};
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"t", "h"},  {"i", "n"}, {"th", "e"},  {"e", "r"}, {"a", "n"}, {"in", "g"},
      {"an", "d"}, {"o", "n"}, {"Ġ", "the"}, {"Ġ", "a"}, {"r", "e"}, {"o", "r"}};
  Json vocab = Json::object();
  Json added = Json::array();
  int64_t id = 0;
  for (const std::string& special : specials) {
    added.push(object({{"id", id},
                       {"content", special},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}}));
    vocab.set(special, id++);
  }
  // A vocabulary that is too small lacks the last bytes, not the first merge.
  const auto n_bytes = static_cast<int>(std::min<int64_t>(256, vocab_size - id - 1));
  for (int byte = 0; byte < n_bytes; ++byte) vocab.set(byte_level_character(byte), id++);
  Json merge_list = Json::array();
  for (const auto& [left, right] : merges) {
    if (id >= vocab_size) break;
    merge_list.push(left + " " + right);
    vocab.set(left + right, id++);
  }
  const Json split = object({{"type", "Split"},
                             {"pattern", object({{"Regex", kSplit}})},
                             {"behavior", "Isolated"},
                             {"invert", false}});
  const Json byte_level = object({{"type", "ByteLevel"},
                                  {"add_prefix_space", false},
                                  {"trim_offsets", true},
                                  {"use_regex", false}});
  const Json bos = object({{"SpecialToken", object({{"id", "<|bos|>"}, {"type_id", 0}})}});
  const Json first = object({{"Sequence", object({{"id", "A"}, {"type_id", 0}})}});
  const Json second = object({{"Sequence", object({{"id", "B"}, {"type_id", 1}})}});
  const Json post =
      object({{"type", "TemplateProcessing"},
              {"single", Json(Json::Array{bos, first})},
              {"pair", Json(Json::Array{bos, first, second})},
              {"special_tokens",
               object({{"<|bos|>", object({{"id", "<|bos|>"},
                                           {"ids", Json(Json::Array{Json(0)})},
                                           {"tokens", Json(Json::Array{Json("<|bos|>")})}})}})}});
  const Json tokenizer = object(
      {{"version", "1.0"},
       {"truncation", Json()},
       {"padding", Json()},
       {"added_tokens", added},
       {"normalizer", Json()},
       {"pre_tokenizer",
        object({{"type", "Sequence"}, {"pretokenizers", Json(Json::Array{split, byte_level})}})},
       {"post_processor", post},
       {"decoder", object({{"type", "ByteLevel"},
                           {"add_prefix_space", true},
                           {"trim_offsets", true},
                           {"use_regex", true}})},
       {"model", object({{"type", "BPE"},
                         {"dropout", Json()},
                         {"unk_token", Json()},
                         {"continuing_subword_prefix", Json()},
                         {"end_of_word_suffix", Json()},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", true},
                         {"vocab", vocab},
                         {"merges", merge_list}})}});
  return tokenizer.dump(1);
}

}  // namespace

std::string safetensors_bytes(const std::vector<NamedTensor>& tensors) {
  Json header = Json::object();
  header.set("__metadata__", object({{"format", "pt"}}));
  std::string data;
  for (const NamedTensor& named : tensors) {
    Json shape = Json::array();
    for (const int64_t dim : named.tensor.shape) shape.push(dim);
    const auto begin = static_cast<int64_t>(data.size());
    data.append(reinterpret_cast<const char*>(named.tensor.bytes.data()),
                named.tensor.bytes.size());
    header.set(named.name,
               object({{"dtype", dtype_name(named.tensor.dtype)},
                       {"shape", shape},
                       {"data_offsets",
                        Json(Json::Array{Json(begin), Json(static_cast<int64_t>(data.size()))})}}));
  }
  std::string text = header.dump(0);
  while (text.size() % 8 != 0) text += ' ';
  const uint64_t length = text.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + text + data;
}

Tensor& TinyModel::tensor(std::string_view name) {
  for (NamedTensor& named : tensors) {
    if (named.name == name) return named.tensor;
  }
  throw std::runtime_error("the tiny model has no tensor " + std::string(name));
}

bool TinyModel::has(std::string_view name) const {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const NamedTensor& named) { return named.name == name; });
}

void TinyModel::rename(std::string_view from, std::string_view to) {
  Tensor moved = std::move(tensor(from));
  erase(from);
  add(std::string(to), std::move(moved));
}

void TinyModel::erase(std::string_view name) {
  std::erase_if(tensors, [&](const NamedTensor& named) { return named.name == name; });
}

std::string TinyModel::write(const std::string& folder, int n_shards) const {
  std::filesystem::create_directories(folder);
  write_file(folder + "/config.json", config.dump(2));
  if (!generation_config.is_null()) {
    write_file(folder + "/generation_config.json", generation_config.dump(2));
  }
  if (!tokenizer_json.empty()) write_file(folder + "/tokenizer.json", tokenizer_json);
  if (!tokenizer_config_json.empty()) {
    write_file(folder + "/tokenizer_config.json", tokenizer_config_json);
  }
  std::vector<NamedTensor> sorted = tensors;
  std::sort(sorted.begin(), sorted.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  if (n_shards == 1) {
    write_file(folder + "/model.safetensors", safetensors_bytes(sorted));
    return folder;
  }
  Json weight_map = Json::object();
  int64_t total = 0;
  const size_t per_shard =
      (sorted.size() + static_cast<size_t>(n_shards) - 1) / static_cast<size_t>(n_shards);
  for (int shard = 0; shard < n_shards; ++shard) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05d-of-%05d.safetensors", shard + 1, n_shards);
    const size_t begin = std::min(sorted.size(), per_shard * static_cast<size_t>(shard));
    const size_t end = std::min(sorted.size(), begin + per_shard);
    std::vector<NamedTensor> part(sorted.begin() + static_cast<std::ptrdiff_t>(begin),
                                  sorted.begin() + static_cast<std::ptrdiff_t>(end));
    for (const NamedTensor& named : part) {
      weight_map.set(named.name, name);
      total += static_cast<int64_t>(named.tensor.bytes.size());
    }
    write_file(folder + "/" + name, safetensors_bytes(part));
  }
  write_file(
      folder + "/model.safetensors.index.json",
      object({{"metadata", object({{"total_size", total}})}, {"weight_map", weight_map}}).dump(2));
  return folder;
}

TinyModel make_tiny_model(const TinyModelOptions& options) {
  const int64_t head_dim = options.head_dim.value_or(options.hidden_size / options.n_heads);
  TinyModel model;
  model.config =
      object({{"architectures",
               Json(Json::Array{Json(options.model_type == "mistral" ? "MistralForCausalLM"
                                                                     : "LlamaForCausalLM")})},
              {"attention_bias", options.attention_bias},
              {"bos_token_id", 0},
              {"dtype", "bfloat16"},
              {"eos_token_id", 1},
              {"hidden_act", "silu"},
              {"hidden_size", options.hidden_size},
              {"intermediate_size", options.intermediate_size},
              {"max_position_embeddings", 256},
              {"mlp_bias", options.mlp_bias},
              {"model_type", options.model_type},
              {"num_attention_heads", options.n_heads},
              {"num_hidden_layers", options.n_layers},
              {"num_key_value_heads", options.n_kv_heads},
              {"rms_norm_eps", 1e-5},
              {"rope_theta", 10000.0},
              {"tie_word_embeddings", options.tied_head},
              {"vocab_size", options.vocab_size}});
  if (options.head_dim) model.config.set("head_dim", *options.head_dim);
  if (options.model_type == "mistral") model.config.set("sliding_window", Json());
  for (const auto& [key, value] : options.config) model.config.set(key, value);
  model.tokenizer_json = make_tokenizer_json(options.vocab_size);
  model.tokenizer_config_json = object({{"tokenizer_class", "PreTrainedTokenizerFast"},
                                        {"bos_token", "<|bos|>"},
                                        {"eos_token", "<|eos|>"},
                                        {"pad_token", "<|pad|>"},
                                        {"add_bos_token", true}})
                                    .dump(2);

  Random random(options.seed);
  const int64_t hidden = options.hidden_size;
  const auto norm = [&](const std::string& name) {
    model.add(name, random_weights(options.dtype, {hidden}, 1.0f, 0.1f, random));
  };
  const auto linear = [&](const std::string& module, int64_t rows, int64_t columns, bool bias) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(columns));
    model.add(module + ".weight",
              random_weights(options.dtype, {rows, columns}, 0.0f, scale, random));
    if (bias) {
      model.add(module + ".bias", random_weights(options.dtype, {rows}, 0.0f, 0.1f, random));
    }
  };
  model.add("model.embed_tokens.weight",
            random_weights(options.dtype, {options.vocab_size, hidden}, 0.0f, 1.0f, random));
  for (int64_t i = 0; i < options.n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const int64_t q_rows = options.n_heads * head_dim;
    const int64_t kv_rows = options.n_kv_heads * head_dim;
    norm(layer + "input_layernorm.weight");
    linear(layer + "self_attn.q_proj", q_rows, hidden, options.attention_bias);
    linear(layer + "self_attn.k_proj", kv_rows, hidden, options.attention_bias);
    linear(layer + "self_attn.v_proj", kv_rows, hidden, options.attention_bias);
    linear(layer + "self_attn.o_proj", hidden, q_rows, options.attention_bias);
    norm(layer + "post_attention_layernorm.weight");
    linear(layer + "mlp.gate_proj", options.intermediate_size, hidden, options.mlp_bias);
    linear(layer + "mlp.up_proj", options.intermediate_size, hidden, options.mlp_bias);
    linear(layer + "mlp.down_proj", hidden, options.intermediate_size, options.mlp_bias);
  }
  norm("model.norm.weight");
  if (!options.tied_head) linear("lm_head", options.vocab_size, hidden, false);
  return model;
}

std::string piece_tokenizer_json() {
  Json vocab = Json::object(), added = Json::array(), merges = Json::array();
  int64_t id = 0;
  for (const char* token : {"<pad>", "<eos>", "<bos>", "<unk>"}) {
    added.push(Json::object()
                   .set("id", id)
                   .set("content", token)
                   .set("single_word", false)
                   .set("lstrip", false)
                   .set("rstrip", false)
                   .set("normalized", false)
                   .set("special", true));
    vocab.set(token, id++);
  }
  vocab.set("\u2581", id++);
  for (char c = 'a'; c <= 'z'; ++c) vocab.set(std::string(1, c), id++);
  for (const auto& [left, right] :
       {std::pair{"t", "h"}, std::pair{"th", "e"}, std::pair{"\u2581", "the"}, std::pair{"a", "n"},
        std::pair{"an", "d"}, std::pair{"\u2581", "\u2581"}}) {
    merges.push(Json::array().push(left).push(right));
    vocab.set(std::string(left) + right, id++);
  }
  const auto typed = [](const char* type) { return Json::object().set("type", type); };
  const auto replace = [&](const char* from, const char* to) {
    return typed("Replace").set("pattern", Json::object().set("String", from)).set("content", to);
  };
  const Json bos = Json::object().set("id", "<bos>").set("type_id", 0);
  const Json text = Json::object().set("id", "A").set("type_id", 0);
  const Json second = Json::object().set("id", "B").set("type_id", 1);
  Json post = typed("TemplateProcessing");
  post.set("single", Json::array()
                         .push(Json::object().set("SpecialToken", bos))
                         .push(Json::object().set("Sequence", text)))
      .set("pair", Json::array()
                       .push(Json::object().set("SpecialToken", bos))
                       .push(Json::object().set("Sequence", text))
                       .push(Json::object().set("Sequence", second)))
      .set("special_tokens",
           Json::object().set("<bos>", Json::object()
                                           .set("id", "<bos>")
                                           .set("ids", Json::array().push(2))
                                           .set("tokens", Json::array().push("<bos>"))));
  return Json::object()
      .set("version", "1.0")
      .set("truncation", nullptr)
      .set("padding", nullptr)
      .set("added_tokens", std::move(added))
      .set("normalizer", replace(" ", "\u2581"))
      .set("pre_tokenizer", nullptr)
      .set("post_processor", std::move(post))
      .set("decoder", typed("Sequence")
                          .set("decoders", Json::array()
                                               .push(replace("\u2581", " "))
                                               .push(typed("ByteFallback"))
                                               .push(typed("Fuse"))))
      .set("model", typed("BPE")
                        .set("dropout", nullptr)
                        .set("unk_token", "<unk>")
                        .set("continuing_subword_prefix", nullptr)
                        .set("end_of_word_suffix", nullptr)
                        .set("fuse_unk", true)
                        .set("byte_fallback", false)
                        .set("ignore_merges", false)
                        .set("vocab", std::move(vocab))
                        .set("merges", std::move(merges)))
      .dump();
}

std::vector<std::string> family_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(family_model_path(""))) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string family_model_path(std::string_view name) {
  return source_path("tests/data/families/" + std::string(name));
}

TinyModel read_model(const std::string& folder) {
  TinyModel model;
  model.config = read_json_file(folder + "/config.json");
  const SafetensorsFile file = SafetensorsFile::open(folder + "/model.safetensors");
  for (const SafetensorsEntry& entry : file.tensors()) {
    const TensorView& view = entry.view;
    model.add(entry.name, {view.dtype, view.shape, {view.bytes.begin(), view.bytes.end()}});
  }
  return model;
}

// ---------------------------------------------------------------------------------------------

namespace {

/// Codes, scales and zero points of one linear, one value an element.
struct QuantizedLinear {
  std::string module;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t n_groups = 0;
  std::vector<uint32_t> codes;  // (rows, columns)
  std::vector<uint32_t> zeros;  // (rows, n_groups)
  std::vector<float> scales;    // (rows, n_groups)
};

bool is_linear_weight(const NamedTensor& named) {
  return named.name.starts_with("model.layers.") && named.name.ends_with("_proj.weight");
}

/// Takes the linears of the layers out of `model` and makes random numbers for them.
std::vector<QuantizedLinear> take_linears(TinyModel& model, const TinyQuantization& quantization) {
  Random random(quantization.seed);
  const auto n_codes = uint64_t{1} << quantization.bits;
  std::vector<QuantizedLinear> linears;
  std::vector<NamedTensor> kept;
  for (NamedTensor& named : model.tensors) {
    if (!is_linear_weight(named)) {
      kept.push_back(std::move(named));
      continue;
    }
    QuantizedLinear linear;
    linear.module = named.name.substr(0, named.name.size() - std::strlen(".weight"));
    linear.rows = named.tensor.shape[0];
    linear.columns = named.tensor.shape[1];
    linear.n_groups = quantization.group_size <= 0 ? 1 : linear.columns / quantization.group_size;
    const auto n = static_cast<size_t>(linear.rows * linear.columns);
    const auto n_scales = static_cast<size_t>(linear.rows * linear.n_groups);
    for (size_t i = 0; i < n; ++i) {
      linear.codes.push_back(static_cast<uint32_t>(random.below(n_codes)));
    }
    for (size_t i = 0; i < n_scales; ++i) {
      // 1.xxx · 2^-k with `scale_bits` significant bits; exact in every scale type.
      const uint64_t steps = uint64_t{1} << (quantization.scale_bits - 1);
      const auto mantissa = static_cast<float>(steps + random.below(steps));
      linear.scales.push_back(
          std::ldexp(mantissa, -quantization.scale_bits - 4 - (quantization.bits == 8 ? 4 : 0)));
      linear.zeros.push_back(quantization.symmetric
                                 ? static_cast<uint32_t>(n_codes / 2)
                                 : static_cast<uint32_t>(1 + random.below(n_codes - 1)));
    }
    linears.push_back(std::move(linear));
  }
  model.tensors = std::move(kept);
  return linears;
}

int64_t words_for(int64_t n, int bits) { return (n * bits + 31) / 32; }

/// values (n_rows, n_columns) → words packed along the columns, (n_rows, ⌈n_columns·bits/32⌉).
std::vector<uint32_t> pack_along_columns(const std::vector<uint32_t>& values, int64_t n_rows,
                                         int64_t n_columns, int bits) {
  const int64_t n_words = words_for(n_columns, bits);
  std::vector<uint32_t> words(static_cast<size_t>(n_rows * n_words), 0);
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t c = 0; c < n_columns; ++c) {
      for (int64_t b = 0; b < bits; ++b) {
        const uint32_t bit = values[static_cast<size_t>(r * n_columns + c)] >> b & 1u;
        const int64_t at = c * bits + b;
        words[static_cast<size_t>(r * n_words + at / 32)] |= bit << (at % 32);
      }
    }
  }
  return words;
}

template <class T>
std::vector<T> transposed(const std::vector<T>& values, int64_t n_rows, int64_t n_columns) {
  std::vector<T> out(values.size());
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t c = 0; c < n_columns; ++c) {
      out[static_cast<size_t>(c * n_rows + r)] = values[static_cast<size_t>(r * n_columns + c)];
    }
  }
  return out;
}

Tensor scale_tensor(DType dtype, Shape shape, const std::vector<float>& scales) {
  Tensor tensor{dtype, std::move(shape), {}};
  tensor.bytes.resize(scales.size() * dtype_bytes(dtype));
  scalar_format(dtype).encode_row(scales, {}, tensor.bytes);
  return tensor;
}

}  // namespace

void quantize_as_compressed_tensors(TinyModel& model, const TinyQuantization& quantization) {
  const int bits = quantization.bits;
  for (const QuantizedLinear& linear : take_linears(model, quantization)) {
    model.add(linear.module + ".weight_packed",
              tensor_of(DType::kI32, {linear.rows, words_for(linear.columns, bits)},
                        pack_along_columns(linear.codes, linear.rows, linear.columns, bits)));
    model.add(
        linear.module + ".weight_scale",
        scale_tensor(quantization.scale_dtype, {linear.rows, linear.n_groups}, linear.scales));
    model.add(linear.module + ".weight_shape",
              tensor_of<int64_t>(DType::kI64, {2}, {linear.rows, linear.columns}));
    if (quantization.symmetric) continue;
    const std::vector<uint32_t> words = pack_along_columns(
        transposed(linear.zeros, linear.rows, linear.n_groups), linear.n_groups, linear.rows, bits);
    const int64_t n_words = words_for(linear.rows, bits);
    model.add(linear.module + ".weight_zero_point",
              tensor_of(DType::kI32, {n_words, linear.n_groups},
                        transposed(words, linear.n_groups, n_words)));
  }
  Json weights =
      object({{"num_bits", bits},
              {"type", "int"},
              {"symmetric", quantization.symmetric},
              {"strategy", quantization.group_size <= 0 ? "channel" : "group"},
              {"group_size", quantization.group_size <= 0 ? Json() : Json(quantization.group_size)},
              {"dynamic", false},
              {"actorder", Json()},
              {"block_structure", Json()},
              {"observer", "minmax"},
              {"observer_kwargs", Json::object()}});
  model.config.set(
      "quantization_config",
      object({{"quant_method", "compressed-tensors"},
              {"format", "pack-quantized"},
              {"quantization_status", "compressed"},
              {"kv_cache_scheme", Json()},
              {"ignore", Json(Json::Array{Json("lm_head")})},
              {"config_groups",
               object({{"group_0", object({{"targets", Json(Json::Array{Json("Linear")})},
                                           {"input_activations", Json()},
                                           {"output_activations", Json()},
                                           {"weights", weights}})}})}}));
}

void quantize_as_gptq(TinyModel& model, const TinyQuantization& quantization) {
  const int bits = quantization.bits;
  for (QuantizedLinear& linear : take_linears(model, quantization)) {
    const std::vector<uint32_t> words =
        pack_along_columns(linear.codes, linear.rows, linear.columns, bits);
    const int64_t n_words = words_for(linear.columns, bits);
    model.add(linear.module + ".qweight", tensor_of(DType::kI32, {n_words, linear.rows},
                                                    transposed(words, linear.rows, n_words)));
    for (uint32_t& zero : linear.zeros) zero -= 1;
    model.add(linear.module + ".qzeros",
              tensor_of(DType::kI32, {linear.n_groups, words_for(linear.rows, bits)},
                        pack_along_columns(transposed(linear.zeros, linear.rows, linear.n_groups),
                                           linear.n_groups, linear.rows, bits)));
    model.add(linear.module + ".scales",
              scale_tensor(quantization.scale_dtype, {linear.n_groups, linear.rows},
                           transposed(linear.scales, linear.rows, linear.n_groups)));
    std::vector<int32_t> g_idx;
    for (int64_t k = 0; k < linear.columns; ++k) {
      g_idx.push_back(static_cast<int32_t>(k * linear.n_groups / linear.columns));
    }
    model.add(linear.module + ".g_idx", tensor_of(DType::kI32, {linear.columns}, g_idx));
  }
  model.config.set("quantization_config", object({{"quant_method", "gptq"},
                                                  {"bits", bits},
                                                  {"group_size", quantization.group_size},
                                                  {"desc_act", false},
                                                  {"sym", quantization.symmetric},
                                                  {"checkpoint_format", "gptq"}}));
}

void quantize_as_awq(TinyModel& model, const TinyQuantization& quantization) {
  constexpr int64_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (QuantizedLinear& linear : take_linears(model, quantization)) {
    // Rows of one word per eight outputs, for each column of codes and each group of zero points.
    const auto pack = [&](const std::vector<uint32_t>& values, int64_t n_columns) {
      std::vector<uint32_t> words;
      for (int64_t k = 0; k < n_columns; ++k) {
        for (int64_t first = 0; first < linear.rows; first += 8) {
          uint32_t word = 0;
          for (int64_t i = 0; i < 8; ++i) {
            word |= values[static_cast<size_t>((first + kOrder[i]) * n_columns + k)] << (4 * i);
          }
          words.push_back(word);
        }
      }
      return tensor_of(DType::kI32, {n_columns, linear.rows / 8}, words);
    };
    const std::vector<uint32_t> codes(linear.codes.begin(), linear.codes.end());
    const std::vector<uint32_t> zeros(linear.zeros.begin(), linear.zeros.end());
    model.add(linear.module + ".qweight", pack(codes, linear.columns));
    model.add(linear.module + ".qzeros", pack(zeros, linear.n_groups));
    model.add(linear.module + ".scales",
              scale_tensor(quantization.scale_dtype, {linear.n_groups, linear.rows},
                           transposed(linear.scales, linear.rows, linear.n_groups)));
  }
  model.config.set("quantization_config", object({{"quant_method", "awq"},
                                                  {"version", "gemm"},
                                                  {"bits", 4},
                                                  {"group_size", quantization.group_size},
                                                  {"zero_point", true}}));
}

void set_group_index(TinyModel& model,
                     int32_t (*group_of)(int64_t k, int64_t columns, int64_t n_groups)) {
  for (NamedTensor& named : model.tensors) {
    if (!named.name.ends_with(".g_idx")) continue;
    const std::string module = named.name.substr(0, named.name.size() - 6);
    const int64_t columns = named.tensor.shape[0];
    const int64_t n_groups = model.tensor(module + ".scales").shape[0];
    std::vector<int32_t> g_idx;
    for (int64_t k = 0; k < columns; ++k) g_idx.push_back(group_of(k, columns, n_groups));
    named.tensor = tensor_of(DType::kI32, {columns}, g_idx);
  }
  Json quantization = model.config.at("quantization_config");
  quantization.set("desc_act", true);
  model.config.set("quantization_config", std::move(quantization));
}

}  // namespace assay::test
