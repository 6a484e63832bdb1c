#pragma once

#include <string>
#include <vector>

#include "quantizer/output_folder.h"
#include "quantizer/run_options.h"
#include "quantizer/run_plan.h"

namespace assay {

/// The command that gives a result anew: all options that change it. MODEL, DATA and FOLDER stand
/// for the paths. `n_windows` and `window_length` are those of the calibration; 0: there is none.
std::string command_of(const RunOptions& options, int64_t n_windows, int64_t window_length);

/// The model card of a result (README.md): where it comes from, what was done, what was measured in
/// this run, how to use and how to repeat it. `weights` are its weight files. No time, path or
/// machine stands in it, and its length depends on the plan alone.
std::string result_card(const RunPlan& plan, const OutputContents& contents,
                        const std::vector<WrittenFile>& weights);

}  // namespace assay
