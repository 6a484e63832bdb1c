#pragma once

#include <string>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/core/read_progress.h"

namespace assay {

/// Reads every value and scale of a model: the first fault (NaN, infinity, a negative scale, scales
/// of zero) of each tensor that has one, a line each.
std::vector<std::string> value_faults(const Checkpoint& checkpoint, const ReadProgress& progress);

}  // namespace assay
