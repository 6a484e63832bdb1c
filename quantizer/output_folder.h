#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"
#include "convert/manifest_check.h"
#include "convert/safetensors.h"
#include "quantizer/run_plan.h"

namespace assay {

/// One file of a result.
struct OutputFile {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;
};

/// What goes into a result beside the tensors.
struct OutputContents {
  Json fingerprint;
  Json calibration;     // null: none
  Json held_out;        // NllComparison::to_json of this run; null: none
  Json overrides;       // modules with values of their own; null: none
  std::string command;  // result_card.h
};

/// Writes the model folder under `<out>.partial`, then gives it its name; a folder that has the
/// name already is replaced. `quantized` are the files with the tensors of the solved linears.
/// Every file and folder is made durable before the rename.
std::vector<OutputFile> write_output_folder(
    const std::string& out, const RunPlan& plan, const std::vector<SafetensorsFile>& quantized,
    const OutputContents& contents, uint64_t max_shard_bytes,
    const std::function<void(double share)>& progress = nullptr);

/// Names and exact sizes of all files that write_output_folder would write.
std::vector<OutputFile> plan_output_folder(const RunPlan& plan, const OutputContents& contents,
                                           uint64_t max_shard_bytes);

/// Text of config.json of the result.
std::string output_config(const RunPlan& plan);

}  // namespace assay
