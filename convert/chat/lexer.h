#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace assay::chat {

/// Where messages about a template come from.
struct Source {
  std::string name;  // of the file, or of the place inside one

  /// Throw FormatError or UnsupportedError: `<name>: line <line>: <what>`.
  [[noreturn]] void malformed(int line, std::string_view what) const;
  [[noreturn]] void unsupported(int line, std::string_view what) const;
};

enum class TokenKind {
  kText,           // outside of all tags
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,  // unescaped
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;  // from 1
};

/// Cuts a template into tokens as Jinja2 3.1 does with trim_blocks and lstrip_blocks and without
/// keep_trailing_newline. Comments are gone, raw blocks are text. The last token is kEnd.
std::vector<Token> tokenize(std::string_view text, const Source& source);

}  // namespace assay::chat
