#pragma once

#include <vector>

#include "calibrate/dataset.h"
#include "convert/cli/command.h"

namespace assay {

/// The options that say how calibration data become windows: --windows, --window-length,
/// --max-tokens.
std::vector<cli::Option> dataset_options();
DatasetOptions read_dataset_options(const cli::Arguments& arguments);

}  // namespace assay
