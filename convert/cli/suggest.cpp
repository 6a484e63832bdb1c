#include "convert/cli/suggest.h"

#include <algorithm>
#include <cstddef>

namespace assay::cli {
namespace {

std::string folded(std::string_view word) {
  std::string result(word);
  for (char& c : result) {
    if (c == '_') c = '-';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

/// Optimal string alignment distance.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::vector<std::string_view> parts_of(std::string_view word) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t dash = word.find('-');
    parts.push_back(word.substr(0, dash));
    if (dash == std::string_view::npos) return parts;
    word.remove_prefix(dash + 1);
  }
}

/// Whether the parts of `word`, more than one, stand in this order among those of `candidate`.
bool leaves_parts_out(std::string_view word, std::string_view candidate) {
  const std::vector<std::string_view> wanted = parts_of(word);
  size_t n_found = 0;
  for (const std::string_view part : parts_of(candidate)) {
    if (n_found < wanted.size() && part == wanted[n_found]) ++n_found;
  }
  return wanted.size() > 1 && n_found == wanted.size();
}

}  // namespace

std::string closest_word(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestWord = 64;  // keeps the distance table small on absurd input
  constexpr size_t kShortestPrefix = 3;
  if (word.empty() || word.size() > kLongestWord) return {};
  const std::string wanted = folded(word);

  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(wanted, folded(candidate));
    if (distance < best_distance && distance < candidate.size()) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (!best.empty() || word.size() < kShortestPrefix) return best;
  for (const std::string& candidate : candidates) {
    if (folded(candidate).starts_with(wanted)) return candidate;
  }
  for (const std::string& candidate : candidates) {  // --max-tokens for --max-new-tokens
    if (leaves_parts_out(wanted, folded(candidate))) return candidate;
  }
  return {};
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates,
                         std::string_view prefix) {
  const std::string candidate = closest_word(word, candidates);
  if (candidate.empty()) return {};
  return "; did you mean \"" + std::string(prefix) + candidate + "\"?";
}

}  // namespace assay::cli
