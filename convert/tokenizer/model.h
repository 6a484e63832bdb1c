#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/tokenizer/vocabulary.h"

namespace assay::tokenization {

/// Memory for encode(); one per thread, kept between words.
struct ModelScratch {
  /// A symbol of a long word, in a list.
  struct Symbol {
    int32_t id;
    uint32_t rank;            // of the merge with the next symbol
    uint32_t next, previous;  // positions in the word
  };
  /// Unigram: the best way to the byte where a piece ends.
  struct Step {
    double score;
    uint32_t begin;  // of the last piece
    int32_t id;      // of the last piece; -1: not reached yet
  };
  std::vector<int32_t> ids;
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;
  std::vector<uint32_t> open_ranks;
  std::vector<std::vector<uint32_t>> buckets;  // by rank: positions; all empty between words
  std::string spelling;
  std::vector<Step> steps;
};

/// The "model" of a tokenizer: turns a word into ids. Immutable after construction.
class Model {
 public:
  virtual ~Model() = default;

  /// Appends the ids of one word (valid UTF-8, not empty).
  virtual void encode(std::string_view word, ModelScratch& scratch,
                      std::vector<int32_t>& ids) const = 0;
  /// The same without taking whole words from the vocabulary.
  virtual void encode_by_merges(std::string_view word, ModelScratch& scratch,
                                std::vector<int32_t>& ids) const = 0;
  /// The tokens of the single characters.
  virtual void encode_unmerged(std::string_view word, ModelScratch& scratch,
                               std::vector<int32_t>& ids) const = 0;

  virtual std::optional<int32_t> unk_id() const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
  /// In rank order; none for models that do not merge.
  virtual const std::vector<std::pair<int32_t, int32_t>>& merges() const = 0;
};

}  // namespace assay::tokenization
