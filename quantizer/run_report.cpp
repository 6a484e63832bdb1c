#include "quantizer/run_report.h"

#include "convert/core/version.h"
#include "quantizer/recipe.h"

namespace assay {

namespace {

// The whole model on windows that no Hessian saw; null: there were none.
Json held_out_json(const RunResult& result) {
  if (result.layers.empty() || result.layers.back().held_out.is_null()) return {};
  Json json = result.layers.back().held_out;
  json.set("token_ids_sha256", result.held_out_sha256);
  return json;
}

}  // namespace

Json run_report(const RunOptions& options, const RunResult& result) {
  Json layers = Json::array();
  for (const LayerReport& layer : result.layers) layers.push(to_json(layer));
  Json files = Json::array();
  for (const OutputFile& file : result.files) {
    files.push(
        Json::object().set("name", file.name).set("bytes", file.bytes).set("sha256", file.sha256));
  }
  Json not_better = Json::array();
  for (const std::string& name : modules_not_better_than_rtn(result.layers)) not_better.push(name);
  Json away = Json::array();
  for (const std::string& name : modules_away_from_their_weights(result.layers)) away.push(name);
  Json json = Json::object();
  json.set("kind", "assay quantize report")
      .set("assay_version", version())
      .set("arithmetic", kArithmetic)
      .set("model", options.model)
      .set("out", options.out)
      .set("algorithm", options.quantize.algorithm)
      .set("bits", options.quantize.bits)
      .set("group_size", options.quantize.group_size)
      .set("symmetric", options.quantize.symmetric)
      .set("format", options.layout)
      .set("recipe", recipe_json(options.quantize))
      .set("calibration", Json::object()
                              .set("file", options.calibration)
                              .set("n_windows", result.n_windows)
                              .set("window_length", result.window_length)
                              .set("n_tokens", result.n_windows * result.window_length)
                              .set("token_ids_sha256", result.calibration_sha256))
      .set("held_out", held_out_json(result))
      .set("seconds", result.seconds)
      .set("layers_resumed", result.n_layers_resumed)
      .set("output_bytes", result.output_bytes)
      .set("spilled_bytes", result.most_spilled_bytes)
      .set("modules_not_better_than_rtn", not_better)
      .set("modules_away_from_their_weights", away)
      .set("layers", layers)
      .set("files", files);
  return json;
}

}  // namespace assay
