#pragma once

#include <string>
#include <utility>
#include <vector>

#include "convert/gguf.h"

namespace assay {

/// The tokenizer files of a Hugging Face folder that a GGUF vocabulary allows: tokenizer.json and
/// tokenizer_config.json of "gpt2" and "gemma4" vocabularies, and chat_template.jinja. Reading them
/// back gives the tokenizer of the file (checked). Throws UnsupportedError for a vocabulary with
/// scores in place of merges, and for one that cannot be read.
std::vector<std::pair<std::string, std::string>> tokenizer_files_of_gguf(
    const GgufMetadata& metadata, const std::string& source);

}  // namespace assay
