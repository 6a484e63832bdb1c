#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/read_progress.h"
#include "convert/safetensors.h"

namespace assay {

/// Lies in every folder that assay quantize wrote: what it is made of, with the SHA-256 of every
/// tensor and file. quantizer/manifest.h describes it.
inline constexpr std::string_view kManifestName = "assay_manifest.json";

/// What a folder holds otherwise than its manifest says, one line each; reads every byte. No list
/// if there is no manifest. `model` are the tensors of the folder. A manifest that
/// cannot be read is a line, too.
std::optional<std::vector<std::string>> manifest_faults(const std::string& folder,
                                                        const SafetensorsModel& model,
                                                        const ReadProgress& progress);

}  // namespace assay
