#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/tokenizer/model.h"
#include "convert/tokenizer/vocabulary.h"

namespace assay::tokenization {

struct BpeOptions {
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix;  // before every character but the first of a word
  std::string end_of_word_suffix;         // after the last character of a word
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
  /// Words are plain text whose bytes are looked up in the byte-level alphabet.
  bool byte_level = false;
};

/// The merges as a hash table: pair of ids → rank and id of the merged token.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  static constexpr uint32_t kNoMerge = 0xFFFFFFFFu;  // as a rank

  void reserve(size_t n);
  /// A later merge of the same pair takes the place of an earlier one, as in the reference.
  void set(int32_t left, int32_t right, Merge merge);
  /// rank == kNoMerge if there is none.
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = pack(left, right);
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == kEmpty) return {kNoMerge, -1};
    }
  }

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge{kNoMerge, -1};
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // ids are not negative
  static uint64_t pack(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> shift_; }

  std::vector<Slot> slots_ = std::vector<Slot>(2);
  size_t mask_ = 1;
  uint32_t shift_ = 63;
  size_t used_ = 0;
};

/// Byte pair encoding: a word becomes its characters' tokens, then the merge of lowest rank is
/// applied, leftmost first, until none is left. Immutable after construction.
class Bpe : public Model {
 public:
  using Symbol = ModelScratch::Symbol;
  using Scratch = ModelScratch;

  /// `merges` as pairs of ids in rank order; `ranks` of each where they are not their indices:
  /// rising, below the number of merges, equal for merges of which the leftmost goes first. Throws
  /// FormatError (message begins with `source`) if a merged token is not in the vocabulary.
  Bpe(Vocabulary vocabulary, std::vector<std::pair<int32_t, int32_t>> merges,
      const std::vector<uint32_t>& ranks, BpeOptions options, const std::string& source);

  /// Throws FormatError for a character that the vocabulary lacks if unk_token is set and is not in
  /// the vocabulary either.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const override {
    if (options_.ignore_merges) {
      if (const auto id = find_word(word)) {
        ids.push_back(*id);
        return;
      }
    }
    encode_by_merges(word, scratch, ids);
  }
  void encode_by_merges(std::string_view word, Scratch& scratch,
                        std::vector<int32_t>& ids) const override;
  void encode_unmerged(std::string_view word, Scratch& scratch,
                       std::vector<int32_t>& ids) const override;

  std::optional<int32_t> unk_id() const override { return unk_id_; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  const std::vector<std::pair<int32_t, int32_t>>& merges() const override { return merges_; }
  const BpeOptions& options() const { return options_; }

 private:
  std::optional<int32_t> find_word(std::string_view word) const;
  void to_symbols(std::string_view word, Scratch& scratch) const;
  void to_symbols_slowly(std::string_view word, Scratch& scratch) const;
  bool fall_back_to_bytes(std::string_view spelling, std::vector<int32_t>& ids) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;
  void merge_by_heap(Scratch& scratch) const;
  void merge_by_bucket(Scratch& scratch) const;
  bool ranks_only_rise() const;

  Vocabulary vocabulary_;
  std::vector<std::pair<int32_t, int32_t>> merges_;
  BpeOptions options_;
  std::string source_;
  MergeTable table_;
  bool ranks_only_rise_ = false;
  std::optional<Vocabulary> words_;      // byte level and ignore_merges: tokens as bytes
  std::array<int32_t, 256> byte_ids_{};  // byte level: token of each byte
  bool all_bytes_known_ = false;
  std::array<int32_t, 256> fallback_ids_{};  // <0x00> … <0xFF>, or -1
  std::optional<int32_t> unk_id_;
};

}  // namespace assay::tokenization
