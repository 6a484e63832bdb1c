#pragma once

#include <vector>

#include "convert/cli/command.h"
#include "quantizer/run_options.h"

namespace assay::cli {

/// The options of `assay quantize`, and the run that they ask for. Throws UsageError.
std::vector<Option> quantize_command_options();
RunOptions read_run_options(const Arguments& arguments);

}  // namespace assay::cli
