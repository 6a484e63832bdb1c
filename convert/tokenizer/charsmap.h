#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/tokenizer/normalizer.h"

namespace assay::tokenization {

/// The character map of a SentencePiece model ("precompiled_charsmap"): which strings become which.
/// A trie of byte strings in a double array, then the replacements, each ended by a zero byte.
class CharacterMap {
 public:
  struct Match {
    size_t length;  // of the key, in bytes
    std::string_view replacement;
  };

  /// Why `bytes` are no such map ("leads outside of itself", …), or nothing and the map in `map`.
  static std::optional<std::string> read(std::string_view bytes, CharacterMap& map);

  /// The shortest and the longest key that `text` begins with.
  std::optional<Match> shortest(std::string_view text) const { return find(text, true); }
  std::optional<Match> longest(std::string_view text) const { return find(text, false); }

 private:
  std::optional<Match> find(std::string_view text, bool shortest) const;
  /// Calls use(value) for every key. False if some step leads outside of the array.
  template <class Use>
  bool for_each_value(const Use& use) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

/// The normalizer "Precompiled" of tokenizer.json: a character map in base64, as the reference
/// library applies it. A grapheme cluster of fewer than six bytes is looked up as a whole, every
/// other character alone; the shortest key that the text begins with decides. Throws FormatError
/// for a map that leads outside of itself.
std::unique_ptr<Normalizer> make_precompiled(const Part& part);

/// What the normalizer_spec of a SentencePiece model says.
struct PieceNormalizerRules {
  CharacterMap map;  // empty: every character stays
  bool add_space_prefix = true;
  /// Spaces at both ends of a text and all but one of those in a row are dropped.
  bool remove_extra_whitespaces = false;
};

/// These rules as the SentencePiece library applies them: the longest key decides, at every place
/// that no key before it covers; then spaces become U+2581.
std::unique_ptr<Normalizer> make_piece_normalizer(PieceNormalizerRules rules);

}  // namespace assay::tokenization
