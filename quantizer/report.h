#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert/core/json.h"
#include "quantizer/quantize.h"

namespace assay {

/// What is known about one quantized linear.
struct ModuleReport {
  std::string module;
  int layer = -1;
  int64_t out_features = 0;
  int64_t in_features = 0;
  double bits_per_weight = 0.0;
  int64_t n_tokens = 0;       // calibration tokens behind the Hessian; 0: none
  bool starved = false;       // an expert with too few tokens, rounded to nearest
  bool off_lattice = false;   // free scales in a run of --grid q4_k, which cannot hold its columns
  double loss = 0.0;          // (W − Ŵ) H (W − Ŵ)^T
  double rtn_loss = 0.0;      // of round-to-nearest with min-max scales
  double weight_norm = 0.0;   // W H W^T
  double damp_percent = 0.0;  // used; 0 where nothing was factored
  int64_t n_dead = 0;         // input channels that no token reaches
  double clipped_share = 0.0;
  std::optional<double> output_distance = std::nullopt;  // LayerResult::output_distance
  std::optional<double> rtn_output_distance = std::nullopt;
  std::optional<double> coupled_loss = std::nullopt;  // LayerResult::coupled_loss
  std::optional<double> rtn_coupled_loss = std::nullopt;
  std::optional<StepLosses> steps = std::nullopt;   // LayerResult::steps
  std::optional<double> plain_loss = std::nullopt;  // LayerResult::plain_loss
  Json choice = {};      // what --per-module chose and from what; null: nothing was to be chosen
  double seconds = 0.0;  // scale search, column loop, losses

  double relative_loss() const { return weight_norm > 0.0 ? loss / weight_norm : 0.0; }
  double relative_rtn_loss() const { return weight_norm > 0.0 ? rtn_loss / weight_norm : 0.0; }
};

/// Wall seconds of the stages of one layer.
struct StageSeconds {
  double sensitivity = 0.0;  // of the whole model, before the first layer of a run
  double forward = 0.0;
  double gram = 0.0;
  double factor = 0.0;
  double solve = 0.0;
  double total() const { return sensitivity + forward + gram + factor + solve; }
};

struct LayerReport {
  int layer = -1;
  StageSeconds seconds;
  std::vector<ModuleReport> modules;
  /// The whole model against the original, with the last layer (NllComparison::to_json).
  Json held_out = {};
};

Json to_json(const ModuleReport& module);
Json to_json(const LayerReport& layer);
/// Throws FormatError.
LayerReport layer_report_from_json(const Json& json);

/// Heading and rows of the table that the terminal shows while a run goes on.
std::string table_heading();
std::string table_row(const ModuleReport& module);

/// Modules that do not do better than round-to-nearest at what they aim at: what the errors of
/// their outputs do to the predictions, or the distance to the 16-bit output, where these are
/// known, else the loss.
std::vector<std::string> modules_not_better_than_rtn(const std::vector<LayerReport>& layers);
/// The others whose loss is not below that of round-to-nearest all the same: they are nearer to
/// what they aim at, but further from their own weights.
std::vector<std::string> modules_away_from_their_weights(const std::vector<LayerReport>& layers);

}  // namespace assay
