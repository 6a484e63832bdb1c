#include "convert/model_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "convert/chat/chat_prompt.h"
#include "convert/checkpoint.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/families/rope_config.h"
#include "convert/file_summary.h"
#include "convert/manifest_check.h"
#include "convert/tokenizer.h"
#include "convert/value_check.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

Json rope_facts(const RopeSpec& rope) {
  Json json = Json::object();
  const auto number = [&](const char* key, double value) { json.set(key, value); };
  json.set("kind", kRopeKindWords.name(rope.kind));
  switch (rope.kind) {
    case RopeSpec::Kind::kDefault:
      break;
    case RopeSpec::Kind::kLinear:
      number("factor", rope.factor);
      break;
    case RopeSpec::Kind::kLlama3:
      number("factor", rope.factor);
      number("low_freq_factor", rope.low_freq_factor);
      number("high_freq_factor", rope.high_freq_factor);
      json.set("original_context", rope.original_context);
      break;
    case RopeSpec::Kind::kYarn:
      number("factor", rope.factor);
      number("beta_fast", rope.beta_fast);
      number("beta_slow", rope.beta_slow);
      number("attention_factor", rope.attention_factor);
      json.set("original_context", rope.original_context);
      break;
    case RopeSpec::Kind::kProportional:
      number("factor", rope.factor);
      json.set("rotated_pairs", rope.n_rotated_pairs);
      break;
  }
  number("theta", rope.theta);
  json.set("rotary_dims", rope.rotary_dims);
  return json;
}

/// Kinds of layers and how many there are of each: "sliding attention", "delta net".
Json layer_kinds_json(const ModelSpec& spec) {
  std::map<std::string, int64_t> counts;
  for (const LayerSpec& layer : spec.layers) {
    ++counts[layer.delta_net                  ? "delta net"
             : layer.attention.sliding_window ? "sliding attention"
                                              : "full attention"];
  }
  Json json = Json::object();
  for (const auto& [kind, n] : counts) json.set(kind, n);
  return json;
}

Json spec_json(const ModelSpec& spec) {
  const auto attention_layer =
      std::find_if(spec.layers.begin(), spec.layers.end(),
                   [](const LayerSpec& layer) { return !layer.delta_net; });
  const LayerSpec& layer =
      attention_layer == spec.layers.end() ? spec.layers.front() : *attention_layer;
  Json json = Json::object();
  json.set("layers", static_cast<int64_t>(spec.layers.size()));
  json.set("layer_kinds", layer_kinds_json(spec));
  json.set("hidden_size", spec.hidden_size);
  json.set("intermediate_size", layer.mlp.intermediate_size);
  json.set("heads", layer.attention.n_heads);
  json.set("kv_heads", layer.attention.n_kv_heads);
  json.set("head_dim", layer.attention.head_dim);
  json.set("vocab_size", spec.vocab_size);
  json.set("context_length", spec.context_length);
  json.set("sliding_window",
           layer.attention.sliding_window ? Json(*layer.attention.sliding_window) : Json());
  json.set("rms_norm_eps", spec.rms_norm_eps);
  json.set("tied_head", spec.tied_head);
  json.set("prediction_blocks", int64_t{spec.n_prediction_blocks});
  json.set("attention_bias", layer.attention.qkv_bias || layer.attention.o_bias);
  json.set("mlp_bias", layer.mlp.bias);
  json.set("rope", rope_facts(layer.attention.rope));
  json.set("bos_id", spec.bos_id ? Json(*spec.bos_id) : Json());
  Json stop_ids = Json::array();
  for (const int32_t id : spec.stop_ids) stop_ids.push(id);
  json.set("stop_ids", stop_ids);
  return json;
}

double bits_per_weight_of(uint64_t bytes, int64_t values) {
  return 8.0 * static_cast<double>(bytes) / static_cast<double>(values);
}

