#include "convert/formats/codebook.h"

#include <algorithm>

namespace assay {
namespace {

constexpr std::array<uint16_t, 256> kIq2XxsWords = {
#include "convert/formats/iq2_xxs_words.inc"
};
constexpr std::array<uint16_t, 512> kIq2XsWords = {
#include "convert/formats/iq2_xs_words.inc"
};
constexpr std::array<uint16_t, 1024> kIq2SWords = {
#include "convert/formats/iq2_s_words.inc"
};
constexpr std::array<uint16_t, 256> kIq3XxsWords = {
#include "convert/formats/iq3_xxs_words.inc"
};
constexpr std::array<uint16_t, 512> kIq3SWords = {
#include "convert/formats/iq3_s_words.inc"
};
constexpr std::array<uint16_t, 2048> kIq1Words = {
#include "convert/formats/iq1_words.inc"
};

template <int kElements, size_t kWords>
constexpr CodebookValues<static_cast<int>(kWords), kElements> values_of(
    const std::array<uint16_t, kWords>& words, int bits, const int8_t* value_of_level) {
  CodebookValues<static_cast<int>(kWords), kElements> values{};
  for (size_t e = 0; e < kWords; ++e) {
    for (int k = 0; k < kElements; ++k) {
      values[e][static_cast<size_t>(k)] =
          value_of_level[(words[e] >> (bits * k)) & ((1 << bits) - 1)];
    }
  }
  return values;
}

constexpr int8_t kIq2Levels[] = {8, 25, 43};
constexpr int8_t kIq3XxsLevels[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int8_t kIq3SLevels[] = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr int8_t kIq1Levels[] = {-1, 0, 1};

}  // namespace

constexpr CodebookValues<256, 8> kIq2XxsValues = values_of<8>(kIq2XxsWords, 2, kIq2Levels);
constexpr CodebookValues<512, 8> kIq2XsValues = values_of<8>(kIq2XsWords, 2, kIq2Levels);
constexpr CodebookValues<1024, 8> kIq2SValues = values_of<8>(kIq2SWords, 2, kIq2Levels);
constexpr CodebookValues<256, 4> kIq3XxsValues = values_of<4>(kIq3XxsWords, 3, kIq3XxsLevels);
constexpr CodebookValues<512, 4> kIq3SValues = values_of<4>(kIq3SWords, 3, kIq3SLevels);
constexpr CodebookValues<2048, 8> kIq1Values = values_of<8>(kIq1Words, 2, kIq1Levels);

Codebook::Codebook(std::span<const uint16_t> words, int n_elements, int n_levels, int n_rings)
    : words_(words), n_elements_(n_elements), n_levels_(n_levels), bits_(n_levels <= 4 ? 2 : 3) {
  uint32_t end = 1;  // one above the largest word
  for (int k = 0; k < n_elements; ++k) end += static_cast<uint32_t>(n_levels - 1) << (bits_ * k);
  index_.assign(end, -1);
  for (size_t e = 0; e < words.size(); ++e) {
    index_[words[e]] = static_cast<int32_t>(e);
    for (int k = 0; k < n_elements; ++k) {
      levels_.push_back(static_cast<uint8_t>((words[e] >> (bits_ * k)) & ((1 << bits_) - 1)));
    }
  }
  first_.reserve(end + 1);
  for (uint32_t word = 0; word < end; ++word) {
    first_.push_back(static_cast<uint32_t>(neighbours_.size()));
    if (index_[word] < 0 && is_word(word)) add_neighbours(word, n_rings);
  }
  first_.push_back(static_cast<uint32_t>(neighbours_.size()));
}

bool Codebook::is_word(uint32_t word) const {
  for (int k = 0; k < n_elements_; ++k) {
    if (static_cast<int>((word >> (bits_ * k)) & ((1u << bits_) - 1)) >= n_levels_) return false;
  }
  return true;
}

void Codebook::add_neighbours(uint32_t word, int n_rings) {
  // A distance in levels orders like the one in points 2·level + 1.
  constexpr int kMaxDistance = 8 * 7 * 7;
  std::array<int, kMaxDistance + 1> count{};
  std::vector<int> distances(words_.size());
  for (size_t e = 0; e < words_.size(); ++e) {
    const uint8_t* levels = this->levels(static_cast<int>(e));
    int distance = 0;
    for (int k = 0; k < n_elements_; ++k) {
      const int difference =
          levels[k] - static_cast<int>((word >> (bits_ * k)) & ((1u << bits_) - 1));
      distance += difference * difference;
    }
    distances[e] = distance;
    ++count[static_cast<size_t>(distance)];
  }
  int rings = 0;
  for (int distance = 0; distance <= kMaxDistance && rings < n_rings; ++distance) {
    if (count[static_cast<size_t>(distance)] == 0) continue;
    ++rings;
    for (size_t e = 0; e < words_.size(); ++e) {
      if (distances[e] == distance) neighbours_.push_back(static_cast<uint16_t>(e));
    }
  }
}

const Codebook& iq2_xxs_codebook() {
  static const Codebook book(kIq2XxsWords, 8, 3, 2);
  return book;
}

const Codebook& iq2_xs_codebook() {
  static const Codebook book(kIq2XsWords, 8, 3, 2);
  return book;
}

const Codebook& iq2_s_codebook() {
  static const Codebook book(kIq2SWords, 8, 3, 1);
  return book;
}

const Codebook& iq3_xxs_codebook() {
  static const Codebook book(kIq3XxsWords, 4, 8, 2);
  return book;
}

const Codebook& iq3_s_codebook() {
  static const Codebook book(kIq3SWords, 4, 8, 3);
  return book;
}

const Codebook& iq1_codebook() {
  static const Codebook book(kIq1Words, 8, 3, 3);
  return book;
}

}  // namespace assay
