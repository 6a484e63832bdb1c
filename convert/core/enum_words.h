#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

/// The words of an enum whose values count up from 0, in their order: what options, files and
/// reports call them.
template <typename Enum, size_t N>
struct EnumWords {
  std::string_view words[N];

  constexpr std::string_view name(Enum value) const { return words[static_cast<size_t>(value)]; }
  constexpr std::optional<Enum> find(std::string_view word) const {
    for (size_t i = 0; i < N; ++i) {
      if (words[i] == word) return static_cast<Enum>(i);
    }
    return std::nullopt;
  }
  std::vector<std::string> list() const { return {words, words + N}; }
};

template <typename Enum, typename... Words>
constexpr EnumWords<Enum, sizeof...(Words)> enum_words(Words... words) {
  return {{words...}};
}

}  // namespace assay
