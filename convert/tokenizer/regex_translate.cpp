#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "convert/tokenizer/regex.h"
#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

/// What `\w` holds in Oniguruma with UTF-8, measured over all code points: the characters of
/// kWord without the joiners, and the Latin-1 digits that are no decimal numbers.
constexpr std::string_view kWordItems =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}"
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";

/// General categories, and scripts for which the stand-ins of newer characters keep the script or
/// which have gained no character since Unicode 14.
constexpr std::array<std::string_view, 43> kProperties = {
    "L",  "Lu", "Ll", "Lt", "Lm",   "Lo",  "M",        "Mn",       "Mc",     "Me",    "N",
    "Nd", "Nl", "No", "P",  "Pc",   "Pd",  "Ps",       "Pe",       "Pi",     "Pf",    "Po",
    "S",  "Sm", "Sc", "Sk", "So",   "Z",   "Zs",       "Zl",       "Zp",     "C",     "Cc",
    "Cf", "Cs", "Co", "Cn", "Thai", "Han", "Hiragana", "Katakana", "Hangul", "Hebrew"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_ascii(char c) { return static_cast<uint8_t>(c) < 0x80; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  TranslatedPattern run() {
    if (pattern_.starts_with("(?i)")) {
      caseless_.back() = true;
      take(4);
    }
    while (problem_.empty() && at_ < pattern_.size()) element();
    if (problem_.empty() && caseless_.size() != 1) fail("a group that is not closed");
    if (!problem_.empty()) return {std::nullopt, problem_};
    return {out_, ""};
  }

 private:
  char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  void take(size_t n = 1) {
    out_ += pattern_.substr(at_, n);
    at_ += n;
  }
  void fail(std::string_view what) {
    if (problem_.empty()) problem_ = fmt::format("{} at byte {}", what, at_);
  }

  void element() {
    const char c = peek();
    if (c == '\\') return escape(/*in_class=*/false);
    if (c == '[') return character_class();
    if (c == '(') return open_group();
    if (c == ')') return close_group();
    if (c == '|' || c == '^' || c == '$') {
      previous_literal_ = '\0';
      return take();
    }
    if (c == '*' || c == '+' || c == '?') return fail("a quantifier with nothing before it");
    if (c == '{') return fail("a brace that quantifies nothing (write \\{)");
    if (c == '.') {
      take();
      return quantifier();
    }
    literal();
  }

  void literal() {
    const char c = peek();
    if (!is_ascii(c)) {
      if (caseless_.back()) return fail("a character above ASCII without regard to case");
      take(decode_character(pattern_.data() + at_).length);
      previous_literal_ = '\0';
      return quantifier();
    }
    check_folding(c);
    take();
    quantifier();
  }

  /// One ligature matches two letters in Oniguruma without regard to case ("ss" is U+00DF, "st" is
  /// U+FB06); PCRE2 has no such rule.
  void check_folding(char c) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    if (caseless_.back() &&
        ((previous_literal_ == 's' && (lower == 's' || lower == 't')) ||
         (previous_literal_ == 'f' && (lower == 'f' || lower == 'i' || lower == 'l')))) {
      fail("letters that a ligature can stand for, without regard to case,");
    }
    previous_literal_ = lower;
  }

  void quantifier() {
    const char c = peek();
    bool counted = false;
    if (c == '*' || c == '+' || c == '?') {
      take();
    } else if (c == '{') {
      if (!counted_quantifier()) return;
      counted = true;
    } else {
      return;
    }
    previous_literal_ = '\0';
    if (counted && (peek() == '?' || peek() == '+')) {
      return fail("a counted quantifier followed by ? or +");
    }
    if (peek() == '?' || peek() == '+') take();
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') {
      fail("a quantifier after a quantifier");
    }
  }

  bool counted_quantifier() {
    size_t end = at_ + 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
      return std::string(pattern_.substr(begin, end - begin));
    };
    const std::string low = digits();
    std::string high;
    const bool range = end < pattern_.size() && pattern_[end] == ',';
    if (range) {
      ++end;
      high = digits();
    }
    if ((low.empty() && high.empty()) || end >= pattern_.size() || pattern_[end] != '}' ||
        low.size() > 5 || high.size() > 5) {
      fail("a brace that is no quantifier (write \\{)");
      return false;
    }
    out_ += fmt::format("{{{}{}{}}}", low.empty() ? "0" : low, range ? "," : "", high);
    at_ = end + 1;
    return true;
  }

  void open_group() {
    previous_literal_ = '\0';
    bool caseless = caseless_.back(), atom = true;
    if (peek(1) != '?') {
      take(1);
    } else if (peek(2) == ':' || peek(2) == '>') {
      take(3);
    } else if (peek(2) == '=' || peek(2) == '!') {
      atom = false;
      take(3);
    } else if (peek(2) == '<' && (peek(3) == '=' || peek(3) == '!')) {
      atom = false;
      take(4);
    } else if (peek(2) == 'i' && peek(3) == ':') {
      caseless = true;
      take(4);
    } else {
      return fail("a kind of group that is not implemented");
    }
    caseless_.push_back(caseless);
    atoms_.push_back(atom);
  }

  void close_group() {
    if (atoms_.empty()) return fail("a closing parenthesis without an opening one");
    const bool atom = atoms_.back();
    atoms_.pop_back();
    caseless_.pop_back();
    previous_literal_ = '\0';
    take();
    if (atom) return quantifier();
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') {
      fail("a quantifier after a look-around");
    }
  }

  void escape(bool in_class) {
    const char c = peek(1);
    previous_literal_ = '\0';
    switch (c) {
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        take(2);
        break;
      case 'v':
        replace(2, "\\x0b");
        break;
      case 's':
        replace(2, "\\p{White_Space}");
        break;
      case 'S':
        replace(2, "\\P{White_Space}");
        break;
      case 'd':
        replace(2, "\\p{Nd}");
        break;
      case 'D':
        replace(2, "\\P{Nd}");
        break;
      case 'w':
        replace(2, in_class ? std::string(kWordItems) : fmt::format("[{}]", kWordItems));
        break;
      case 'W':
        if (in_class) return fail("\\W inside a character class");
        replace(2, fmt::format("[^{}]", kWordItems));
        break;
      case 'p':
      case 'P':
        if (!property()) return;
        break;
      case 'x':
      case 'u':
        if (!code_point()) return;
        break;
      case 'b':
      case 'B':
        if (in_class) return fail("\\b inside a character class");
        return word_boundary(c == 'b');
      case 'A':
      case 'z':
        if (in_class) return fail("an anchor inside a character class");
        return take(2);
      default:
        if (c == '\0' || is_letter(c) || is_digit(c) || !is_ascii(c)) {
          return fail("an escape that is not implemented");
        }
        take(2);
    }
    if (!in_class) quantifier();
  }

  void replace(size_t n, std::string_view by) {
    out_ += by;
    at_ += n;
  }

  void word_boundary(bool at_boundary) {
    // A word character on one side (at a boundary) or on both or neither.
    out_ += fmt::format("(?:(?<=[{0}])(?{1}[{0}])|(?<![{0}])(?{2}[{0}]))", kWordItems,
                        at_boundary ? "!" : "=", at_boundary ? "=" : "!");
    at_ += 2;
  }

  bool property() {
    const size_t close = pattern_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) {
      fail("a property without braces");
      return false;
    }
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    bool negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      name.remove_prefix(1);
      negated = !negated;
    }
    bool known = false;
    for (const std::string_view property : kProperties) known |= property == name;
    if (!known) {
      fail(fmt::format("the property \"{}\", which is not implemented,", name));
      return false;
    }
    if (caseless_.back() && (name == "Lu" || name == "Ll" || name == "Lt")) {
      fail("a property of case, without regard to case,");
      return false;
    }
    // A script is the property Script; by itself PCRE2 would take Script_Extensions.
    const bool script = name.size() > 2;
    replace(close + 1 - at_,
            fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', script ? "sc:" : "", name));
    return true;
  }

  bool code_point() {
    size_t begin = at_ + 2, end = begin;
    const bool braces = peek(1) == 'x' && peek(2) == '{';
    if (braces) end = ++begin;
    while (end < pattern_.size() && is_hex(pattern_[end]) &&
           end - begin < (peek(1) == 'u' ? 4 : 8)) {
      ++end;
    }
    const std::string digits(pattern_.substr(begin, end - begin));
    const unsigned long code = digits.empty() ? 0 : std::strtoul(digits.c_str(), nullptr, 16);
    const bool closed = !braces || (end < pattern_.size() && pattern_[end] == '}');
    const bool short_form = peek(1) == 'x' && !braces;
    if (digits.empty() || !closed || (peek(1) == 'u' && digits.size() != 4) ||
        (short_form && (digits.size() != 2 || code >= 0x80)) || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000)) {
      fail("a code point that is not understood");
      return false;
    }
    if (caseless_.back()) {
      fail("a code point without regard to case");
      return false;
    }
    replace(end + (braces ? 1 : 0) - at_, fmt::format("\\x{{{}}}", digits));
    return true;
  }

  void character_class() {
    previous_literal_ = '\0';
    take();
    if (peek() == '^') take();
    if (peek() == ']') return fail("an empty character class");
    while (problem_.empty() && peek() != ']') {
      if (at_ >= pattern_.size()) return fail("a character class that is not closed");
      if (peek() == '[') return fail("a character class inside a character class");
      if (peek() == '&' && peek(1) == '&') return fail("an intersection of character classes");
      if (peek() == '\\') {
        escape(/*in_class=*/true);
      } else if (is_ascii(peek())) {
        take();
      } else if (caseless_.back()) {
        return fail("a character above ASCII without regard to case");
      } else {
        take(decode_character(pattern_.data() + at_).length);
      }
    }
    if (!problem_.empty()) return;
    take();
    quantifier();
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_, problem_;
  std::vector<bool> caseless_{false};  // of the open groups
  std::vector<bool> atoms_;            // whether the open group may be quantified
  char previous_literal_ = '\0';
};

}  // namespace

TranslatedPattern translate_pattern(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace assay::tokenization
