#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "convert/chat/interpreter.h"
#include "convert/chat/text.h"
#include "convert/core/json.h"

namespace assay::chat {

/// A day as "2026-01-31"; UsageError for anything else.
Date parse_date(const std::string& text);

struct RenderOptions {
  bool add_generation_prompt = true;
  std::string bos_token = {}, eos_token = {};  // empty: the variable is not defined
  std::optional<Date> date = {};               // empty: strftime_now is not defined
  Json variables = Json::object();             // further ones, such as enable_thinking
};

/// A chat template: the part of Jinja2 that models use (transformers' chat templates), in the
/// environment of transformers: trim_blocks, lstrip_blocks, loop controls, tojson without HTML
/// escapes, raise_exception, strftime_now. Immutable; may render in many threads.
class ChatTemplate {
 public:
  /// Throws FormatError where Jinja2 would refuse the text, UnsupportedError for what is not
  /// implemented; both `<source>: line <n>: …`.
  static ChatTemplate parse(std::string_view text, std::string source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// The prompt for `messages`, an array of objects with the member "role". `tools` is null or an
  /// array. What messages, tools and variables say is marked as from outside. Throws FormatError if
  /// the template refuses the messages, UnsupportedError for what is not implemented and where it
  /// takes too long or makes too much text.
  Text render(const Json& messages, const Json& tools, const RenderOptions& options) const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<const Program> program);
  std::unique_ptr<const Program> program_;
};

}  // namespace assay::chat
