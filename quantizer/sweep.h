#pragma once

#include <string>
#include <vector>

#include "quantizer/pipeline.h"
#include "verify/nll.h"

namespace assay {

/// One way to quantize the model: the run's options with some values changed.
struct SweepCandidate {
  std::string name;
  std::vector<ModuleValues> overrides;
};

/// Reads {"candidates": [{"name": …, "modules": ["*down_proj"], <value>: …}, …]}: values as
/// recipe.h names them, `modules` as for --skip (default: all). Throws FormatError with the
/// candidate's name or number.
std::vector<SweepCandidate> read_sweep(const std::string& path);

/// A candidate on the held-out windows. Differences are paired over windows against the winner.
struct SweepEntry {
  std::string name;
  IntervalMean kld;
  IntervalMean delta_nll;
  IntervalMean kld_difference;
  IntervalMean delta_nll_difference;
  double top1_agreement = 0.0;
  double seconds = 0.0;
};

struct SweepResult {
  std::vector<SweepEntry> ranking;  // smallest KLD first, ties in the order of the file
  RunOptions options;               // of the winner
  RunResult winner;                 // its folder is `out`
};

/// Quantizes with each candidate, one after another, and keeps the one with the smallest KLD to
/// the original on options.held_out_windows. At most two results lie on disk at a time, beside
/// `out`. Throws as run_quantization does.
SweepResult run_sweep(const RunOptions& options, const std::vector<SweepCandidate>& candidates,
                      const RunEvents& events);

Json to_json(const SweepEntry& entry);
/// The ranking as a table of text.
std::string sweep_table(const std::vector<SweepEntry>& ranking);

}  // namespace assay