/// Weights by part of the model, in the order in which the parts first occur.
Json parts_json(const Checkpoint& checkpoint) {
  struct PartSum {
    std::string_view name;
    int64_t n = 0;
    int64_t values = 0;
    uint64_t bytes = 0;
  };
  std::vector<PartSum> sums;
  for (const TensorEntry& entry : checkpoint.tensors()) {
    const std::string_view name = role_part(entry.role);
    auto sum = std::find_if(sums.begin(), sums.end(),
                            [&](const PartSum& known) { return known.name == name; });
    if (sum == sums.end()) sum = sums.insert(sums.end(), PartSum{.name = name});
    ++sum->n;
    sum->values += n_elements(entry.shape);
    sum->bytes += checkpoint.stored(entry).bytes;
  }
  Json list = Json::array();
  for (const PartSum& sum : sums) {
    list.push(Json::object()
                  .set("part", sum.name)
                  .set("n", sum.n)
                  .set("parameters", sum.values)
                  .set("bits_per_weight", bits_per_weight_of(sum.bytes, sum.values))
                  .set("bytes", sum.bytes));
  }
  return list;
}

/// Weights by part of the model and by kind of tensor: types, bits and bytes, and their sums.
void add_weights(const Checkpoint& checkpoint, Json& summary) {
  struct Kind {
    int64_t n = 0;
    int64_t values = 0;
    uint64_t bytes = 0;
    std::string name, type;
    Shape shape;
  };
  std::vector<Kind> kinds;
  std::map<std::pair<std::string, std::string>, size_t> index;
  int64_t values = 0;
  uint64_t bytes = 0;
  for (const TensorEntry& entry : checkpoint.tensors()) {
    const StoredTensor& stored = checkpoint.stored(entry);
    std::string type(stored.act_order.empty() ? stored.format->name() : stored.act_order);
    if (stored.scale_dtype) {
      type +=
          fmt::format(" group {} scales {}", stored.group_size, dtype_name(*stored.scale_dtype));
    }
    const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
    const std::string name = name_without_layer(gguf ? entry.gguf_name : entry.hf_name);
    const auto [found, is_new] = index.emplace(std::pair(name, type), kinds.size());
    if (is_new) kinds.push_back({.name = name, .type = type, .shape = entry.shape});
    Kind& kind = kinds[found->second];
    ++kind.n;
    kind.values += n_elements(entry.shape);
    kind.bytes += stored.bytes;
    values += n_elements(entry.shape);
    bytes += stored.bytes;
  }
  Json weights = Json::array();
  for (const Kind& kind : kinds) {
    Json json = Json::object();
    json.set("tensor", kind.name);
    json.set("n", kind.n);
    json.set("type", kind.type);
    json.set("shape", shape_json(kind.shape));
    json.set("bits_per_weight", bits_per_weight_of(kind.bytes, kind.values));
    json.set("bytes", kind.bytes);
    weights.push(json);
  }
  summary.set("weights", weights);
  summary.set("parts", parts_json(checkpoint));
  summary.set("parameters", values);
  summary.set("weight_bytes", bytes);
  summary.set("bits_per_weight", bits_per_weight_of(bytes, values));
}

Json tokenizer_json(const Tokenizer& tokenizer) {
  Json json = Json::object();
  json.set("model", tokenizer.model_name());
  json.set("vocab_size", tokenizer.vocab_size());
  json.set("added_tokens", static_cast<int64_t>(tokenizer.added_tokens().size()));
  json.set("merges", static_cast<int64_t>(tokenizer.merges().size()));
  json.set("split_rule", tokenizer.gguf_pre() ? Json(*tokenizer.gguf_pre()) : Json());
  const auto id_json = [&](std::optional<int32_t> id) {
    if (!id) return Json();
    Json entry = Json::object();
    entry.set("id", *id);
    entry.set("token", tokenizer.token(*id).value_or(""));
    return entry;
  };
  json.set("bos", id_json(tokenizer.bos_id()));
  json.set("eos", id_json(tokenizer.eos_id()));
  Json prefix = Json::array();
  for (const int32_t id : tokenizer.special_prefix()) prefix.push(id);
  json.set("special_prefix", prefix);
  return json;
}

