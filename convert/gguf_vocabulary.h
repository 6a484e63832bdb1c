#pragma once

#include <optional>
#include <string>
#include <vector>

#include "convert/core/json.h"
#include "convert/gguf.h"
#include "convert/model_spec.h"
#include "convert/tokenizer.h"

namespace assay {

/// The chat templates of a model folder. `main` is chat_template.jinja, else the one of
/// tokenizer_config.json (of a list: "default"); `named` are the others of a list. Case B55.
struct ChatTemplates {
  std::optional<std::string> main;
  std::vector<std::pair<std::string, std::string>> named;
};
ChatTemplates read_chat_templates(const std::string& folder);

/// Appends tokenizer.ggml.* of a BPE tokenizer, byte-level or of pieces, in the order of the
/// field's converter, and the chat template: the kind of vocabulary follows from the tokenizer. Ids
/// up to the embedding's rows that no token has become unused padding; more tokens than rows are a
/// FormatError (case B48). A model with more stop ids than the tokenizer's end also gets
/// `assay.stop_token_ids` (case B54). `pre` overrides the name of the split rule; a byte-level
/// tokenizer without one, and any other that GGUF cannot describe, is an UnsupportedError, unless a
/// tokenizer.model beside it has the same tokens: then that is written, and a warning returned.
std::string write_vocabulary_gguf(const Tokenizer& of_folder, const std::string& folder,
                                  const ModelSpec& spec, const std::optional<std::string>& pre,
                                  GgufMetadata& metadata);

}  // namespace assay
