#include "verify/report/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/paths.h"
#include "verify/equivalence.h"

namespace assay::report {
namespace {

constexpr size_t kMostFacts = 80;

std::optional<double> number(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->as_number();
}

std::optional<int64_t> integer(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  if (value == nullptr || !value->is_integer()) return std::nullopt;
  return value->as_integer();
}

std::string text(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

std::vector<std::string> texts(const Json& json, std::string_view key) {
  std::vector<std::string> list;
  const Json* values = json.find(key);
  if (values == nullptr || !values->is_array()) return list;
  for (const Json& value : values->as_array()) {
    if (value.is_string()) list.push_back(value.as_string());
  }
  return list;
}

/// The members of an array that must be there; FormatError with the file if it is none.
const Json::Array& array(const Json& json, std::string_view key, const std::string& source) {
  const Json* value = json.find(key);
  if (value == nullptr || !value->is_array()) {
    throw FormatError(fmt::format("{}: expected an array \"{}\"", source, key));
  }
  return value->as_array();
}

/// Throws FormatError for a document of another kind; `kind` is what the writer calls its own.
void require_kind(const Json& json, std::string_view kind, const std::string& source) {
  if (json.is_object() && text(json, "kind") == kind) return;
  throw FormatError(fmt::format("{}: expected \"kind\" to be \"{}\"", source, kind));
}

ModuleRow read_module(const Json& json, size_t index, const std::string& source) {
  ModuleRow row;
  row.module = text(json, "module");
  if (row.module.empty()) {
    throw FormatError(fmt::format("{}: modules[{}] has no \"module\"", source, index));
  }
  row.layer = integer(json, "layer").value_or(-1);
  row.loss = number(json, "loss");
  row.rtn_loss = number(json, "rtn_loss");
  row.output_distance = number(json, "output_distance");
  row.rtn_output_distance = number(json, "rtn_output_distance");
  row.weight_norm = number(json, "weight_norm");
  row.damp_percent = number(json, "damp_percent");
  row.clipped_share = number(json, "clipped_share");
  row.seconds = number(json, "seconds");
  row.bits_per_weight = number(json, "bits_per_weight");
  const auto out = integer(json, "out_features"), in = integer(json, "in_features");
  if (out && in) row.n_weights = *out * *in;
  return row;
}

std::string scalar_text(const Json& value) {
  if (value.is_string()) return value.as_string();
  if (value.is_bool()) return value.as_bool() ? "yes" : "no";
  return value.dump(0);
}

bool is_scalar(const Json& value) {
  return value.is_string() || value.is_bool() || value.is_number();
}

/// Scalars of the document and, one level down, of its objects: "options.bits".
void add_facts(const Json& json, std::vector<std::pair<std::string, std::string>>& facts) {
  if (!json.is_object()) return;
  const auto add = [&](const std::string& name, const Json& value) {
    if (facts.size() < kMostFacts) facts.emplace_back(name, scalar_text(value));
  };
  for (const auto& [key, value] : json.as_object()) {
    if (is_scalar(value)) add(key, value);
  }
  for (const auto& [key, value] : json.as_object()) {
    if (!value.is_object() || key == "tensors" || key == "files") continue;
    for (const auto& [inner_key, inner] : value.as_object()) {
      if (is_scalar(inner)) add(fmt::format("{}.{}", key, inner_key), inner);
    }
  }
}

std::optional<double> ratio(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b || !(*b > 0.0)) return std::nullopt;
  return *a / *b;
}

std::string child(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

BucketRow read_bucket(const Json& json) {
  BucketRow row;
  row.rows = text(json, "rows");
  row.n_scored = integer(json, "n_scored").value_or(0);
  row.mean_a = number(json, "mean_nll_a").value_or(0.0);
  row.mean_b = number(json, "mean_nll_b").value_or(0.0);
  row.delta = number(json, "delta_nll").value_or(0.0);
  row.kld = number(json, "kld");
  row.top1_agreement = number(json, "top1_agreement").value_or(0.0);
  return row;
}

NllFigures read_figures(const Json& data) {
  NllFigures figures;
  figures.delta_nll = number(data, "delta_nll");
  figures.kld = number(data, "kld");
  if (const Json* interval = data.find("delta_nll_windows")) {
    figures.delta_half_width = number(*interval, "half_width_95");
  }
  return figures;
}

void read_nll(const Json& data, Verification& verification) {
  verification.nll = read_figures(data);
  const Json* buckets = data.find("buckets");
  if (buckets == nullptr || !buckets->is_array()) return;
  for (const Json& bucket : buckets->as_array())
    verification.buckets.push_back(read_bucket(bucket));
}

}  // namespace

std::optional<double> ModuleRow::relative_loss() const { return ratio(loss, weight_norm); }
std::optional<double> ModuleRow::relative_rtn_loss() const { return ratio(rtn_loss, weight_norm); }

std::vector<LayerBits> bits_per_layer(const RunData& run) {
  std::map<int64_t, std::pair<double, double>> sums;  // layer -> bits · weights, weights
  for (const ModuleRow& row : run.modules) {
    if (!row.bits_per_weight || row.layer < 0) continue;
    const double n = row.n_weights ? static_cast<double>(*row.n_weights) : 1.0;
    sums[row.layer].first += *row.bits_per_weight * n;
    sums[row.layer].second += n;
  }
  std::vector<LayerBits> layers;
  for (const auto& [layer, sum] : sums) layers.push_back({layer, sum.first / sum.second});
  return layers;
}

/// Throws FormatError for checks that the verdict does not follow from.
void require_checks(const Verification& verification, const std::string& source) {
  bool equal = true;
  std::set<std::string_view> names;
  for (const CheckRow& check : verification.checks) {
    const bool known = check.outcome == outcome_name(Outcome::kEqual) ||
                       check.outcome == outcome_name(Outcome::kWithin) ||
                       check.outcome == outcome_name(Outcome::kReported) ||
                       check.outcome == outcome_name(Outcome::kDifferent);
    if (!known || !names.insert(check.name).second) {
      throw FormatError(fmt::format(
          "{}: check \"{}\" {}", source, check.name,
          known ? "stands there twice" : "has the unknown outcome \"" + check.outcome + "\""));
    }
    equal = equal && check.outcome != outcome_name(Outcome::kDifferent);
  }
  if (verification.checks.empty() || equal != verification.equal) {
    throw FormatError(fmt::format("{}: \"equal\" is {}, but of {} checks {} different", source,
                                  verification.equal, verification.checks.size(),
                                  equal ? "none is" : "some are"));
  }
}

Verification read_verification(const Json& json, const std::string& source) {
  require_kind(json, "assay-verification", source);
  const Json* equal = json.find("equal");
  if (equal == nullptr || !equal->is_bool()) {
    throw FormatError(fmt::format("{}: no \"equal\"", source));
  }
  Verification verification;
  verification.equal = equal->as_bool();
  const Json* judged = json.find("judged");
  verification.judged =
      !verification.equal || (judged != nullptr && judged->is_bool() && judged->as_bool());
  verification.verdict = text(json, "verdict");
  verification.windows = text(json, "windows");
  if (const Json* policy = json.find("policy")) {
    verification.policy = text(*policy, "kind");
    if (const std::string reason = text(*policy, "reason"); !reason.empty()) {
      verification.policy += ": " + reason;
    }
  }
  if (const Json* sides = json.find("sides")) {
    if (const Json* a = sides->find("a")) verification.side_a = text(*a, "path");
    if (const Json* b = sides->find("b")) verification.side_b = text(*b, "path");
  }
  for (const Json& check : array(json, "checks", source)) {
    verification.checks.push_back({text(check, "name"), text(check, "outcome"),
                                   text(check, "summary"), texts(check, "details")});
    const Json* data = check.find("data");
    if (data != nullptr && text(check, "name") == "nll") read_nll(*data, verification);
  }
  require_checks(verification, source);
  return verification;
}

std::string report_path(const std::string& run_folder) {
  return without_trailing_slashes(run_folder) + ".report.json";
}

RunData read_run(const std::string& run_folder, const std::string& report_file,
                 const std::string& verify_file) {
  const std::string path = report_file.empty() ? report_path(run_folder) : report_file;
  if (!file_exists(path)) {
    throw FormatError(
        fmt::format("{}: is not there; expected the report that assay quantize writes beside its "
                    "output folder; --report names it where it lies elsewhere",
                    path));
  }
  const Json json = read_json_file(path);
  require_kind(json, "assay quantize report", path);
  RunData run;
  run.name = std::filesystem::weakly_canonical(run_folder).filename().string();
  std::set<std::string> modules;
  for (const Json& layer : array(json, "layers", path)) {
    for (const Json& item : array(layer, "modules", path)) {
      ModuleRow row = read_module(item, run.modules.size(), path);
      if (row.layer < 0) row.layer = integer(layer, "layer").value_or(-1);
      if (!modules.insert(row.module).second) {
        throw FormatError(fmt::format("{}: module \"{}\" stands there twice", path, row.module));
      }
      run.modules.push_back(std::move(row));
    }
    const Json* seconds = layer.find("seconds");
    if (seconds == nullptr || !seconds->is_object()) continue;
    for (const Json::Member& stage : seconds->as_object()) {
      const auto known = std::find_if(run.stages.begin(), run.stages.end(),
                                      [&](const StageRow& r) { return r.name == stage.first; });
      if (known == run.stages.end()) {
        run.stages.push_back({stage.first, stage.second.as_number()});
      } else {
        known->seconds += stage.second.as_number();
      }
    }
  }
  if (const Json* held_out = json.find("held_out"); held_out != nullptr && held_out->is_object()) {
    run.held_out = {integer(*held_out, "n_windows").value_or(0), read_figures(*held_out)};
  }
  add_facts(json, run.facts);
  if (const std::string manifest = child(run_folder, "assay_manifest.json");
      file_exists(manifest)) {
    add_facts(read_json_file(manifest), run.facts);
  }
  if (!verify_file.empty()) {
    try {
      run.verification = read_verification(read_json_file(verify_file), verify_file);
    } catch (const FormatError& error) {
      throw FormatError(
          fmt::format("{}; --verify takes the JSON file that assay verify-equivalence --json-out "
                      "writes",
                      error.what()));
    }
  }
  return run;
}

}  // namespace assay::report
