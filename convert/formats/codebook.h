#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace assay {

/// Values that the code words of an IQ type stand for: entry e, element k. Code words lie in
/// ascending order, so their list says all. Source: ggml-common.h.
template <int kWords, int kElements>
using CodebookValues = std::array<std::array<int8_t, kElements>, kWords>;

extern const CodebookValues<256, 8> kIq2XxsValues;  // 8, 25 or 43
extern const CodebookValues<512, 8> kIq2XsValues;
extern const CodebookValues<1024, 8> kIq2SValues;
extern const CodebookValues<256, 4> kIq3XxsValues;  // 4, 12, 20, 28, 36, 44, 52 or 62
extern const CodebookValues<512, 4> kIq3SValues;    // 1, 3, … 15
extern const CodebookValues<2048, 8> kIq1Values;    // −1, 0 or 1

/// A codebook as encoders use it: a group of elements is given a word of levels, element k in bits
/// [b·k, b·k + b); words that are not in the book have neighbours that are.
class Codebook {
 public:
  /// n_rings: how many distinct distances from a missing word count as neighbours.
  Codebook(std::span<const uint16_t> words, int n_elements, int n_levels, int n_rings);

  int n_elements() const { return n_elements_; }
  int n_levels() const { return n_levels_; }
  int bits() const { return bits_; }
  std::span<const uint16_t> words() const { return words_; }

  /// Position of a word, or −1.
  int find(uint32_t word) const { return index_[word]; }
  /// Positions of the nearest code words of one that is missing, in the order of (distance,
  /// position). Distances are those of the points 2·level + 1.
  std::span<const uint16_t> neighbours(uint32_t word) const {
    return std::span(neighbours_).subspan(first_[word], first_[word + 1] - first_[word]);
  }
  /// Levels of the word at `position`: n_elements() of them.
  const uint8_t* levels(int position) const {
    return levels_.data() + static_cast<size_t>(position) * static_cast<size_t>(n_elements_);
  }

 private:
  bool is_word(uint32_t word) const;
  void add_neighbours(uint32_t word, int n_rings);

  std::span<const uint16_t> words_;
  int n_elements_;
  int n_levels_;
  int bits_;
  std::vector<uint8_t> levels_;
  std::vector<int32_t> index_;
  std::vector<uint32_t> first_;
  std::vector<uint16_t> neighbours_;
};

// Made at first use, some 10 to 100 ms each.
const Codebook& iq2_xxs_codebook();
const Codebook& iq2_xs_codebook();
const Codebook& iq2_s_codebook();
const Codebook& iq3_xxs_codebook();
const Codebook& iq3_s_codebook();
const Codebook& iq1_codebook();

}  // namespace assay
