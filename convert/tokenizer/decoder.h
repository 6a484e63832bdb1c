#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "convert/tokenizer/part.h"

namespace assay::tokenization {

/// How far one token's effect on the text reaches, for decoding a stream.
enum class StepKind {
  kBytes,   // each token adds bytes_of_token(); the whole is then read as UTF-8
  kLocal,   // changes tokens one by one, or runs of tokens that settled_after() ends
  kFuse,    // joins all tokens into one, changing nothing but its begin
  kGlobal,  // may look at the whole text
};

/// The "decoder" of tokenizer.json, or one step of it: works on the spellings of the tokens.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  /// The same for tokens that do not begin the text: without what is taken away there.
  virtual void apply_inside(std::vector<std::string>& tokens) const { apply(tokens); }
  /// Whether apply() may take something away at the begin of the joined text.
  virtual bool strips_start() const { return false; }
  /// Whether, applied to the joined text, it changes its begin alone.
  virtual bool changes_start_only() const { return false; }
  /// Whether what `last_token` (a spelling) and the tokens before it decode to stays the same
  /// whatever token follows.
  virtual bool settled_after(std::string_view last_token) const {
    (void)last_token;
    return true;
  }
  virtual StepKind kind() const = 0;
};

/// The bytes that ByteLevel makes of one token: what it spells in the byte-level alphabet, or its
/// own UTF-8 if it holds a character outside of it.
std::string bytes_of_token(std::string_view token);

/// Throws UnsupportedError for a type that is not implemented.
std::unique_ptr<Decoder> make_decoder(const Part& part);

}  // namespace assay::tokenization
