#include "convert/tokenizer/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "convert/core/error.h"
#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

constexpr size_t kLongestPiece = 512;  // bytes: the search looks this far ahead of every character
constexpr double kUnknownPenalty = 10.0;

}  // namespace

std::array<int32_t, 256> byte_fallback_ids(const Vocabulary& vocabulary) {
  std::array<int32_t, 256> ids{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    ids[byte] = vocabulary.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
  return ids;
}

Unigram::Unigram(Vocabulary vocabulary, std::vector<double> scores,
                 const std::vector<int32_t>& pieces, UnigramOptions options,
                 const std::string& source)
    : vocabulary_(std::move(vocabulary)),
      scores_(std::move(scores)),
      options_(options),
      source_(source) {
  double lowest = pieces.empty() ? 0 : std::numeric_limits<double>::infinity();
  for (const int32_t id : pieces) {
    const std::string_view piece = vocabulary_.token(id);
    const double score = scores_[static_cast<size_t>(id)];
    if (!std::isfinite(score)) {
      throw FormatError(fmt::format("{}: the score of \"{}\" is not finite", source, piece));
    }
    if (piece.size() > kLongestPiece) {
      throw UnsupportedError(fmt::format("{}: a piece of {} bytes; at most {} are implemented",
                                         source, piece.size(), kLongestPiece));
    }
    lowest = std::min(lowest, score);
    if (!piece.empty()) pieces_.set_number(pieces_.add(piece), id);
  }
  unk_score_ = lowest - kUnknownPenalty;
  fallback_ids_ = byte_fallback_ids(vocabulary_);
  can_fall_back_ =
      options_.byte_fallback &&
      std::none_of(fallback_ids_.begin(), fallback_ids_.end(), [](int32_t id) { return id < 0; });
}

void Unigram::add_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  // The reference looks joined characters up again.
  const auto known = options_.single_precision ? std::nullopt : vocabulary_.find(text);
  if (known) {
    ids.push_back(*known);
  } else if (can_fall_back_) {
    for (const char c : text) ids.push_back(fallback_ids_[static_cast<uint8_t>(c)]);
  } else if (options_.unk_id) {
    ids.push_back(*options_.unk_id);
  } else {
    throw FormatError(fmt::format("{}: model.unk_id is missing, and \"{}\" needs it", source_,
                                  text.substr(0, 64)));
  }
}

void Unigram::encode(std::string_view word, ModelScratch& scratch,
                     std::vector<int32_t>& ids) const {
  constexpr int32_t kNotReached = -1, kUnknown = -2;
  if (word.size() >= uint64_t{1} << 32) {
    throw UnsupportedError(source_ + ": a word of 4 GiB or more is not implemented");
  }
  std::vector<ModelScratch::Step>& best = scratch.steps;
  best.assign(word.size() + 1, {0, 0, kNotReached});
  const auto add = [&](size_t begin, size_t end, int32_t id, double score) {
    double sum = best[begin].score + score;
    if (options_.single_precision) {
      sum = static_cast<float>(static_cast<float>(best[begin].score) + static_cast<float>(score));
    }
    ModelScratch::Step& step = best[end];
    if (step.id == kNotReached || sum > step.score) {
      step = {sum, static_cast<uint32_t>(begin), id};
    }
  };
  for (size_t begin = 0; begin < word.size();) {
    const size_t length = decode_character(word.data() + begin).length;
    bool has_character = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < word.size();) {
      node = pieces_.child(node, word[end++]);
      if (node == ByteTrie::kRoot) break;
      const int32_t id = pieces_.number(node);
      if (id < 0) continue;
      add(begin, end, id, scores_[static_cast<size_t>(id)]);
      has_character |= end - begin == length;
    }
    if (!has_character) add(begin, begin + length, kUnknown, unk_score_);
    begin += length;
  }
  // From the end to the begin, then turned around; unknown characters side by side are one.
  scratch.ids.clear();
  size_t end = word.size();
  while (end > 0) {
    const ModelScratch::Step step = best[end];
    size_t begin = step.begin;
    if (step.id != kUnknown) {
      scratch.ids.push_back(step.id);
    } else {
      while (begin > 0 && best[begin].id == kUnknown) begin = best[begin].begin;
      const size_t first = scratch.ids.size();
      add_unknown(word.substr(begin, end - begin), scratch.ids);
      std::reverse(scratch.ids.begin() + static_cast<ptrdiff_t>(first), scratch.ids.end());
    }
    end = begin;
  }
  ids.insert(ids.end(), scratch.ids.rbegin(), scratch.ids.rend());
}

void Unigram::encode_unmerged(std::string_view word, ModelScratch&,
                              std::vector<int32_t>& ids) const {
  for (size_t begin = 0; begin < word.size();) {
    const size_t length = decode_character(word.data() + begin).length;
    uint32_t node = ByteTrie::kRoot;
    size_t at = begin;
    do node = pieces_.child(node, word[at++]);
    while (node != ByteTrie::kRoot && at < begin + length);
    const int32_t id = pieces_.number(node);
    if (id >= 0) {
      ids.push_back(id);
    } else {
      add_unknown(word.substr(begin, length), ids);
    }
    begin += length;
  }
}

}  // namespace assay::tokenization
