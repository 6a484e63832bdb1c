#include "convert/chat/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "convert/chat/white_space.h"
#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/tokenizer/unicode.h"

namespace assay::chat {
namespace {

using tokenization::append_utf8;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_begin(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Lexer {
 public:
  Lexer(std::string_view text, const Source& source) : source_(source) {
    // Line ends become \n, and one at the very end is dropped.
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\r') {
        if (i + 1 < text.size() && text[i + 1] == '\n') continue;
        text_ += '\n';
      } else {
        text_ += text[i];
      }
    }
    if (text_.ends_with('\n')) text_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      read_text();
      if (at_ >= text_.size()) break;
      const char kind = text_[at_ + 1];
      if (kind == '#') {
        skip_comment();
      } else if (kind == '%' && raw_begins()) {
        read_raw();
      } else {
        read_tag(kind == '{');
      }
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(size_t n) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                                         text_.begin() + static_cast<ptrdiff_t>(at_ + n), '\n'));
    at_ += n;
    if (n > 0) after_newline_ = text_[at_ - 1] == '\n';
  }
  std::string_view rest() const { return std::string_view(text_).substr(at_); }

  /// Text up to the next tag, with the spaces taken off that the tag's sign or place asks for.
  void read_text() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= text_.size()) {
        tag = text_.size();
        break;
      }
      const char next = text_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    std::string_view text = std::string_view(text_).substr(at_, tag - at_);
    if (tag < text_.size()) {
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      if (sign == '-') {
        text = without_space_at_end(text);
      } else if (sign != '+' && text_[tag + 1] != '{') {
        const size_t newline = text.rfind('\n');
        const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
        if (line_begin > 0 || after_newline_) {
          if (without_space_at_end(text.substr(line_begin)).empty()) {
            text = text.substr(0, line_begin);
          }
        }
      }
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
    advance(tag - at_);
  }

  /// Behind the end of a tag whose last two characters are at `at_`; `sign` stands before them.
  void end_tag(char sign, bool trims_newline) {
    advance(2);
    if (sign == '-') {
      advance(rest().size() - without_space_at_begin(rest()).size());
    } else if (trims_newline && sign != '+' && rest().starts_with('\n')) {
      advance(1);
    }
  }

  void skip_comment() {
    const size_t end = text_.find("#}", at_ + 2);
    if (end == std::string::npos) source_.malformed(line_, "a comment {# without its end #}");
    const char sign = end > at_ + 2 ? text_[end - 1] : '\0';
    advance(end - at_);
    end_tag(sign, true);
  }

  /// Length of `{%`, sign, spaces, `word`, spaces, sign and `%}` at `at`, or nothing.
  struct Marker {
    size_t length;  // without %}
    char end_sign;
  };
  std::optional<Marker> marker(size_t at, std::string_view word) const {
    const std::string_view text = std::string_view(text_).substr(at);
    if (!text.starts_with("{%")) return std::nullopt;
    std::string_view left = text.substr(2);
    if (left.starts_with('-') || left.starts_with('+')) left.remove_prefix(1);
    left = without_space_at_begin(left);
    if (!left.starts_with(word)) return std::nullopt;
    left = without_space_at_begin(left.substr(word.size()));
    char sign = '\0';
    if (left.starts_with('-') || left.starts_with('+')) {
      sign = left.front();
      left.remove_prefix(1);
    }
    if (!left.starts_with("%}")) return std::nullopt;
    return Marker{text.size() - left.size(), sign};
  }
  bool raw_begins() const { return marker(at_, "raw").has_value(); }

  void read_raw() {
    const int begin_line = line_;
    const Marker begin = *marker(at_, "raw");
    advance(begin.length);
    end_tag(begin.end_sign, false);
    for (size_t tag = text_.find("{%", at_); tag != std::string::npos;
         tag = text_.find("{%", tag + 2)) {
      const std::optional<Marker> end = marker(tag, "endraw");
      if (!end) continue;
      std::string_view text = std::string_view(text_).substr(at_, tag - at_);
      if (text_[tag + 2] == '-') {
        text = without_space_at_end(text);
      } else if (text_[tag + 2] != '+') {
        const size_t newline = text.rfind('\n');
        const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
        if ((line_begin > 0 || after_newline_) &&
            without_space_at_end(text.substr(line_begin)).empty()) {
          text = text.substr(0, line_begin);
        }
      }
      if (!text.empty()) add(TokenKind::kText, std::string(text));
      advance(tag - at_);
      advance(end->length);
      end_tag(end->end_sign, true);
      return;
    }
    source_.malformed(begin_line, "{% raw %} without {% endraw %}");
  }

  void read_tag(bool is_variable) {
    const int begin_line = line_;
    add(is_variable ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    advance(2);
    if (rest().starts_with('-') || rest().starts_with('+')) advance(1);
    const std::string_view end = is_variable ? "}}" : "%}";
    std::string open;  // brackets
    while (true) {
      advance(rest().size() - without_space_at_begin(rest()).size());
      if (at_ >= text_.size()) {
        source_.malformed(begin_line, fmt::format("a tag without its end {}", end));
      }
      if (open.empty()) {
        const bool signed_end =
            (rest().front() == '-' || (rest().front() == '+' && !is_variable)) &&
            rest().substr(1).starts_with(end);
        if (signed_end || rest().starts_with(end)) {
          const char sign = signed_end ? rest().front() : '\0';
          if (signed_end) advance(1);
          add(is_variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "");
          end_tag(sign, !is_variable);
          return;
        }
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = rest().front();
    if (is_name_begin(c)) {
      size_t n = 1;
      while (n < rest().size() && (is_name_begin(rest()[n]) || is_digit(rest()[n]))) ++n;
      add(TokenKind::kName, std::string(rest().substr(0, n)));
      advance(n);
    } else if (is_digit(c)) {
      read_number();
    } else if (c == '\'' || c == '"') {
      read_string(c);
    } else {
      read_operator(open);
    }
  }

  void read_number() {
    const std::string_view text = rest();
    size_t n = 0;
    const auto digits = [&] {
      while (n < text.size() && is_digit(text[n])) ++n;
    };
    digits();
    bool is_float = false;
    if (n + 1 < text.size() && text[n] == '.' && is_digit(text[n + 1])) {
      is_float = true;
      ++n;
      digits();
    }
    if (n < text.size() && (text[n] == 'e' || text[n] == 'E')) {
      const size_t sign = n + 1 < text.size() && (text[n + 1] == '+' || text[n + 1] == '-') ? 1 : 0;
      if (n + 1 + sign < text.size() && is_digit(text[n + 1 + sign])) {
        is_float = true;
        n += 1 + sign;
        digits();
      }
    }
    const std::string number(text.substr(0, n));
    const bool leading_zero = !is_float && number.size() > 1 && number.front() == '0';
    if (leading_zero || (n < text.size() && is_name_begin(text[n]))) {
      source_.unsupported(line_, "this form of a number is not implemented");
    }
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, number);
    advance(n);
  }

  void read_string(char quote) {
    const int begin_line = line_;
    const std::string_view text = rest();
    std::string value;
    size_t n = 1;
    while (n < text.size() && text[n] != quote) {
      if (text[n] == '\\' && n + 1 < text.size()) {
        n += unescape(text.substr(n), value);
      } else {
        value += text[n++];
      }
    }
    if (n >= text.size()) source_.malformed(begin_line, "a string without its closing quote");
    add(TokenKind::kString, std::move(value));
    advance(n + 1);
  }

  /// The escape that `text` begins with, as Python reads it; returns its length.
  size_t unescape(std::string_view text, std::string& value) const {
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    const char c = text[1];
    if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
      value += kTo[i];
      return 2;
    }
    if (c == '\n') return 2;
    const size_t n_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (n_digits > 0) {
      uint32_t code = 0;
      for (size_t i = 2; i < 2 + n_digits; ++i) {
        const char d = i < text.size() ? text[i] : '\0';
        const bool letter = (d >= 'a' && d <= 'f') || (d >= 'A' && d <= 'F');
        if (!letter && !is_digit(d)) source_.malformed(line_, "an escape without its digits");
        code = code * 16 + static_cast<uint32_t>(letter ? (d | 32) - 'a' + 10 : d - '0');
      }
      if (code >= 0x110000 || (code >= 0xD800 && code < 0xE000)) {
        source_.malformed(line_, "an escape that is no character");
      }
      append_utf8(value, code);
      return 2 + n_digits;
    }
    if (is_digit(c) || c == 'N') {
      source_.unsupported(line_, fmt::format("the escape \\{} is not implemented", c));
    }
    value += '\\';  // stays, as in Python
    return 1;
  }

  void read_operator(std::string& open) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!rest().starts_with(op)) continue;
      if (op == "(" || op == "[" || op == "{") open += op;
      if (op == ")" || op == "]" || op == "}") {
        const char begin = op == ")" ? '(' : op == "]" ? '[' : '{';
        if (open.empty() || open.back() != begin) {
          source_.malformed(line_, fmt::format("an unexpected {}", op));
        }
        open.pop_back();
      }
      add(TokenKind::kOperator, std::string(op));
      advance(op.size());
      return;
    }
    const size_t length = tokenization::decode_character(rest().data()).length;
    source_.malformed(
        line_, fmt::format("an unexpected character {}", in_quotes(rest().substr(0, length))));
  }

  const Source& source_;
  std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool after_newline_ = true;  // the last token ended a line, or there is none
  std::vector<Token> tokens_;
};

}  // namespace

void Source::malformed(int line, std::string_view what) const {
  throw FormatError(fmt::format("{}: line {}: {}", name, line, what));
}

void Source::unsupported(int line, std::string_view what) const {
  throw UnsupportedError(fmt::format("{}: line {}: {}", name, line, what));
}

std::vector<Token> tokenize(std::string_view text, const Source& source) {
  return Lexer(text, source).run();
}

}  // namespace assay::chat