/// Tokenizer and chat template. A tokenizer that cannot be read is a problem, not an error.
void add_tokenizer(const std::string& path, const GgufFile* gguf, Json& summary, Json& problems) {
  const bool in_folder = gguf == nullptr;
  if (in_folder && !file_exists(path + "/tokenizer.json") &&
      !file_exists(path + "/tokenizer.model")) {
    summary.set("tokenizer", Json());
    problems.push("there is no tokenizer.json and no tokenizer.model");
  } else {
    try {
      summary.set("tokenizer",
                  tokenizer_json(in_folder ? Tokenizer::from_folder(path)
                                           : Tokenizer::from_gguf(gguf->metadata(), path)));
    } catch (const Error& error) {
      summary.set("tokenizer", Json());
      problems.push(std::string("tokenizer: ") + error.what());
    }
  }
  try {
    const std::optional<chat::TemplateText> found =
        in_folder ? chat::find_template(path) : chat::find_template(gguf->metadata(), path);
    summary.set("chat_template", found.has_value());
    if (found) chat::ChatTemplate::parse(found->text, found->source);
  } catch (const Error& error) {
    summary.set("chat_template", true);
    problems.push(std::string("chat template: ") + error.what());
  }
}

/// Rows and columns that the 4-bit kernels of vLLM and SGLang take.
int64_t linears_beyond_marlin(const Checkpoint& checkpoint) {
  int64_t n = 0;
  for (const TensorEntry& entry : checkpoint.tensors()) {
    const StoredTensor& stored = checkpoint.stored(entry);
    const bool group_fits = stored.group_size == 32 || stored.group_size == 64 ||
                            stored.group_size == 128 || stored.group_size == entry.shape.back();
    const bool fits = entry.shape.front() % 64 == 0 && entry.shape.back() % 128 == 0 && group_fits;
    n += stored.scale_dtype && !fits ? 1 : 0;
  }
  return n;
}

/// Programs that load such a model, each with what is to be known.
Json engines_json(const Checkpoint& checkpoint) {
  Json engines = Json::array();
  const auto add = [&](std::string_view name, std::string_view note) {
    engines.push(Json::object().set("engine", name).set("note", note));
  };
  bool symmetric = true, act_order = false;
  for (const TensorEntry& entry : checkpoint.tensors()) {
    const StoredTensor& stored = checkpoint.stored(entry);
    act_order |= !stored.act_order.empty();
    if (stored.scale_dtype) symmetric &= !stored.format->has_zero_points();
  }
  std::string kernels;
  if (const int64_t n = linears_beyond_marlin(checkpoint); n > 0) {
    kernels =
        fmt::format("{} linears do not fit the Marlin kernels (rows of 64, columns of 128)", n);
  }
  for (const Engine& engine : checkpoint.format().engines) {
    const bool asymmetric = !symmetric && !engine.asymmetric_note.empty();
    add(engine.name, asymmetric         ? engine.asymmetric_note
                     : engine.by_marlin ? kernels
                                        : engine.note);
  }
  if (act_order) add("Assay", "columns in activation order are read as fp32 values");
  return engines;
}

Json value_json(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> Json {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, GgufArray>) {
          return Json(fmt::format("array of {}", held.size()));
        } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, bool> ||
                             std::is_same_v<T, uint64_t>) {
          return Json(held);
        } else if constexpr (std::is_floating_point_v<T>) {
          const auto number = static_cast<double>(held);
          return number - number == 0.0 ? Json(number) : Json(fmt::format("{}", number));
        } else {
          return Json(static_cast<int64_t>(held));
        }
      },
      value);
}

Json metadata_json(const GgufMetadata& metadata) {
  Json json = Json::object();
  for (const auto& [key, value] : metadata.items()) json.set(key, value_json(value));
  return json;
}

