#include "convert/tokenizer/byte_level.h"

#include <array>

#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr int kMoved = 68;  // bytes that do not stand for themselves

struct Alphabet {
  std::array<uint16_t, 256> characters{};
  std::array<uint8_t, kMoved> moved{};  // the byte of U+0100 + i
};

constexpr Alphabet kAlphabet = [] {
  Alphabet alphabet;
  uint32_t n = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (stands_for_itself(byte)) {
      alphabet.characters[byte] = static_cast<uint16_t>(byte);
    } else {
      alphabet.characters[byte] = static_cast<uint16_t>(0x100 + n);
      alphabet.moved[n++] = static_cast<uint8_t>(byte);
    }
  }
  return alphabet;
}();

}  // namespace

uint32_t byte_to_character(uint8_t byte) { return kAlphabet.characters[byte]; }

std::optional<uint8_t> character_to_byte(uint32_t code) {
  if (code < 0x100) {
    if (!stands_for_itself(code)) return std::nullopt;
    return static_cast<uint8_t>(code);
  }
  if (code >= 0x100 + kMoved) return std::nullopt;
  return kAlphabet.moved[code - 0x100];
}

void append_byte_level(std::string& text, std::string_view bytes) {
  for (const char c : bytes) append_utf8(text, byte_to_character(static_cast<uint8_t>(c)));
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const DecodedCharacter character = decode_character(text.data() + at);
    const std::optional<uint8_t> byte = character_to_byte(character.code);
    if (!byte) return std::nullopt;
    bytes += static_cast<char>(*byte);
    at += character.length;
  }
  return bytes;
}

}  // namespace assay::tokenization
