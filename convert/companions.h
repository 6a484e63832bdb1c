#pragma once

#include <string>
#include <vector>

namespace assay {

/// Names of the files of a model folder that go into the quantized one byte for byte: tokenizer,
/// generation and processor files, chat templates, licences. Sorted. Weights, config.json, model
/// cards and code stay behind.
std::vector<std::string> companion_files(const std::string& folder);

}  // namespace assay
