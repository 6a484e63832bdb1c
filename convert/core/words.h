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
