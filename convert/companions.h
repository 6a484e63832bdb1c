#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "convert/safetensors.h"

namespace assay {

/// Names of the files of a model folder that go into the quantized one byte for byte: tokenizer,
/// generation and processor files, chat templates, licences. Sorted. Weights, config.json, model
/// cards and code stay behind.
std::vector<std::string> companion_files(const std::string& folder);

/// Write or copy a file beside the weights into the folder `to`. FileError, ResourceError.
WrittenFile write_companion(const std::string& to, const std::string& name, std::string_view text);
WrittenFile copy_companion(const std::string& from, const std::string& to, const std::string& name);

}  // namespace assay
