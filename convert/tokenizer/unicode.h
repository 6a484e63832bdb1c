#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace assay::tokenization {

/// Properties of a character, as bits. Versions of Unicode are those of the reference library:
/// scripts/make_unicode_tables.py.
enum CharacterClass : uint8_t {
  kLetter = 1,    // \p{L}
  kMark = 2,      // \p{M}
  kNumber = 4,    // \p{N}
  kSpace = 8,     // White_Space: no U+001C..U+001F, no U+180E
  kWord = 16,     // \w: letters, marks, decimal and letter numbers, connectors, joiners
  kNumeric = 32,  // N of the newest Unicode, for the pre-tokenizer Digits
};

/// The CharacterClass bits of every code point: 0x110000 bytes, filled on first use.
const uint8_t* character_classes();

/// The character at `at` of valid UTF-8, and its length in bytes.
struct DecodedCharacter {
  uint32_t code;
  uint32_t length;
};
inline DecodedCharacter decode_character(const char* at) {
  const auto byte = [at](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(at[i])); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1Fu) << 6 | (byte(1) & 0x3Fu), 2};
  if (first < 0xF0) {
    return {(first & 0x0Fu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu), 3};
  }
  return {
      (first & 0x07u) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu),
      4};
}

/// Where the character before `at` begins (valid UTF-8, `at` > begin of the text).
inline const char* previous_character(const char* at) {
  do --at;
  while ((static_cast<uint8_t>(*at) & 0xC0u) == 0x80u);
  return at;
}

void append_utf8(std::string& text, uint32_t code);

/// Bytes of the longest valid prefix; `text.size()` if all is valid.
size_t valid_utf8_prefix(std::string_view text);
/// Throws FormatError with the offset of the first byte that is no UTF-8. For texts that are to be
/// encoded: the encoder puts U+FFFD in the place of such bytes, so that a file of another kind
/// would pass as a text.
void require_utf8(std::string_view text, std::string_view source);
/// Appends `bytes` with every maximal part of an ill-formed sequence replaced by one U+FFFD
/// (Unicode 16, §3.9, "substitution of maximal subparts").
void append_lossy_utf8(std::string& text, std::string_view bytes);
/// Bytes at the end of `bytes` that begin a character which more bytes could complete: 0 to 3.
size_t incomplete_utf8_suffix(std::string_view bytes);

/// Number of bytes from the start without a byte above 0x7F.
size_t ascii_prefix(std::string_view text);

/// Appends the lower-case form of one character (U+0130 becomes two, no other does).
void append_lower_case(std::string& text, uint32_t code);

}  // namespace assay::tokenization
