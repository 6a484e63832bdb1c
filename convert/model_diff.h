#pragma once

#include <string>

#include "convert/core/json.h"
#include "convert/core/read_progress.h"

namespace assay {

/// What differs between two models (folders or files of any kind that Assay reads) as one JSON
/// object: `keys` (config.json or GGUF metadata: only in A, only in B, different), `tensors` (the
/// same, by what they are for where both are models of one family, so that a folder and its GGUF
/// compare; else by name), `values` (one entry for each tensor that both have and whose numbers are
/// not all equal: how many differ, largest difference, root mean square of the difference and of
/// A's values), `equal`. Values are compared as the fp32 numbers that the bytes mean.
Json diff_models(const std::string& a, const std::string& b, const ReadProgress& progress);

/// The same for people.
std::string diff_text(const Json& diff);

}  // namespace assay
