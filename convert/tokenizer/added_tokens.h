#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/tokenizer.h"
#include "convert/tokenizer/byte_trie.h"
#include "convert/tokenizer/function_ref.h"

namespace assay::tokenization {

/// Finds a set of strings in a text: leftmost first, of those the longest.
class StringMatcher {
 public:
  struct Match {
    size_t begin, end;
    size_t index;  // in the list given to the constructor
  };

  /// Strings are not empty; of equal ones the first counts.
  explicit StringMatcher(const std::vector<std::string>& strings);
  /// The first match that begins at or after `from`, of those that `accepts`.
  std::optional<Match> find(std::string_view text, size_t from,
                            FunctionRef<bool(const Match&)> accepts) const;

 private:
  ByteTrie strings_;                // by index
  std::array<bool, 256> starts_{};  // bytes that begin a string
};

/// Splits a text on added tokens, with the rules single_word, lstrip and rstrip (Hugging Face
/// tokenizers).
class AddedTokenSplitter {
 public:
  /// `contents[i]` is what stands for `tokens[i]` in the text: its content, normalized if the text
  /// is.
  AddedTokenSplitter(std::vector<AddedToken> tokens, const std::vector<std::string>& contents);

  bool has_special() const { return has_special_; }

  /// Calls sink(begin, end, token) for each part in order; token is null for text between tokens.
  /// Without `parse_special`, special tokens are text. `plain_text`: see EncodeOptions.
  using Sink = FunctionRef<void(size_t begin, size_t end, const AddedToken* token)>;
  void split(std::string_view text, bool parse_special, std::span<const ByteRange> plain_text,
             Sink sink) const;

 private:
  std::vector<AddedToken> tokens_;
  bool has_special_ = false;
  StringMatcher matcher_;
};

}  // namespace assay::tokenization
