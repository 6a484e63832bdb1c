#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quantizer/output_folder.h"
#include "quantizer/run_plan.h"
#include "runtime/executor.h"

namespace assay {

/// Predicted seconds of the stages of one layer on this machine's threads.
struct StageCost {
  double forward = 0.0;
  double gram = 0.0;
  double factor = 0.0;
  double solve = 0.0;
  double total() const { return forward + gram + factor + solve; }
};

/// What a run will take, from headers and counts alone.
struct RunEstimate {
  std::vector<OutputFile> files;   // exact names and sizes
  uint64_t output_bytes = 0;       // exact
  std::vector<LedgerItem> memory;  // at the worst moment
  uint64_t memory_bytes = 0;
  uint64_t state_bytes = 0;  // beside the output while the run goes on
  uint64_t spill_bytes = 0;  // of activations, in spill_folder
  double seconds = 0.0;
};

RunEstimate estimate_run(const RunPlan& plan, const RunOptions& options,
                         const OutputContents& contents, int64_t n_windows, int64_t window_length);

/// Which share of their time this process's threads get from the machine just now, 0 to 1: 1 on an
/// idle one. Takes 0.15 s.
double idle_share();

/// Seconds of measuring the sensitivities of all linears; 0 where the run does not.
double sensitivity_seconds(const RunPlan& plan, int64_t n_windows, int64_t window_length);

/// Cost of one layer; also the scale of the progress bar.
StageCost layer_cost(const RunPlan& plan, int layer, int64_t n_windows, int64_t window_length);

}  // namespace assay
