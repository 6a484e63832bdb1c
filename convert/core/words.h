#pragma once

#include <algorithm>
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

/// Whether there are control characters of ASCII, line ends and tabs among them.
inline bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
}

/// `text` from a file, to be shown on a terminal: control characters but line ends as "\\x1b", so
/// that it cannot give the terminal orders.
inline std::string printable(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    if (c == '\n' || !has_control_characters({&c, 1})) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += "\\x";
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
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
