#include "convert/tokenizer/splitters.h"

#include <array>
#include <cstdint>

#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {

const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

/// A place in the text with the character that stands there.
class Cursor {
 public:
  Cursor(const char* at, const char* end, const uint8_t* classes)
      : at_(at), end_(end), classes_(classes) {
    load();
  }

  bool done() const { return at_ == end_; }
  const char* at() const { return at_; }
  uint32_t code() const { return code_; }
  /// CharacterClass bits; 0 at the end.
  uint8_t classes() const { return class_; }
  void advance() {
    at_ += length_;
    load();
  }

 private:
  void load() {
    if (at_ == end_) {
      code_ = 0;
      length_ = 0;
      class_ = 0;
      return;
    }
    const auto [code, length] = decode_character(at_);
    code_ = code;
    length_ = length;
    class_ = classes_[code];
  }

  const char* at_;
  const char* end_;
  const uint8_t* classes_;
  uint32_t code_, length_;
  uint8_t class_;
};

bool is_newline(uint32_t code) { return code == '\r' || code == '\n'; }

/// Length of 's 't 're 've 'm 'll 'd at the start, or 0. Without regard to case the long s counts
/// as s.
template <bool kIgnoreCase>
size_t contraction(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto lower = [&](size_t i) {
    const char c = text[i];
    return kIgnoreCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = lower(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (text.size() < 3) return 0;
  const char second = lower(2);
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  if (kIgnoreCase && text.substr(1, 2) == "\xC5\xBF") return 3;
  return 0;
}

/// White space before something: all of it but the last character, which begins the next piece;
/// a single one stands alone. Before the end of the text: all of it.
size_t space_run(const Cursor& start, std::string_view text) {
  const char* last = start.at();
  Cursor c = start;
  while (c.classes() & kSpace) {
    last = c.at();
    c.advance();
  }
  const char* stop = c.done() || last == text.data() ? c.at() : last;
  return static_cast<size_t>(stop - text.data());
}

/// The rules of Llama 3, Qwen 2 and Qwen 3.5, which differ in how many digits stay together and in
/// whether marks belong to words.
template <int kDigits, bool kMarksInWords>
size_t word_piece(std::string_view text) {
  const uint8_t* const classes = character_classes();
  constexpr uint8_t kWordClass = kMarksInWords ? kLetter | kMark : kLetter;
  constexpr uint8_t kNotOther = kWordClass | kNumber | kSpace;

  if (const size_t length = contraction<true>(text)) return length;

  const char* const end = text.data() + text.size();
  const auto length_to = [&](const Cursor& c) { return static_cast<size_t>(c.at() - text.data()); };
  const Cursor start(text.data(), end, classes);
  Cursor next = start;
  next.advance();

  // [^\r\n\p{L}\p{N}]?WORD+
  const bool may_lead = !is_newline(start.code()) && !(start.classes() & (kLetter | kNumber));
  if ((start.classes() & kWordClass) || (may_lead && (next.classes() & kWordClass))) {
    while (next.classes() & kWordClass) next.advance();
    return length_to(next);
  }
  // \p{N} or \p{N}{1,3}
  if (start.classes() & kNumber) {
    for (int i = 1; i < kDigits && (next.classes() & kNumber); ++i) next.advance();
    return length_to(next);
  }
  //  ?OTHER+[\r\n]*
  const bool lead = start.code() == ' ' && !next.done() && !(next.classes() & kNotOther);
  if (lead || !(start.classes() & kNotOther)) {
    while (!next.done() && !(next.classes() & kNotOther)) next.advance();
    while (is_newline(next.code())) next.advance();
    return length_to(next);
  }
  // \s*[\r\n]+: up to the last newline of the run of white space.
  size_t newline_end = 0;
  for (Cursor c = start; c.classes() & kSpace;) {
    const bool newline = is_newline(c.code());
    c.advance();
    if (newline) newline_end = length_to(c);
  }
  if (newline_end != 0) return newline_end;
  return space_run(start, text);
}

size_t gpt2_piece(std::string_view text) {
  const uint8_t* const classes = character_classes();
  if (const size_t length = contraction<false>(text)) return length;

  const char* const end = text.data() + text.size();
  const Cursor start(text.data(), end, classes);
  Cursor next = start;
  next.advance();
  if (start.code() == ' ' && !next.done() && !(next.classes() & kSpace)) {
    next = Cursor(text.data() + 1, end, classes);
  } else if (start.classes() & kSpace) {
    return space_run(start, text);
  } else {
    next = start;
  }
  // \p{L}+, \p{N}+ or [^\s\p{L}\p{N}]+ after the optional space.
  constexpr uint8_t kKinds = kLetter | kNumber | kSpace;
  const uint8_t kind = next.classes() & kKinds;
  while (!next.done() && (next.classes() & kKinds) == kind) next.advance();
  return static_cast<size_t>(next.at() - text.data());
}

struct KnownSplitter {
  std::string_view pattern;
  Splitter splitter;
};

}  // namespace

Splitter find_splitter(std::string_view pattern) {
  const std::array<KnownSplitter, 4> known = {{{kLlama3Pattern, word_piece<3, false>},
                                               {kQwen2Pattern, word_piece<1, false>},
                                               {kQwen35Pattern, word_piece<1, true>},
                                               {kGpt2Pattern, gpt2_piece}}};
  for (const KnownSplitter& row : known) {
    if (row.pattern == pattern) return row.splitter;
  }
  return nullptr;
}

}  // namespace assay::tokenization
