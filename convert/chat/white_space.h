#pragma once

#include <string_view>

namespace assay::chat {

/// `text` (valid UTF-8) without what Python's str.isspace() says yes to, at its begin or end.
std::string_view without_space_at_begin(std::string_view text);
std::string_view without_space_at_end(std::string_view text);
/// Whether Python takes the character for white space: White_Space and U+001C to U+001F.
bool is_python_space(char32_t code);

}  // namespace assay::chat
