#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "convert/tokenizer/part.h"

namespace assay::tokenization {

/// Rewrites a pattern of tokenizer.json (Oniguruma, Ruby syntax) so that PCRE2 reads the same
/// meaning. Only constructs whose meaning is known to agree pass; for any other the result of
/// `translate` is empty and `problem` says what was found and at which byte.
struct TranslatedPattern {
  std::optional<std::string> pattern;
  std::string problem;
};
TranslatedPattern translate_pattern(std::string_view pattern);

/// A compiled pattern. Patterns come from model files, so the work of one match is limited.
/// Characters that are newer than the tables of PCRE2 are shown to it as older ones of the same
/// category, so that results do not depend on the version of the library.
class Regex {
 public:
  /// `part` holds the pattern as a string. Throws UnsupportedError for a construct that is not
  /// known to mean the same in both languages, FormatError if the pattern is wrong.
  explicit Regex(const Part& part);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  /// A text made ready for search().
  class Subject {
   public:
    explicit Subject(std::string_view text);
    std::string_view text() const { return replaced_.empty() ? text_ : replaced_; }

   private:
    std::string_view text_;
    std::string replaced_;  // same length as text_; empty if text_ needs no replacement
  };

  /// Begin and end (bytes) of the leftmost match at or after `start`. Throws UnsupportedError if
  /// the match needs more steps or stack than is allowed. May be called from many threads.
  std::optional<std::pair<size_t, size_t>> search(const Subject& subject, size_t start) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace assay::tokenization
