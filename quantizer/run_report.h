#pragma once

#include "convert/core/json.h"
#include "quantizer/pipeline.h"

namespace assay {

/// Report of a run as one JSON document: what was run, losses per module, times per stage, files.
Json run_report(const RunOptions& options, const RunResult& result);

}  // namespace assay
