#include "convert/chat/chat_prompt.h"

#include <utility>

#include "convert/core/file.h"
#include "convert/gguf_vocabulary.h"

namespace assay::chat {

std::optional<TemplateText> find_template(const std::string& folder) {
  const ChatTemplates templates = read_chat_templates(folder);
  if (!templates.main) return std::nullopt;
  const std::string jinja = folder + "/chat_template.jinja";
  if (file_exists(jinja)) return TemplateText{*templates.main, jinja};
  return TemplateText{*templates.main, folder + "/tokenizer_config.json: chat_template"};
}

std::optional<TemplateText> find_template(const GgufMetadata& metadata, const std::string& file) {
  std::optional<std::string> text = metadata.string("tokenizer.chat_template");
  if (!text) return std::nullopt;
  return TemplateText{std::move(*text), file + ": tokenizer.chat_template"};
}

std::vector<int32_t> encode(const Text& prompt, const Tokenizer& tokenizer) {
  return tokenizer.encode(prompt.bytes(),
                          {.add_special_tokens = false, .plain_text = prompt.outside()});
}

Text render(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Json& messages,
            const Json& tools, RenderOptions options) {
  const auto spelling = [&](std::optional<int32_t> id) {
    return id ? tokenizer.token(*id).value_or("") : std::string();
  };
  options.bos_token = spelling(tokenizer.bos_id());
  options.eos_token = spelling(tokenizer.eos_id());
  return chat_template.render(messages, tools, options);
}

}  // namespace assay::chat
