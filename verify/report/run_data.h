#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "convert/core/json.h"

namespace assay::report {

/// One quantized linear of a run. Fields that the file does not state are empty.
struct ModuleRow {
  int64_t layer = -1;                    // −1: not in a layer
  std::string module;                    // "model.layers.0.self_attn.q_proj"
  std::optional<double> loss, rtn_loss;  // (W − Ŵ) H (W − Ŵ)^T summed over rows
  /// To the 16-bit output, less what no Ŵ can change; of this result and of rounding to nearest.
  std::optional<double> output_distance, rtn_output_distance;
  std::optional<double> weight_norm;  // W H W^T summed over rows
  std::optional<double> damp_percent, clipped_share, seconds;
  std::optional<double> bits_per_weight;  // scales and zero points included
  std::optional<int64_t> n_weights;

  /// loss / weight_norm: comparable between modules. Empty if either is unknown or the norm is 0.
  std::optional<double> relative_loss() const;
  std::optional<double> relative_rtn_loss() const;
};

struct StageRow {
  std::string name;
  double seconds = 0.0;
};

struct BucketRow {
  std::string rows;  // "0-64"
  int64_t n_scored = 0;
  double mean_a = 0.0, mean_b = 0.0, delta = 0.0, top1_agreement = 0.0;
  std::optional<double> kld;
};

struct CheckRow {
  std::string name, outcome, summary;
  std::vector<std::string> details;
};

/// How far the predictions moved from the original's, in nats per token.
struct NllFigures {
  std::optional<double> delta_nll, delta_half_width, kld;
};

/// The comparison with the original on windows that calibration did not see.
struct HeldOut {
  int64_t n_windows = 0;
  NllFigures nll;
};

/// The verdict of assay verify-equivalence.
struct Verification {
  bool equal = false;   // nothing that was judged differs
  bool judged = false;  // something was
  std::string verdict, policy, windows, side_a, side_b;
  std::vector<CheckRow> checks;
  std::vector<BucketRow> buckets;
  NllFigures nll;
};

/// Everything that a report shows.
struct RunData {
  std::string name;                                        // of the run's folder
  std::vector<std::pair<std::string, std::string>> facts;  // options, versions, hashes
  std::vector<ModuleRow> modules;                          // order of the file
  std::vector<StageRow> stages;
  std::optional<HeldOut> held_out;
  std::optional<Verification> verification;
};

/// Mean bits of the modules of one layer, weighted by their sizes where those are known.
struct LayerBits {
  int64_t layer = -1;
  double bits = 0.0;
};
std::vector<LayerBits> bits_per_layer(const RunData& run);

/// The report that assay quantize writes beside its folder (times are not part of what is
/// reproducible): `<run_folder>.report.json`.
std::string report_path(const std::string& run_folder);

/// Reads the report of a run:
///   {"layers": [{"layer": 0, "seconds": {"forward": …, …},
///                "modules": [{"layer": 0, "module": "…", "loss": …, "rtn_loss": …,
///                             "weight_norm": …, "damp_percent": …, "clipped_share": …,
///                             "seconds": …, "bits_per_weight": …, "out_features": …,
///                             "in_features": …}]}],
///    "held_out": {"n_windows": …, "delta_nll": …, "kld": …,
///                 "delta_nll_windows": {"half_width_95": …}} or null, …}
/// Only "kind", "layers", "modules" and "module" must be there, each module once. Other scalar
/// members, and those of the folder's assay_manifest.json, become facts. `report_file`, if not
/// empty, is read instead of report_path(run_folder). `verify_file` (may be empty) is what
/// verify-equivalence wrote with --json. Throws FormatError naming file and member.
RunData read_run(const std::string& run_folder, const std::string& report_file,
                 const std::string& verify_file);

/// The verdict alone. Throws FormatError where it does not follow from the checks beside it.
Verification read_verification(const Json& json, const std::string& source);

}  // namespace assay::report
