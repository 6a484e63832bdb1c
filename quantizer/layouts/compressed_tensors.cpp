// compressed-tensors, format "pack-quantized".
#include <cstring>

#include "convert/core/error.h"
#include "convert/formats/packed_integer.h"
#include "quantizer/grid.h"
#include "quantizer/layouts/layout.h"
#include "quantizer/layouts/packing.h"

namespace assay {
namespace {

// Version of the format's reference library whose fields are written.
constexpr const char* kFormatVersion = "0.15.0";

DType scale_dtype(DType source) { return source; }

void check(const QuantizeOptions&) {}

std::string find_fault(const LinearShape& linear, const QuantizeOptions& options) {
  if (linear.in_features * options.bits % 32 == 0) return {};
  return "columns must be a multiple of " + std::to_string(codes_per_unit(options.bits));
}

std::vector<TensorSpec> tensors(const LinearShape& linear, const QuantizeOptions& options) {
  const std::string module(linear.module);
  const int64_t n_groups = groups_per_row(linear.in_features, options);
  std::vector<TensorSpec> specs = {
      {module + ".weight_packed",
       DType::kI32,
       {linear.out_features, packed_words(options.bits, linear.in_features)}},
      {module + ".weight_scale", options.scale_dtype, {linear.out_features, n_groups}},
      {module + ".weight_shape", DType::kI64, {2}},
  };
  if (!options.symmetric) {
    specs.push_back({module + ".weight_zero_point",
                     DType::kI32,
                     {packed_words(options.bits, linear.out_features), n_groups}});
  }
  return specs;
}

std::vector<std::vector<std::byte>> pack(const LinearShape& linear, const QuantizeOptions& options,
                                         const LayerResult& result) {
  std::vector<std::vector<std::byte>> out;
  out.push_back(
      pack_along_rows(options.bits, result.codes, linear.out_features, linear.in_features));
  out.push_back(narrow_scales(result.scales, options.scale_dtype));
  const int64_t shape[2] = {linear.out_features, linear.in_features};
  out.emplace_back(sizeof(shape));
  std::memcpy(out.back().data(), shape, sizeof(shape));
  if (!options.symmetric) {
    out.push_back(pack_down_columns(options.bits, result.zero_points, linear.out_features,
                                    groups_per_row(linear.in_features, options)));
  }
  return out;
}

// Keys sorted, as the reference library writes them.
Json config(const QuantizeOptions& options, const LayoutContext& context) {
  const bool whole_row = options.group_size < 0;
  Json weights = Json::object();
  weights.set("actorder", options.act_order == ActOrder::kStatic ? Json("static") : Json())
      .set("block_structure", Json())
      .set("dynamic", false)
      .set("group_size", whole_row ? Json() : Json(options.group_size))
      .set("num_bits", options.bits)
      .set("observer", "minmax")
      .set("observer_kwargs", Json::object())
      .set("scale_dtype", Json())
      .set("strategy", whole_row ? "channel" : "group")
      .set("symmetric", options.symmetric)
      .set("type", "int")
      .set("zp_dtype", options.symmetric ? Json() : Json("torch.int8"));
  Json group = Json::object();
  group.set("format", "pack-quantized")
      .set("input_activations", Json())
      .set("output_activations", Json())
      .set("targets", Json(Json::Array{Json("Linear")}))
      .set("weights", weights);
  Json ignore = Json::array();
  for (const std::string& module : context.ignore) ignore.push(module);
  Json out = Json::object();
  out.set("config_groups", Json::object().set("group_0", group))
      .set("format", "pack-quantized")
      .set("global_compression_ratio", Json())
      .set("ignore", ignore)
      .set("kv_cache_scheme", Json())
      .set("quant_method", "compressed-tensors")
      .set("quantization_status", "compressed")
      .set("sparsity_config", Json::object())
      .set("transform_config", Json::object())
      .set("version", kFormatVersion);
  return out;
}

}  // namespace

extern const CheckpointLayout kCompressedTensorsLayout;
const CheckpointLayout kCompressedTensorsLayout = {
    .name = "compressed-tensors",
    .description = "its \"pack-quantized\" (vLLM, SGLang, transformers)",
    .scale_dtype = scale_dtype,
    .check = check,
    .find_fault = find_fault,
    .tensors = tensors,
    .pack = pack,
    .config = config,
    .python_package = "compressed-tensors",
};

}  // namespace assay
