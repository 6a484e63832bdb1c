#include "quantizer/fingerprint.h"

#include <algorithm>
#include <set>

#include "convert/companions.h"
#include "convert/core/file.h"
#include "convert/core/sha256.h"
#include "convert/core/version.h"
#include "quantizer/recipe.h"

namespace assay {
namespace {

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void add_model(const RunPlan& plan, Json& out) {
  const std::string folder = plan.checkpoint->path();
  std::vector<std::string> names = companion_files(folder);
  names.push_back("config.json");
  for (const SafetensorsFile& shard : plan.checkpoint->safetensors()->shards()) {
    names.push_back(base_name(shard.path()));
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    out.set("model " + name, sha256_of_file(folder + "/" + name));
  }
}

void add_options(const RunPlan& plan, const RunOptions& options, Json& out) {
  const QuantizeOptions& q = plan.quantize;
  Json retries = Json::array();
  for (const double damp : q.damp_retries) retries.push(damp);
  Json skip = Json::array();
  for (const std::string& pattern : options.skip) skip.push(pattern);
  out.set("option algorithm", q.algorithm)
      .set("option bits", q.bits)
      .set("option group_size", q.group_size)
      .set("option symmetric", q.symmetric)
      .set("option scale_dtype", dtype_name(q.scale_dtype))
      .set("option damp_percent", q.damp_percent)
      .set("option damp_basis", kDampBasisWords.name(q.damp_basis))
      .set("option damp_retries", retries)
      .set("option propagate", q.propagate)
      .set("option capture", kCaptureModeWords.name(options.capture))
      .set("option kv_type", kv_type_name(options.kv_type))
      .set("option format", plan.layout->name)
      .set("option skip", skip)
      .set("option min_expert_tokens", options.min_expert_tokens)
      .set("option shard_size", options.max_shard_bytes);
  out.set("option card", plan.card);
  if (options.held_out_windows > 0) out.set("option held_out_windows", options.held_out_windows);
  if (options.per_module) {
    out.set("option per_module", kPerModuleWords.name(*options.per_module));
  }
  for (size_t i = 0; i < options.overrides.size(); ++i) {
    Json modules = Json::array();
    for (const std::string& pattern : options.overrides[i].modules) modules.push(pattern);
    out.set("option override " + std::to_string(i + 1),
            Json::object().set("modules", modules).set("values", options.overrides[i].values));
  }
  if (!plan.off_lattice.empty()) {
    Json free = Json::array();
    for (const std::string& module : plan.off_lattice_names()) free.push(module);
    out.set("option grid_free", free);
  }
  const Json recipe = recipe_json(q);
  for (const auto& [name, value] : recipe.as_object()) out.set("option " + name, value);
}

}  // namespace

Json make_fingerprint(const RunPlan& plan, const RunOptions& options, const TokenWindows* windows) {
  Json out = Json::object();
  out.set("assay version", version()).set("arithmetic", kArithmetic);
  add_model(plan, out);
  if (windows != nullptr) {
    out.set("calibration windows", windows->n_windows)
        .set("calibration window_length", windows->window_length)
        .set("calibration token_ids_sha256", windows->sha256());
  }
  add_options(plan, options, out);
  return out;
}

std::string fingerprint_difference(const Json& found, const Json& expected) {
  std::set<std::string> names;
  for (const auto& [name, value] : found.as_object()) names.insert(name);
  for (const auto& [name, value] : expected.as_object()) names.insert(name);
  for (const std::string& name : names) {
    const Json* a = found.find(name);
    const Json* b = expected.find(name);
    if (a != nullptr && b != nullptr && *a == *b) continue;
    return name + ": found " + (a != nullptr ? a->dump(0) : "nothing") + ", expected " +
           (b != nullptr ? b->dump(0) : "nothing");
  }
  return {};
}

}  // namespace assay
