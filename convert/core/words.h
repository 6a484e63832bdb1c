#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/error.h"

namespace assay {

/// `4, 8` or `none, static`: what `text_of` makes of each element.
template <typename List, typename TextOf = std::identity>
std::string join_words(const List& list, std::string_view separator = ", ",
                       const TextOf& text_of = {}) {
  std::string text;
  bool first = true;
  for (const auto& element : list) {
    if (!first) text += separator;
    text += text_of(element);
    first = false;
  }
  return text;
}

/// Bytes of the control character that `text` (UTF-8) begins with: one of ASCII, line ends and tabs
/// among them, or of U+0080 to U+009F, which terminals obey, too. 0 if it begins with another.
inline size_t control_bytes(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  if (at(0) < 0x20 || at(0) == 0x7f) return 1;
  return text.size() > 1 && at(0) == 0xc2 && at(1) >= 0x80 && at(1) < 0xa0 ? 2 : 0;
}

inline bool has_control_characters(std::string_view text) {
  for (; !text.empty(); text.remove_prefix(1)) {
    if (control_bytes(text) > 0) return true;
  }
  return false;
}

/// `text` from a file, to be shown on a terminal: control characters but line ends as "\\x1b", so
/// that it cannot give the terminal orders.
inline std::string printable(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    const size_t n = text.front() == '\n' ? 0 : control_bytes(text);
    if (n == 0) out += text.front();
    for (size_t i = 0; i < n; ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

/// The names of a list's rows.
template <typename List>
std::vector<std::string> names_of(const List& list) {
  std::vector<std::string> names;
  for (const auto& row : list) names.emplace_back(row.name);
  return names;
}

/// The row with this name. Throws UsageError `<what>: found "…", expected one of …`.
template <typename List>
const auto& find_by_name(const List& list, std::string_view what, std::string_view name) {
  for (const auto& row : list) {
    if (row.name == name) return row;
  }
  throw UsageError(std::string(what) + ": found \"" + std::string(name) + "\", expected one of " +
                   join_words(names_of(list)));
}

}  // namespace assay
