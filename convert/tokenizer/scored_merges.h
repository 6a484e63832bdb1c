#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "convert/tokenizer/vocabulary.h"

namespace assay::tokenization {

/// The merges of a BPE vocabulary that has scores in their place, as SentencePiece files and GGUF
/// files of "llama" do: any two tokens may be merged whose text together is a token, the one of
/// the highest score first.
struct ScoredMerges {
  std::vector<std::pair<int32_t, int32_t>> merges;
  std::vector<uint32_t> ranks;  // of each merge: equal for equal scores
};

/// `scores` by id; only ids in `pieces` are made by merges. Throws FormatError for a score that is
/// not finite, UnsupportedError for pieces longer than any in use; messages begin with `source`.
ScoredMerges merges_of_scores(const Vocabulary& vocabulary, const std::vector<float>& scores,
                              const std::vector<int32_t>& pieces, const std::string& source);

}  // namespace assay::tokenization
