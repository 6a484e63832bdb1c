#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <cstring>

#include "convert/checkpoint/quantized_layout.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/families/config_reader.h"
#include "convert/formats/packed_integer.h"

namespace assay {
namespace {

/// Python's `re.match`: anchored at the start only.
class AnchoredPattern {
 public:
  AnchoredPattern(const std::string& pattern, const std::string& source) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_ANCHORED | PCRE2_UTF, &error, &offset, nullptr));
    if (code_ == nullptr) {
      PCRE2_UCHAR text[120] = {};
      pcre2_get_error_message(error, text, sizeof(text));
      throw FormatError(fmt::format("{}: \"re:{}\" is no valid pattern at character {}: {}", source,
                                    pattern, offset, reinterpret_cast<const char*>(text)));
    }
  }

  bool matches(const std::string& text) const {
    const std::unique_ptr<pcre2_match_data, Free> data(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    const int result = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                   text.size(), 0, 0, data.get(), nullptr);
    if (result >= 0) return true;
    if (result == PCRE2_ERROR_NOMATCH) return false;
    throw FormatError(fmt::format(
        "a pattern of quantization_config takes too many steps on \"{}\" (PCRE2 error {})", text,
        result));
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
};

/// One list of `targets` or `ignore`: exact module names, "re:" patterns, class names. Every module
/// that is asked about here is a Linear.
class ModuleList {
 public:
  ModuleList(const Json& list, const std::string& source) {
    if (!list.is_array()) throw FormatError(source + ": expected a list of module names");
    for (const Json& item : list.as_array()) {
      if (!item.is_string()) throw FormatError(source + ": expected a list of module names");
      const std::string& text = item.as_string();
      if (text.starts_with("re:")) {
        patterns_.emplace_back(text.substr(3), source);
      } else {
        names_.push_back(text);
      }
    }
  }

  bool names(const std::string& module) const {
    return std::find(names_.begin(), names_.end(), module) != names_.end() ||
           std::any_of(patterns_.begin(), patterns_.end(),
                       [&](const AnchoredPattern& pattern) { return pattern.matches(module); });
  }
  bool has_linear_class() const {
    return std::find(names_.begin(), names_.end(), "Linear") != names_.end();
  }

 private:
  std::vector<std::string> names_;
  std::vector<AnchoredPattern> patterns_;
};

struct Scheme {
  int bits = 4;
  bool symmetric = true;
  int64_t group_size = -1;  // −1: whole row
};

/// A group of `config_groups`.
struct Group {
  std::string name;
  ModuleList targets;
  Scheme scheme;
};

Scheme read_scheme(const Json& json, const std::string& source) {
  const ConfigReader config(json, source);
  constexpr std::string_view kKnown[] = {
      "num_bits", "type",     "symmetric", "group_size",      "strategy",    "block_structure",
      "dynamic",  "actorder", "observer",  "observer_kwargs", "scale_dtype", "zp_dtype"};
  for (const auto& [key, value] : json.as_object()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      throw UnsupportedError(fmt::format("{}: \"{}\" is not known", source, key));
    }
  }
  const auto refuse = [&](std::string_view key, std::string_view supported) {
    throw UnsupportedError(fmt::format("{}: \"{}\" {} is not supported; {}", source, key,
                                       config.find(key)->dump(0), supported));
  };
  Scheme scheme;
  scheme.bits = static_cast<int>(config.integer("num_bits", 1, 32));
  scheme.symmetric = config.boolean_or("symmetric", true);
  if (find_integer_format(scheme.bits, scheme.symmetric) == nullptr) {
    refuse("num_bits", integer_bits_text("and") + " are");
  }
  if (config.text_or("type", "int") != "int") refuse("type", "int is");
  if (config.boolean_or("dynamic", false)) refuse("dynamic", "static weights are");
  if (config.has("block_structure")) refuse("block_structure", "group and channel are");
  const std::string strategy =
      config.text_or("strategy", config.has("group_size") ? "group" : "channel");
  if (strategy == "group") {
    scheme.group_size = config.integer("group_size", 1, int64_t{1} << 30);
  } else if (strategy != "channel") {
    refuse("strategy", "group and channel are");
  }
  return scheme;
}

// ---------------------------------------------------------------------------------------------

