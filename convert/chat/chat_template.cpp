#include "convert/chat/chat_template.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <utility>

#include "convert/core/error.h"
#include "convert/tokenizer/unicode.h"

namespace assay::chat {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

void check_messages(const Json& messages) {
  if (!messages.is_array() || messages.as_array().empty()) {
    throw FormatError("messages: expected an array of at least one message");
  }
  for (size_t i = 0; i < messages.as_array().size(); ++i) {
    const Json* role = messages.as_array()[i].find("role");
    if (role == nullptr || !role->is_string()) {
      throw FormatError(
          fmt::format("messages[{}]: expected an object with \"role\" and \"content\"", i));
    }
  }
}

int read_number(std::string_view text) {
  int value = -1;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ptr == text.data() + text.size() ? value : -1;
}

}  // namespace

Date parse_date(const std::string& text) {
  Date date;
  if (text.size() == 10 && text[4] == '-' && text[7] == '-') {
    const std::string_view view = text;
    date = {read_number(view.substr(0, 4)), read_number(view.substr(5, 2)),
            read_number(view.substr(8, 2))};
    const std::chrono::year_month_day day(std::chrono::year(date.year),
                                          std::chrono::month(static_cast<unsigned>(date.month)),
                                          std::chrono::day(static_cast<unsigned>(date.day)));
    const bool numbers = date.year >= 0 && date.month >= 0 && date.day >= 0;
    if (numbers && day.ok()) return date;  // not the 30th of February
  }
  throw UsageError(fmt::format("\"{}\" is no date; expected one like 2026-01-31", text));
}

struct ChatTemplate::Program {
  Source source;
  Body body;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::parse(std::string_view text, std::string source) {
  auto program = std::make_unique<Program>();
  program->source.name = std::move(source);
  tokenization::require_utf8(text, program->source.name);
  if (text.size() > kMaxTemplateBytes) {
    throw UnsupportedError(fmt::format("{}: a template of {} bytes; at most {} are read",
                                       program->source.name, text.size(), kMaxTemplateBytes));
  }
  program->body = chat::parse(text, program->source);
  return ChatTemplate(std::move(program));
}

Text ChatTemplate::render(const Json& messages, const Json& tools,
                          const RenderOptions& options) const {
  check_messages(messages);
  Interpreter::Variables variables;
  uint64_t n_input_bytes = messages.dump(0).size();
  variables["messages"] = value_of(messages);
  variables["add_generation_prompt"] = options.add_generation_prompt;
  if (!tools.is_null()) n_input_bytes += tools.dump(0).size();
  variables["tools"] = value_of(tools);
  variables["documents"] = None{};
  if (!options.bos_token.empty()) variables["bos_token"] = make_own_text(options.bos_token);
  if (!options.eos_token.empty()) variables["eos_token"] = make_own_text(options.eos_token);
  for (const auto& [name, value] : options.variables.as_object()) variables[name] = value_of(value);
  Machine machine(program_->source, n_input_bytes);
  return Interpreter(program_->body, std::move(variables), options.date, machine).run();
}

}  // namespace assay::chat
