#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/tokenizer/byte_trie.h"
#include "convert/tokenizer/model.h"

namespace assay::tokenization {

struct UnigramOptions {
  std::optional<int32_t> unk_id;
  bool byte_fallback = false;
  /// Sums of scores in float, as in the SentencePiece library; else in double, as in
  /// tokenizer.json.
  bool single_precision = false;
};

/// Unigram: of all ways to cut a word into tokens, the one with the largest sum of scores; of equal
/// ones the first found from the left. A character that no token holds costs the lowest score less
/// 10; neighbours of this kind become one unknown token, or bytes.
/// Source: Kudo, arXiv 1804.10959.
class Unigram : public Model {
 public:
  /// `scores` by id; only ids in `pieces` take part. Throws FormatError (message begins with
  /// `source`) for scores that are not finite, UnsupportedError for pieces longer than any in use.
  Unigram(Vocabulary vocabulary, std::vector<double> scores, const std::vector<int32_t>& pieces,
          UnigramOptions options, const std::string& source);

  void encode(std::string_view word, ModelScratch& scratch,
              std::vector<int32_t>& ids) const override;
  void encode_by_merges(std::string_view word, ModelScratch& scratch,
                        std::vector<int32_t>& ids) const override {
    encode(word, scratch, ids);
  }
  void encode_unmerged(std::string_view word, ModelScratch& scratch,
                       std::vector<int32_t>& ids) const override;
  std::optional<int32_t> unk_id() const override { return options_.unk_id; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  const std::vector<std::pair<int32_t, int32_t>>& merges() const override { return no_merges_; }

 private:
  void add_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  UnigramOptions options_;
  std::string source_;
  ByteTrie pieces_;  // by id
  std::vector<std::pair<int32_t, int32_t>> no_merges_;
  std::array<int32_t, 256> fallback_ids_{};  // <0x00> … <0xFF>
  bool can_fall_back_ = false;
  double unk_score_ = 0;
};

/// The ids of <0x00> … <0xFF>, -1 for those that are missing.
std::array<int32_t, 256> byte_fallback_ids(const Vocabulary& vocabulary);

}  // namespace assay::tokenization
