#include "convert/quantization_mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>

#include "convert/core/error.h"
#include "convert/core/json.h"

namespace assay {
namespace {

/// Names that are no format's, and IQ2_S, of which most matrices have another type. Every other
/// format that GGUF files can have is its own mix.
constexpr QuantizationMix kMixes[] = {
    {"Q5_K_M", 17, "Q5_K"},     {"Q5_K_S", 16, "Q5_K"}, {"Q4_K_M", 15, "Q4_K"},
    {"Q4_K_S", 14, "Q4_K"},     {"Q3_K_L", 13, "Q3_K"}, {"Q3_K_M", 12, "Q3_K"},
    {"Q3_K_S", 11, "Q3_K"},     {"IQ3_M", 27, "IQ3_S"}, {"IQ3_XS", 22, "IQ3_S"},
    {"Q2_K_S", 21, "Q2_K"},     {"IQ2_M", 29, "IQ2_S"}, {"IQ2_S", 28, "IQ2_XS"},
    {"MXFP4_MOE", 38, "MXFP4"},
};

const QuantizationMix* find_in(std::span<const QuantizationMix> mixes, std::string_view name) {
  const auto found = std::ranges::find(mixes, name, &QuantizationMix::name);
  return found == mixes.end() ? nullptr : &*found;
}

/// The mix that a format's name stands for among kMixes: Q4_K means Q4_K_M.
const QuantizationMix* named_mix_of(const WeightFormat& format) {
  const QuantizationMix* same = find_in(kMixes, format.name());
  return same != nullptr ? same : find_in(kMixes, std::string(format.name()) + "_M");
}

std::vector<QuantizationMix> make_mixes() {
  std::vector<QuantizationMix> mixes(std::begin(kMixes), std::end(kMixes));
  for (const WeightFormat* format : all_formats()) {
    const std::optional<uint32_t> file_type = format->gguf_file_type();
    if (!file_type || !format->can_encode() || named_mix_of(*format) != nullptr) continue;
    mixes.push_back({format->name(), *file_type, format->name()});
  }
  return mixes;
}

std::string upper_case(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return upper;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Number after "blk.", or −1.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return -1;
  int64_t layer = -1;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, layer);
  return parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '.' ? layer : -1;
}

bool is_embedding(std::string_view name) {
  return name == "token_embd.weight" || name == "per_layer_token_embd.weight";
}

/// Kinds of tensors that the rules tell apart.
enum class Category : uint8_t {
  kOutput,
  kEmbedding,
  kValue,  // attn_v, attn_qkv, attn_kv_b: counted together
  kKey,
  kQuery,
  kAttentionOutput,
  kUp,
  kGate,
  kDown,
  kOther,
};

Category category_of(std::string_view name) {
  constexpr std::pair<std::string_view, Category> kParts[] = {
      {"attn_qkv.weight", Category::kValue},
      {"attn_kv_b.weight", Category::kValue},
      {"attn_v.weight", Category::kValue},
      {"attn_k.weight", Category::kKey},
      {"attn_q.weight", Category::kQuery},
      {"attn_output.weight", Category::kAttentionOutput},
      {"ffn_up", Category::kUp},
      {"ffn_gate", Category::kGate},
      {"ffn_down", Category::kDown},
  };
  if (name == "output.weight") return Category::kOutput;
  if (is_embedding(name)) return Category::kEmbedding;
  for (const auto& [part, category] : kParts) {
    if (contains(name, part)) return category;
  }
  return Category::kOther;
}

/// Tensors that keep their type because they are small or sensitive (llama.cpp's llama-quant.cpp).
bool may_be_quantized(std::string_view name, const Shape& shape) {
  constexpr std::string_view kKept[] = {"_norm.weight",
                                        "ffn_gate_inp.weight",
                                        "ffn_gate_tid2eid.weight",
                                        "altup",
                                        "laurel",
                                        "per_layer_model_proj",
                                        "ssm_conv1d",
                                        "shortconv.conv.weight",
                                        "indexer.k_proj.weight",
                                        "indexer.q_proj.weight",
                                        "time_mix_first.weight",
                                        "time_mix_w0.weight",
                                        "time_mix_w1.weight",
                                        "time_mix_w2.weight",
                                        "time_mix_v0.weight",
                                        "time_mix_v1.weight",
                                        "time_mix_v2.weight",
                                        "time_mix_a0.weight",
                                        "time_mix_a1.weight",
                                        "time_mix_a2.weight",
                                        "time_mix_g1.weight",
                                        "time_mix_g2.weight",
                                        "time_mix_decay_w1.weight",
                                        "time_mix_decay_w2.weight",
                                        "time_mix_lerp_fused.weight",
                                        "attn_rel_b.weight",
                                        ".position_embd",
                                        "sam.pos_embd",
                                        "sam.neck.",
                                        "sam.net_",
                                        ".rel_pos",
                                        ".patch_embd",
                                        ".patch_merger",
                                        "a.rvq.codebook",
                                        "mm.a.code_embd"};
  const bool is_matrix =
      std::any_of(shape.begin(), shape.end() - 1, [](int64_t n) { return n > 1; });
  if (!is_matrix || !name.ends_with("weight")) return false;
  if (name == "position_embd.weight" || name == "token_types.weight") return false;
  return std::none_of(std::begin(kKept), std::end(kKept),
                      [&](std::string_view part) { return contains(name, part); });
}

/// The rules of one mix at work: they count the tensors that they have seen.
class MixRules {
 public:
  MixRules(const MixModel& model, const MixOptions& options, std::span<const MixTensor> tensors)
      : model_(model), options_(options), mix_(options.mix->name) {
    for (const MixTensor& tensor : tensors) {
      const Category category = category_of(tensor.name);
      if (category == Category::kValue) ++n_values_;
      if (category == Category::kOutput) tied_ = false;
    }
  }