/// Family, shapes, weights, tokenizer of a model that is implemented.
void add_model(const Checkpoint& checkpoint, const SummaryOptions& options, Json& summary,
               Json& problems) {
  summary.set("kind", checkpoint.format().name);
  summary.set("family", checkpoint.family().name);
  summary.set("model", spec_json(checkpoint.spec()));
  add_tokenizer(checkpoint.path(), checkpoint.gguf(), summary, problems);
  if (const Json* quantization = checkpoint.config().find("quantization_config")) {
    summary.set("quantization_config", *quantization);
  }
  if (checkpoint.gguf() != nullptr) {
    summary.set("metadata", metadata_json(checkpoint.gguf()->metadata()));
  }
  add_weights(checkpoint, summary);
  summary.set("engines", engines_json(checkpoint));
  Json notes = Json::array();
  for (const std::string& warning : checkpoint.warnings()) notes.push(warning);
  summary.set("notes", notes);
  if (!options.check_values) return;
  for (const std::string& fault : value_faults(checkpoint, options.progress)) problems.push(fault);
  std::optional<std::vector<std::string>> faults;
  if (checkpoint.safetensors() != nullptr) {
    faults = manifest_faults(checkpoint.path(), *checkpoint.safetensors(), options.progress);
  }
  summary.set("checked", Json::object()
                             .set("tensors", checkpoint.tensors().size() +
                                                 checkpoint.prediction_tensors().size())
                             .set("manifest", faults.has_value()));
  if (!faults) return;
  for (const std::string& fault : *faults) problems.push(fault);
}

bool is_safetensors_file(const std::string& path) {
  return path.ends_with(".safetensors") && !fs::is_directory(path);
}

}  // namespace

Json summarize_model(const std::string& path, const SummaryOptions& options) {
  Json summary = Json::object();
  Json problems = Json::array();
  summary.set("path", path);
  std::vector<FileTensor> tensors;
  std::shared_ptr<const Checkpoint> checkpoint;
  std::optional<SafetensorsModel> folder;
  std::optional<SafetensorsFile> single;
  std::optional<GgufFile> gguf;
  if (is_safetensors_file(path)) {
    single = SafetensorsFile::open(path);
    summary.set("kind", "safetensors file");
    tensors = tensors_of(nullptr, &*single, nullptr);
    add_unknown_weights(tensors, summary);
  } else {
    try {
      checkpoint = Checkpoint::open(path);
      tensors = tensors_of(checkpoint->safetensors(), nullptr, checkpoint->gguf());
      add_model(*checkpoint, options, summary, problems);
    } catch (const Error& error) {
      // What does not hold together is a problem to report, if its tensors can be listed at all.
      const bool unsupported = error.exit_code() == ExitCode::kUnsupported;
      if (!unsupported && error.exit_code() != ExitCode::kInput) throw;
      summary.set("readable", unsupported);
      if (unsupported) {
        summary.set("unsupported", error.what());
      } else {
        problems.push(error.what());
      }
      if (fs::is_directory(path)) {
        folder = SafetensorsModel::open(path);
      } else {
        gguf = GgufFile::open(path);
        summary.set("metadata", metadata_json(gguf->metadata()));
      }
      summary.set("kind", gguf ? "GGUF" : "Hugging Face");
      tensors = tensors_of(folder ? &*folder : nullptr, nullptr, gguf ? &*gguf : nullptr);
      add_unknown_weights(tensors, summary);
    }
  }
  const Json list = options.list_tensors || options.hashes
                        ? tensor_list(tensors, options.hashes, options.progress)
                        : Json::array();
  const GgufFile* const file = checkpoint != nullptr ? checkpoint->gguf() : gguf ? &*gguf : nullptr;
  summary.set("files", file_list(path, file, options.hashes ? &list : nullptr, options.progress));
  if (options.list_tensors || options.hashes) summary.set("tensors", list);
  summary.set("problems", problems);
  return summary;
}

}  // namespace assay