/// `weight_packed` lies as PackedIntegerFormat reads it; only zero points are unpacked.
class CompressedMatrix final : public TensorOnDisk {
 public:
  CompressedMatrix(const WeightFormat& format, int64_t rows, int64_t columns, int64_t group_size,
                   const SafetensorsEntry& packed, const SafetensorsEntry& scale,
                   const SafetensorsEntry* zero_point)
      : zero_point_(zero_point) {
    view_.format = &format;
    view_.rows = rows;
    view_.columns = columns;
    view_.group_size = group_size;
    view_.data = packed.view.bytes;
    view_.scales = scale.view;
    stored_.format = &format;
    stored_.group_size = group_size;
    stored_.scale_dtype = scale.view.dtype;
    for (const SafetensorsEntry* part : {&packed, &scale, zero_point}) {
      if (part == nullptr) continue;
      stored_.bytes += part->view.bytes.size();
      stored_.parts.push_back(part->name);
    }
  }

  CheckpointMatrix load() const override {
    CheckpointMatrix matrix;
    matrix.view = view_;
    if (zero_point_ == nullptr) return matrix;
    auto storage = std::make_shared<std::vector<std::byte>>(unpack_zero_points());
    matrix.view.zero_points = {reinterpret_cast<const uint8_t*>(storage->data()), storage->size()};
    matrix.storage = std::move(storage);
    return matrix;
  }

 private:
  /// (⌈rows·bits/32⌉, n_groups) words, packed along the rows → (rows, n_groups) bytes.
  std::vector<std::byte> unpack_zero_points() const {
    const int bits = view_.format->code_bits();
    const int64_t n_groups = view_.n_groups();
    std::vector<std::byte> out(static_cast<size_t>(view_.rows * n_groups));
    parallel_for_anywhere(view_.rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t g = 0; g < n_groups; ++g) {
          out[static_cast<size_t>(row * n_groups + g)] = static_cast<std::byte>(
              packed_code(zero_point_->view.bytes.data() + 4 * g, n_groups, bits, row));
        }
      }
    });
    return out;
  }

  WeightView view_;
  const SafetensorsEntry* zero_point_;
};

class CompressedTensorsLayout final : public QuantizedLayout {
 public:
  CompressedTensorsLayout(std::vector<Group> groups, ModuleList ignore)
      : groups_(std::move(groups)), ignore_(std::move(ignore)) {}

  std::unique_ptr<const TensorOnDisk> open(const std::string& module, int64_t rows, int64_t columns,
                                           TensorLedger& ledger) const override {
    const Group* group = group_of(module);
    const bool has_packed = ledger.has(module + ".weight_packed");
    if (group == nullptr) {
      if (has_packed) {
        ledger.problem(fmt::format(
            "\"{0}\" is not to be quantized by config.json, but \"{0}.weight_packed\" is there",
            module));
      }
      return nullptr;
    }
    if (!has_packed && ledger.has(module + ".weight")) {
      ledger.problem(fmt::format(
          "\"{0}\" is to be quantized by config.json ({1}), but there is a plain \"{0}.weight\"; "
          "is it missing in \"ignore\"?",
          module, group->name));
      return nullptr;
    }
    return open_packed(module, rows, columns, group->scheme, ledger);
  }

 private:
  const Group* group_of(const std::string& module) const {
    if (ignore_.names(module) || ignore_.has_linear_class()) return nullptr;
    for (const Group& group : groups_) {
      if (group.targets.names(module)) return &group;
    }
    for (const Group& group : groups_) {
      if (group.targets.has_linear_class()) return &group;
    }
    return nullptr;
  }

  static std::unique_ptr<const TensorOnDisk> open_packed(const std::string& module, int64_t rows,
                                                         int64_t columns, const Scheme& scheme,
                                                         TensorLedger& ledger) {
    const int64_t group_size = check_group_size(module, scheme.bits, scheme.group_size, columns);
    const int64_t n_groups = columns / group_size;
    const SafetensorsEntry* packed = ledger.require(
        module + ".weight_packed", {rows, columns * scheme.bits / 32}, {DType::kI32});
    const SafetensorsEntry* scale = ledger.require(module + ".weight_scale", {rows, n_groups},
                                                   {DType::kBF16, DType::kF16, DType::kF32});
    const SafetensorsEntry* shape =
        ledger.require(module + ".weight_shape", {2}, {DType::kI64, DType::kI32});
    check_weight_shape(shape, rows, columns, ledger);
    const SafetensorsEntry* zero_point = nullptr;
    const std::string zero_name = module + ".weight_zero_point";
    if (!scheme.symmetric) {
      zero_point =
          ledger.require(zero_name, {(rows * scheme.bits + 31) / 32, n_groups}, {DType::kI32});
    } else if (ledger.take(zero_name) != nullptr) {
      ledger.problem(fmt::format("\"{}\" is there although config.json says symmetric", zero_name));
    }
    std::vector<int32_t> group_of;
    if (const SafetensorsEntry* index = ledger.take(module + ".weight_g_idx")) {
      group_of = read_group_index(*index, columns, group_size, ledger);
    }
    if (packed == nullptr || scale == nullptr || (!scheme.symmetric && zero_point == nullptr)) {
      return nullptr;
    }
    return in_group_order(
        std::make_unique<CompressedMatrix>(integer_format(scheme.bits, scheme.symmetric), rows,
                                           columns, group_size, *packed, *scale, zero_point),
        std::move(group_of));
  }