  std::string_view type_of(const MixTensor& tensor) {
    const Category category = category_of(tensor.name);
    if (category == Category::kOutput || (tied_ && category == Category::kEmbedding)) {
      return output_type(tensor);
    }
    if (mix_ == "MXFP4_MOE") {
      const size_t rank = tensor.shape.size();
      return rank >= 3 && tensor.shape[rank - 3] > 1 ? "MXFP4" : "Q8_0";  // experts
    }
    switch (category) {
      case Category::kEmbedding:
        return embedding_type();
      case Category::kValue:
        return value_type();
      case Category::kKey:
      case Category::kQuery:
        return key_or_query_type(category);
      case Category::kAttentionOutput:
        return attention_output_type();
      case Category::kDown:
        return down_type(tensor);
      case Category::kGate:
        return gate_or_up_type(tensor, i_gate_++);
      case Category::kUp:
        return gate_or_up_type(tensor, i_up_++);
      default:
        return base();
    }
  }

 private:
  std::string_view base() const { return options_.mix->base_type; }
  bool is(std::initializer_list<std::string_view> names) const {
    return std::find(names.begin(), names.end(), mix_) != names.end();
  }
  /// The mixes of one and two bits have rules of their own.
  bool is_low() const { return is({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"}); }
  bool many_heads() const { return model_.heads_per_kv_head >= 4; }
  bool eight_experts() const { return model_.n_experts == 8; }

  static bool more_bits(int64_t i, int64_t n) {
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
  }

  /// Layer of a tensor of the feed-forward part: running index, or with experts the one in its
  /// name.
  int64_t layer_index(const MixTensor& tensor, int64_t running) const {
    if (model_.n_experts <= 1) return running;
    const int64_t layer = layer_of(tensor.name);
    if (layer < 0 || layer >= model_.n_layers) {
      throw FormatError("tensor " + in_quotes(tensor.name) + ": its name has no layer below " +
                        std::to_string(model_.n_layers));
    }
    return layer;
  }

  std::string_view output_type(const MixTensor& tensor) const {
    if (options_.output_type != nullptr) return options_.output_type->name();
    if (mix_ == "MXFP4_MOE") return "Q8_0";
    if (tensor.shape.back() % find_format(base())->block_columns() != 0) return "Q8_0";
    if (is_low() || mix_ == "IQ3_XXS") return "Q5_K";
    return base() == "Q8_0" ? base() : "Q6_K";
  }

  std::string_view embedding_type() const {
    if (is({"IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"})) return "Q2_K";
    if (is({"IQ2_S", "IQ2_M", "IQ3_XXS"})) return "IQ3_S";
    return is({"TQ1_0", "TQ2_0", "Q2_0"}) ? "Q4_K" : base();
  }

  std::string_view value_type() {
    const int64_t i = i_value_++;
    if (is_low()) {
      if (many_heads() || model_.n_experts >= 4) return "Q4_K";
      return is({"IQ2_S", "IQ2_M"}) ? "IQ3_S" : "Q2_K";
    }
    std::string_view type = plain_value_type(i);
    // Few heads share the values of a 70 B model: more bits cost little there.
    if (model_.is_70b && (type == "Q3_K" || type == "Q4_K")) type = "Q5_K";
    return eight_experts() ? "Q8_0" : type;
  }

  std::string_view plain_value_type(int64_t i) const {
    if (mix_ == "Q2_K") return many_heads() ? "Q4_K" : "Q3_K";
    if (mix_ == "Q2_K_S") return many_heads() ? "Q4_K" : base();
    if (mix_ == "IQ3_XXS") {
      return many_heads() ? "Q4_K" : (options_.has_importance ? "IQ3_XXS" : "IQ3_S");
    }
    if (is({"IQ3_XS", "IQ3_S"})) return many_heads() ? "Q4_K" : base();
    if (mix_ == "IQ3_M") return "Q4_K";
    if (mix_ == "Q3_K_M") return i < 2 ? "Q5_K" : "Q4_K";
    if (mix_ == "Q3_K_L") return "Q5_K";
    if (is({"IQ4_NL", "IQ4_XS"})) return many_heads() ? "Q5_K" : base();
    if (is({"Q4_K_M", "Q5_K_M"})) return more_bits(i, n_values_) ? "Q6_K" : base();
    if (mix_ == "Q4_K_S") return i < 4 ? "Q5_K" : base();
    return base();
  }

  std::string_view key_or_query_type(Category category) const {
    if (category == Category::kKey && eight_experts()) return is_low() ? "Q4_K" : "Q8_0";
    if (mix_ == "IQ3_XS") return "IQ3_XXS";
    return mix_ == "IQ3_XXS" ? "IQ2_S" : base();
  }

  std::string_view attention_output_type() const {
    if (eight_experts()) {
      const bool raised = is_low() || is({"Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL",
                                          "Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M", "IQ4_XS"});
      return raised ? "Q5_K" : base();
    }
    if (is({"IQ1_S", "IQ1_M"})) return "IQ2_XXS";
    if (is({"IQ2_S", "IQ2_M", "IQ3_XXS"})) return "IQ3_S";
    if (mix_ == "Q2_K") return "Q3_K";
    if (is({"Q3_K_M", "IQ3_M"})) return "Q4_K";
    return mix_ == "Q3_K_L" ? "Q5_K" : base();
  }

  std::string_view down_type(const MixTensor& tensor) {
    const int64_t running = i_down_++;
    const int64_t n = model_.n_layers;
    if (is_low()) {
      if (running >= n / 8) return base();
      return is({"IQ2_S", "IQ2_M"}) ? "IQ3_S" : "Q2_K";
    }
    const int64_t i = layer_index(tensor, running);
    const bool first = i < n / 8;
    if (mix_ == "Q2_K") return "Q3_K";
    if (mix_ == "Q2_K_S") return first ? "Q4_K" : base();
    if (mix_ == "IQ3_XXS") return options_.has_importance ? base() : (first ? "Q4_K" : "Q3_K");
    if (mix_ == "Q3_K_M") return i < n / 16 ? "Q5_K" : "Q4_K";
    if (mix_ == "IQ3_M") return first || (eight_experts() && more_bits(i, n)) ? "Q4_K" : base();
    if (mix_ == "Q3_K_L") return "Q5_K";
    if (is({"Q4_K_M", "Q5_K_M"})) return more_bits(i, n) ? "Q6_K" : base();
    if (is({"IQ4_NL", "IQ4_XS"})) return first && !options_.has_importance ? "Q5_K" : base();
    if (mix_ == "Q4_K_S") return first ? "Q5_K" : base();
    if (is({"Q4_0", "Q5_0"}) && options_.has_importance && first) {
      return mix_ == "Q4_0" ? "Q4_1" : "Q5_1";
    }
    return base();
  }

  std::string_view gate_or_up_type(const MixTensor& tensor, int64_t running) const {
    const int64_t n = model_.n_layers;
    const int64_t i = layer_index(tensor, running);
    return mix_ == "IQ3_XS" && i >= n / 8 && i < 7 * n / 8 ? "IQ3_XXS" : base();
  }

  const MixModel& model_;
  const MixOptions& options_;
  std::string_view mix_;
  int64_t n_values_ = 0;
  int64_t i_value_ = 0, i_down_ = 0, i_gate_ = 0, i_up_ = 0;
  bool tied_ = true;  // no output.weight: the embedding serves as head
};

/// `format`, or what stands in for it where it cannot hold rows of `columns`: one type with blocks
/// of 32, or else F16.
const WeightFormat& fitting_format(const WeightFormat& format, int64_t columns) {
  if (columns % format.block_columns() == 0) return format;
  const WeightFormat* fallback = find_format(format.fallback_name());
  ASSAY_CHECK(fallback != nullptr);
  return columns % fallback->block_columns() == 0 ? *fallback : scalar_format(DType::kF16);
}

const WeightFormat* override_for(std::string_view name, const MixOptions& options) {
  for (const TypeOverride& type_override : options.overrides) {
    if (std::regex_search(name.begin(), name.end(), type_override.pattern)) {
      return type_override.type;
    }
  }
  return nullptr;
}

void check_overrides(std::span<const MixTensor> tensors, const MixOptions& options) {
  for (const TypeOverride& type_override : options.overrides) {
    const auto matches = [&](const MixTensor& tensor) {
      return std::regex_search(tensor.name, type_override.pattern);
    };
    if (std::any_of(tensors.begin(), tensors.end(), matches)) continue;
    throw UsageError("--tensor-type " + type_override.text +
                     ": no tensor has a name that matches; names are like blk.0.attn_v.weight "
                     "(assay convert --dry-run lists them)");
  }
}

/// What llama-quantize refuses to make without an importance matrix.
bool requires_importance(std::string_view name, const WeightFormat& format, std::string_view mix) {
  if (is_embedding(name) || name == "output.weight") return false;
  return format.mix_needs_importance() || (format.name() == "Q2_K" && mix == "Q2_K_S");
}

}  // namespace

std::span<const QuantizationMix> all_mixes() {
  static const std::vector<QuantizationMix> mixes = make_mixes();
  return mixes;
}

const QuantizationMix* find_mix(std::string_view name) {
  const WeightFormat* format = find_format(name);
  const QuantizationMix* named = format == nullptr ? nullptr : named_mix_of(*format);
  return find_in(all_mixes(), named != nullptr ? named->name : upper_case(name));
}

MixModel mix_model_of(const GgufMetadata& metadata) {
  MixModel model;
  model.architecture = metadata.string("general.architecture").value_or("");
  const auto key = [&](const char* name) { return model.architecture + "." + name; };
  // Some families have one value per layer; the rules look at the first.
  const auto first = [&](const std::string& name) -> int64_t {
    const GgufValue* value = metadata.find(name);
    if (value == nullptr) return 0;
    const GgufArray* array = std::get_if<GgufArray>(value);
    if (array == nullptr) return metadata.integer(name).value_or(0);
    return std::visit(
        [&](const auto& values) -> int64_t {
          using T = typename std::decay_t<decltype(values)>::value_type;
          if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
            return values.empty() ? 0 : static_cast<int64_t>(values.front());
          } else {
            throw FormatError("GGUF key " + in_quotes(name) + ": expected integers");
          }
        },
        array->values);
  };
  model.n_layers = metadata.integer(key("block_count")).value_or(0);
  model.n_experts = metadata.integer(key("expert_count")).value_or(0);
  const int64_t n_heads = first(key("attention.head_count"));
  const int64_t n_kv_heads = first(key("attention.head_count_kv"));
  model.heads_per_kv_head = n_kv_heads > 0 ? n_heads / n_kv_heads : 0;
  constexpr std::string_view kWith70B[] = {"qwen2", "olmo", "deci"};
  model.is_70b = model.n_layers == 80 &&
                 ((model.architecture == "llama" && n_heads != n_kv_heads) ||
                  std::find(std::begin(kWith70B), std::end(kWith70B), model.architecture) !=
                      std::end(kWith70B));
  return model;
}

TypeOverride parse_type_override(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw UsageError("--tensor-type " + text + ": expected REGEX=TYPE, such as attn_v=Q8_0");
  }
  TypeOverride parsed;
  parsed.text = text;
  parsed.type = find_format(text.substr(equals + 1));
  if (parsed.type == nullptr || !parsed.type->gguf_type() || !parsed.type->can_encode()) {
    throw UsageError("--tensor-type " + text + ": there is no GGUF type " +
                     in_quotes(text.substr(equals + 1)) + " to write");
  }
  try {
    parsed.pattern = std::regex(text.substr(0, equals));
  } catch (const std::regex_error& error) {
    throw UsageError("--tensor-type " + text + ": " + in_quotes(text.substr(0, equals)) +
                     " is no regular expression: " + error.what());
  }
  return parsed;
}

bool quantized_order(std::string_view a, std::string_view b) {
  const int64_t layer_a = layer_of(a);
  const int64_t layer_b = layer_of(b);
  return layer_a != layer_b ? layer_a < layer_b : a < b;
}

std::vector<MixChoice> choose_types(const MixModel& model, std::span<const MixTensor> tensors,
                                    const MixOptions& options) {
  ASSAY_CHECK(options.mix != nullptr);
  check_overrides(tensors, options);
  const WeightFormat& base = *find_format(options.mix->base_type);
  MixRules rules(model, options, tensors);
  std::vector<MixChoice> choices;
  for (const MixTensor& tensor : tensors) {
    MixChoice choice;
    choice.format = tensor.stored;
    choice.allowed = may_be_quantized(tensor.name, tensor.shape);
    if (choice.allowed) {
      const WeightFormat* named = override_for(tensor.name, options);
      const bool named_table = named != nullptr && tensor.name == "per_layer_token_embd.weight";
      if (options.embedding_type != nullptr && is_embedding(tensor.name) && !named_table) {
        choice.format = options.embedding_type;
      } else if (options.output_type != nullptr && tensor.name == "output.weight") {
        choice.format = options.output_type;
      } else if (base.fold() == Fold::kFloat) {
        choice.format = &base;  // no rule, override or fallback acts on plain types
      } else {
        const WeightFormat& wanted = named != nullptr ? *named
                                     : options.pure   ? base
                                                      : *find_format(rules.type_of(tensor));
        choice.format = &fitting_format(wanted, tensor.shape.back());
        if (choice.format != &wanted) {
          choice.note = fmt::format("rows of {} columns do not hold blocks of {}",
                                    tensor.shape.back(), wanted.name());
        }
      }
    }
    choice.needs_importance =
        choice.allowed && requires_importance(tensor.name, *choice.format, options.mix->name);
    choices.push_back(std::move(choice));
  }
  return choices;
}

}  // namespace assay
