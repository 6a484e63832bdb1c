#pragma once

#include <memory>
#include <string_view>

#include "convert/tokenizer/function_ref.h"
#include "convert/tokenizer/part.h"
#include "convert/tokenizer/splitters.h"

namespace assay::tokenization {

/// Receives the pieces of a text in order: [begin, end) in bytes, and whether the pattern matched
/// there. A match may be empty; then it only separates its neighbours.
using MatchSink = FunctionRef<void(size_t begin, size_t end, bool is_match)>;

/// {"String": …} or {"Regex": …} of tokenizer.json.
class Pattern {
 public:
  virtual ~Pattern() = default;
  /// Covers `text` (valid UTF-8) completely with matches and what lies between them.
  virtual void find(std::string_view text, MatchSink sink) const = 0;
  /// The splitter behind this pattern, or nullptr: a quicker way to the same pieces.
  virtual Splitter splitter() const { return nullptr; }
};

/// `part` is the value of a member "pattern".
std::unique_ptr<Pattern> make_pattern(const Part& part);

}  // namespace assay::tokenization
