// GPTQ v1 checkpoints, symmetric. Source: GPTQModel.
#include <cstring>

#include "convert/core/error.h"
#include "convert/formats/packed_integer.h"
#include "quantizer/grid.h"
#include "quantizer/layouts/layout.h"
#include "quantizer/layouts/packing.h"

namespace assay {
namespace {

DType scale_dtype(DType) { return DType::kF16; }

void check(const QuantizeOptions& options) {
  if (options.symmetric) return;
  throw UsageError(
      "--format gptq: found an asymmetric scheme, expected a symmetric one; version 1 stores each "
      "zero point minus one, which readers decode in two ways; use --scheme W" +
      std::to_string(options.bits) + "A16 or --format compressed-tensors");
}

std::string find_fault(const LinearShape& linear, const QuantizeOptions& options) {
  const int64_t step = codes_per_unit(options.bits);
  if (linear.in_features % step == 0 && linear.out_features % step == 0) return {};
  return "rows and columns must be multiples of " + std::to_string(step);
}

std::vector<TensorSpec> tensors(const LinearShape& linear, const QuantizeOptions& options) {
  const std::string module(linear.module);
  const int64_t n_groups = groups_per_row(linear.in_features, options);
  return {
      {module + ".qweight",
       DType::kI32,
       {packed_words(options.bits, linear.in_features), linear.out_features}},
      {module + ".qzeros",
       DType::kI32,
       {n_groups, packed_words(options.bits, linear.out_features)}},
      {module + ".scales", DType::kF16, {n_groups, linear.out_features}},
      {module + ".g_idx", DType::kI32, {linear.in_features}},
  };
}

std::vector<std::vector<std::byte>> pack(const LinearShape& linear, const QuantizeOptions& options,
                                         const LayerResult& result) {
  const int64_t n_groups = groups_per_row(linear.in_features, options);
  std::vector<std::vector<std::byte>> out;
  const std::vector<uint8_t> codes =
      transpose(result.codes, linear.out_features, linear.in_features);
  out.push_back(pack_down_columns(options.bits, codes, linear.in_features, linear.out_features));

  // Stored zero = z − 1; symmetric z is never 0, so nothing borrows.
  std::vector<uint8_t> zeros = transpose(result.zero_points, linear.out_features, n_groups);
  for (uint8_t& zero : zeros) {
    ASSAY_CHECK(zero == 1 << (options.bits - 1));
    --zero;
  }
  out.push_back(pack_along_rows(options.bits, zeros, n_groups, linear.out_features));

  std::vector<float> scales(result.scales.size());
  for (int64_t row = 0; row < linear.out_features; ++row) {
    for (int64_t g = 0; g < n_groups; ++g) {
      scales[static_cast<size_t>(g * linear.out_features + row)] =
          result.scales[static_cast<size_t>(row * n_groups + g)];
    }
  }
  out.push_back(narrow_scales(scales, DType::kF16));

  std::vector<int32_t> group_of_column(static_cast<size_t>(linear.in_features));
  const int64_t columns = columns_per_group(linear.in_features, options);
  for (int64_t k = 0; k < linear.in_features; ++k) {
    group_of_column[static_cast<size_t>(k)] = static_cast<int32_t>(k / columns);
  }
  const auto bytes = std::as_bytes(std::span(group_of_column));
  out.emplace_back(bytes.begin(), bytes.end());
  return out;
}

// Module names are matched as regular expressions; a leading "-:" leaves them out.
std::string leave_out_key(const std::string& module) {
  std::string key = "-:^";
  for (const char c : module) {
    if (c == '.') key += '\\';
    key += c;
  }
  return key + "$";
}

Json config(const QuantizeOptions& options, const LayoutContext& context) {
  Json dynamic = Json::object();
  for (const std::string& module : context.ignore) {
    if (module != "lm_head") dynamic.set(leave_out_key(module), Json::object());
  }
  Json meta = Json::object();
  meta.set("damp_percent", options.damp_percent)
      .set("quantizer", Json(Json::Array{Json("assay:" + std::string(context.program_version))}))
      .set("static_groups", options.act_order == ActOrder::kStatic)
      .set("true_sequential", true);
  Json out = Json::object();
  out.set("bits", options.bits)
      .set("checkpoint_format", "gptq")
      .set("desc_act", false)
      .set("dynamic", dynamic)
      .set("group_size", options.group_size)
      .set("lm_head", false)
      .set("meta", meta)
      .set("pack_dtype", "int32")
      .set("quant_method", "gptq")
      .set("sym", options.symmetric);
  return out;
}

}  // namespace

extern const CheckpointLayout kGptqLayout;
const CheckpointLayout kGptqLayout = {
    .name = "gptq",
    .description = "version 1, symmetric only (GPTQModel, vLLM)",
    .scale_dtype = scale_dtype,
    .check = check,
    .find_fault = find_fault,
    .tensors = tensors,
    .pack = pack,
    .config = config,
    .side_file = "quantize_config.json",
    .python_package = "gptqmodel",
};

}  // namespace assay