  static void check_weight_shape(const SafetensorsEntry* entry, int64_t rows, int64_t columns,
                                 TensorLedger& ledger) {
    if (entry == nullptr) return;
    int64_t shape[2] = {};
    if (entry->view.dtype == DType::kI64) {
      std::memcpy(shape, entry->view.bytes.data(), 16);
    } else {
      int32_t narrow[2] = {};
      std::memcpy(narrow, entry->view.bytes.data(), 8);
      shape[0] = narrow[0];
      shape[1] = narrow[1];
    }
    if (shape[0] != rows || shape[1] != columns) {
      ledger.problem(fmt::format("\"{}\" holds [{}, {}], expected [{}, {}]", entry->name, shape[0],
                                 shape[1], rows, columns));
    }
  }

  std::vector<Group> groups_;
  ModuleList ignore_;
};

/// Parts of the configuration that would change the arithmetic and are not implemented.
void refuse_other_parts(const ConfigReader& config) {
  const std::string format = config.text_or("format", "pack-quantized");
  if (format != "pack-quantized" && format != "mixed-precision") {
    throw UnsupportedError(fmt::format("{}: format \"{}\" is not supported; pack-quantized is",
                                       config.source(), format));
  }
  for (const char* key : {"kv_cache_scheme", "sparsity_config", "transform_config"}) {
    const Json* part = config.find(key);
    const bool empty = part == nullptr || (part->is_object() && part->as_object().empty());
    if (!empty) {
      throw UnsupportedError(fmt::format("{}: \"{}\" is not supported", config.source(), key));
    }
  }
}

/// Format pack-quantized, per group or per row. Source: compressed-tensors, pack-quantized.
std::unique_ptr<QuantizedLayout> read_config(const Json& json, const std::string& source) {
  const ConfigReader config(json, source);
  refuse_other_parts(config);
  const Json* groups_json = config.find("config_groups");
  if (groups_json == nullptr || !groups_json->is_object() || groups_json->as_object().empty()) {
    config.fail("config_groups", "an object of groups");
  }
  std::vector<Group> groups;
  for (const auto& [name, group_json] : groups_json->as_object()) {
    const std::string group_source = fmt::format("{}: config_groups.{}", source, name);
    const ConfigReader group(group_json, group_source);
    if (group.text_or("format", "pack-quantized") != "pack-quantized") {
      throw UnsupportedError(fmt::format("{}: format \"{}\" is not supported; pack-quantized is",
                                         group_source, group.text("format")));
    }
    for (const char* key : {"input_activations", "output_activations"}) {
      if (group.has(key)) {
        throw UnsupportedError(
            fmt::format("{}: quantized \"{}\" are not supported", group_source, key));
      }
    }
    const Json* weights = group.find("weights");
    if (weights == nullptr) group.fail("weights", "the scheme of the weights");
    const Json* targets = group.find("targets");
    if (targets == nullptr) group.fail("targets", "a list of module names");
    groups.push_back({name, ModuleList(*targets, group_source + ".targets"),
                      read_scheme(*weights, group_source + ".weights")});
  }
  const Json* ignore = config.find("ignore");
  return std::make_unique<CompressedTensorsLayout>(
      std::move(groups),
      ModuleList(ignore == nullptr ? Json::array() : *ignore, source + ": ignore"));
}

constexpr Engine kEngines[] = {
    {.name = "vLLM", .by_marlin = true},
    {.name = "SGLang", .by_marlin = true},
    {.name = "transformers", .note = "with compressed-tensors; it computes on dequantized weights"},
};

}  // namespace

extern const CheckpointFormat kCompressedTensorsFormat;
const CheckpointFormat kCompressedTensorsFormat = {
    .kind = CheckpointKind::kQuantizedFolder,
    .name = "compressed-tensors",
    .engines = kEngines,
    .quant_method = "compressed-tensors",
    .read = read_config,
};

}  // namespace assay
