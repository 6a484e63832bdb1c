#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace assay::tokenization {

/// The alphabet of byte-level BPE: printable Latin-1 bytes stand for themselves, the other 68 bytes
/// become U+0100, U+0101, … in increasing order (Hugging Face tokenizers).
uint32_t byte_to_character(uint8_t byte);
std::optional<uint8_t> character_to_byte(uint32_t code);

/// Appends each byte of `bytes` as a character of the alphabet.
void append_byte_level(std::string& text, std::string_view bytes);
/// The bytes that valid UTF-8 `text` spells; empty if a character is not of the alphabet.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace assay::tokenization
