#pragma once

#include <string>
#include <vector>

#include "quantizer/estimate.h"
#include "quantizer/output_folder.h"
#include "quantizer/run_options.h"

namespace assay {

/// Throws UsageError where options.out or an interrupted run is in the way.
void refuse_what_is_there(const RunOptions& options);

/// What a finished run has to say.
struct RunResult {
  std::vector<LayerReport> layers;
  std::vector<OutputFile> files;
  uint64_t output_bytes = 0;
  int64_t n_windows = 0;  // calibration windows used; 0: none
  int64_t window_length = 0;
  std::string calibration_sha256;  // of the ids
  int64_t n_held_out = 0;          // windows
  std::string held_out_sha256;     // of their ids; empty: none
  uint64_t most_spilled_bytes = 0;
  std::vector<BesideResult> beside;  // of RunOptions::beside
  double seconds = 0.0;              // of this process
  int n_layers_resumed = 0;          // found done by an earlier process
  bool was_complete = false;         // nothing was left to do
};

/// Quantizes a model folder layer by layer into `options.out`. Before work begins, everything that
/// can be checked is: model, options, space on disk, a test write, memory. After each layer the
/// state in `<out>.state` is durable; with options.resume a run goes on from there and gives the
/// bytes of an uninterrupted one. The result is written to `<out>.partial` and renamed when it is
/// complete. Throws StoppedError at the end of the layer in which events.stop_requested() became
/// true.
RunResult run_quantization(const RunOptions& options, const RunEvents& events);

/// The same up to the point where work would begin.
struct DryRun {
  RunEstimate estimate;
  double idle_share = 1.0;  // of the threads, while this was found
  int64_t n_windows = 0;
  int64_t window_length = 0;
  int64_t n_linears = 0;
  std::vector<std::string> ignore;
  std::vector<std::string> off_lattice;  // RunPlan::off_lattice_names()
};
DryRun dry_run(const RunOptions& options);

}  // namespace assay
