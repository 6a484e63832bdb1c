#pragma once

#include <string>
#include <vector>

#include "convert/core/enum_words.h"
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

/// Whose Gram matrices a candidate is quantized with.
enum class SweepInputs : uint8_t {
  /// Where no candidate aims at the 16-bit output, those of a run with the first one's values: one
  /// pass over the calibration data. A target makes good what the candidate's own linears before it
  /// changed, which no other stream knows: then as below.
  kAuto,
  kOwn,  // of a stream of its own: a whole run each
};
inline constexpr auto kSweepInputsWords = enum_words<SweepInputs>("auto", "own");

/// A candidate on the held-out windows. Differences are paired over windows against the winner.
struct SweepEntry {
  std::string name;
  IntervalMean kld;
  IntervalMean delta_nll;
  IntervalMean kld_difference;
  IntervalMean delta_nll_difference;
  double top1_agreement = 0.0;
  double seconds = 0.0;  // shared inputs: that it took beside the first candidate's run
};

struct SweepResult {
  std::vector<SweepEntry> ranking;  // smallest KLD first, ties in the order of the file
  RunOptions options;               // of the winner
  RunResult winner;                 // its folder is `out`
};

/// Quantizes with each candidate and keeps the one with the smallest KLD to the original on
/// options.held_out_windows. The folder is always that of a run with the winner's values alone:
/// with shared inputs the winner, unless it is the first, is quantized once more.  At most two
/// results lie on disk at a time, beside `out`. Throws as run_quantization does.
SweepResult run_sweep(const RunOptions& options, const std::vector<SweepCandidate>& candidates,
                      SweepInputs inputs, const RunEvents& events);

/// Whether one pass over the calibration data serves all candidates.
bool shares_inputs(const RunOptions& options, const std::vector<SweepCandidate>& candidates,
                   SweepInputs inputs);
/// That pass.
RunOptions shared_run(const RunOptions& options, const std::vector<SweepCandidate>& candidates);

Json to_json(const SweepEntry& entry);
/// The ranking as a table of text.
std::string sweep_table(const std::vector<SweepEntry>& ranking);

}  // namespace assay
