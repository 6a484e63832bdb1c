#pragma once

#include <string>
#include <utility>
#include <vector>

#include "convert/gguf.h"

namespace assay {

/// The tokenizer files of a Hugging Face folder that a GGUF vocabulary allows: tokenizer.json and
/// tokenizer_config.json, and chat_template.jinja. Scores in place of merges ("llama") become the
/// merges that they mean, as in transformers' conversion. Reading the files back gives the
/// tokenizer of the GGUF file (checked). Throws UnsupportedError for a vocabulary that cannot be
/// read.
std::vector<std::pair<std::string, std::string>> tokenizer_files_of_gguf(
    const GgufMetadata& metadata, const std::string& source);

}  // namespace assay
