#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "convert/chat/chat_template.h"
#include "convert/core/json.h"
#include "convert/gguf.h"
#include "convert/tokenizer.h"

namespace assay::chat {

/// Where a model keeps its chat template; empty if it has none. Of a folder: chat_template.jinja,
/// else tokenizer_config.json (case B55); of a GGUF file: tokenizer.chat_template.
struct TemplateText {
  std::string text;
  std::string source;  // begins messages
};
std::optional<TemplateText> find_template(const std::string& folder);
std::optional<TemplateText> find_template(const GgufMetadata& metadata, const std::string& file);

/// Token ids of a rendered prompt. Special tokens come from the template alone: messages are plain
/// text whatever they spell (case B24). The post-processor does not run, since the template itself
/// writes BOS where it wants one (case B25).
std::vector<int32_t> encode(const Text& prompt, const Tokenizer& tokenizer);

/// Renders with the special tokens of `tokenizer` as bos_token and eos_token.
Text render(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Json& messages,
            const Json& tools, RenderOptions options);

}  // namespace assay::chat
