#pragma once

#include <vector>

#include "convert/core/json.h"
#include "quantizer/output_folder.h"

namespace assay {

/// assay_manifest.json: what the result is made of and how it can be checked. The same run gives
/// the same bytes, wherever and in whatever pieces it ran: no time, no path, no machine.
///   assay         program version and arithmetic
///   fingerprint   model files, calibration ids and options (fingerprint.h)
///   calibration   windows, length, tokens used, SHA-256 of the ids, BOS
///   rope          SHA-256 of frequencies and of the table of positions 0 … 4,095, per kind
///   tensors       type, shape and SHA-256 of every tensor
///   files         bytes and SHA-256 of every other file of the folder
Json make_manifest(const RunPlan& plan, const OutputContents& contents,
                   const std::vector<TensorSource>& tensors,
                   const std::vector<WrittenFile>& written);

}  // namespace assay
