#include "convert/chat/white_space.h"

#include "convert/tokenizer/unicode.h"

namespace assay::chat {

using tokenization::decode_character;

bool is_python_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13) || (code >= 28 && code <= 31);
  return (tokenization::character_classes()[code] & tokenization::kSpace) != 0;
}

std::string_view without_space_at_begin(std::string_view text) {
  while (!text.empty()) {
    const tokenization::DecodedCharacter c = decode_character(text.data());
    if (!is_python_space(c.code)) break;
    text.remove_prefix(c.length);
  }
  return text;
}

std::string_view without_space_at_end(std::string_view text) {
  while (!text.empty()) {
    const char* last = tokenization::previous_character(text.data() + text.size());
    if (!is_python_space(decode_character(last).code)) break;
    text = text.substr(0, static_cast<size_t>(last - text.data()));
  }
  return text;
}

}  // namespace assay::chat
