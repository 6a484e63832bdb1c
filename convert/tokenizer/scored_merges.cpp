#include "convert/tokenizer/scored_merges.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "convert/core/error.h"
#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

constexpr size_t kLongestPiece = 512;  // bytes: all ways to halve a piece are looked up

}  // namespace

ScoredMerges merges_of_scores(const Vocabulary& vocabulary, const std::vector<float>& scores,
                              const std::vector<int32_t>& pieces, const std::string& source) {
  std::vector<int32_t> order = pieces;
  for (const int32_t id : order) {
    if (!std::isfinite(scores[static_cast<size_t>(id)])) {
      throw FormatError(
          fmt::format("{}: the score of \"{}\" is not finite", source, vocabulary.token(id)));
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  std::vector<bool> is_piece(static_cast<size_t>(vocabulary.id_end()));
  for (const int32_t id : order) is_piece[static_cast<size_t>(id)] = true;
  ScoredMerges result;
  float score_of_rank = 0;
  for (const int32_t id : order) {
    const float score = scores[static_cast<size_t>(id)];
    const std::string_view piece = vocabulary.token(id);
    if (piece.size() > kLongestPiece) {
      throw UnsupportedError(fmt::format("{}: a piece of {} bytes; at most {} are implemented",
                                         source, piece.size(), kLongestPiece));
    }
    for (size_t at = 0; at < piece.size();) {
      at += decode_character(piece.data() + at).length;
      if (at == piece.size()) break;
      const auto left = vocabulary.find(piece.substr(0, at));
      const auto right = left ? vocabulary.find(piece.substr(at)) : std::nullopt;
      if (!right || !is_piece[static_cast<size_t>(*left)] ||
          !is_piece[static_cast<size_t>(*right)]) {
        continue;
      }
      uint32_t rank = result.ranks.empty() ? 0 : result.ranks.back();
      if (!result.ranks.empty() && score < score_of_rank) ++rank;
      score_of_rank = score;
      result.merges.emplace_back(*left, *right);
      result.ranks.push_back(rank);
    }
  }
  return result;
}

}  // namespace assay::tokenization
