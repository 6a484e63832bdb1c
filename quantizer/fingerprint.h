#pragma once

#include "calibrate/dataset.h"
#include "convert/core/json.h"
#include "quantizer/run_plan.h"

namespace assay {

/// Everything that the bytes of a result follow from: program version and arithmetic, SHA-256 of
/// every file of the model that is read, calibration ids, options. One flat object, name → value,
/// so that a mismatch can be named.
Json make_fingerprint(const RunPlan& plan, const RunOptions& options, const TokenWindows* windows);

/// The first name whose value differs (or that only one of them has), as
/// `option bits: found 8, expected 4`; empty if both are equal.
std::string fingerprint_difference(const Json& found, const Json& expected);

}  // namespace assay
