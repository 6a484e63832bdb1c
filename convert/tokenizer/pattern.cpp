#include "convert/tokenizer/pattern.h"

#include <optional>
#include <string>
#include <utility>

#include "convert/tokenizer/regex.h"
#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

class LiteralPattern : public Pattern {
 public:
  explicit LiteralPattern(std::string literal) : literal_(std::move(literal)) {}

  void find(std::string_view text, MatchSink sink) const override {
    size_t done = 0;
    for (;;) {
      const size_t at = text.find(literal_, done);
      if (at == std::string_view::npos) break;
      if (at > done) sink(done, at, false);
      done = at + literal_.size();
      sink(at, done, true);
    }
    if (done < text.size()) sink(done, text.size(), false);
  }

 private:
  std::string literal_;
};

class RegexPattern : public Pattern {
 public:
  explicit RegexPattern(Regex regex) : regex_(std::move(regex)) {}

  void find(std::string_view text, MatchSink sink) const override {
    const Regex::Subject subject(text);
    size_t done = 0, from = 0;
    std::optional<size_t> last_end;
    while (from <= text.size()) {
      const auto match = regex_.search(subject, from);
      if (!match) break;
      const auto [begin, end] = *match;
      // No empty match right after a match: go on at the next character.
      if (begin == end && last_end == end) {
        if (from == text.size()) break;
        from += decode_character(text.data() + from).length;
        continue;
      }
      if (begin > done) sink(done, begin, false);
      sink(begin, end, true);
      done = from = end;
      last_end = end;
    }
    if (done < text.size()) sink(done, text.size(), false);
  }

 private:
  Regex regex_;
};

class SplitterPattern : public Pattern {
 public:
  explicit SplitterPattern(Splitter rule) : splitter_(rule) {}

  void find(std::string_view text, MatchSink sink) const override {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = begin + splitter_(text.substr(begin));
      sink(begin, end, true);
      begin = end;
    }
  }
  Splitter splitter() const override { return splitter_; }

 private:
  Splitter splitter_;
};

}  // namespace

std::unique_ptr<Pattern> make_pattern(const Part& part) {
  if (const std::optional<Part> literal = part.optional_member("String")) {
    if (literal->string().empty()) literal->unsupported("an empty pattern is not implemented");
    return std::make_unique<LiteralPattern>(literal->string());
  }
  if (const std::optional<Part> regex = part.optional_member("Regex")) {
    if (const Splitter splitter = find_splitter(regex->string())) {
      return std::make_unique<SplitterPattern>(splitter);
    }
    return std::make_unique<RegexPattern>(Regex(*regex));
  }
  part.malformed("needs a member \"String\" or \"Regex\"");
}

}  // namespace assay::tokenization
