#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "convert/tokenizer.h"
#include "convert/tokenizer/bpe.h"
#include "convert/tokenizer/decoder.h"
#include "convert/tokenizer/normalizer.h"
#include "convert/tokenizer/part.h"
#include "convert/tokenizer/post_processor.h"
#include "convert/tokenizer/pre_tokenizer.h"
#include "convert/tokenizer/unigram.h"
#include "convert/tokenizer/vocabulary.h"

namespace assay::tokenization {

/// What makes a model Unigram.
struct UnigramParts {
  std::vector<double> scores;   // by id
  std::vector<int32_t> pieces;  // ids that text may become
  UnigramOptions options;
};

/// Everything that a file says about a tokenizer, read and checked.
struct Definition {
  std::string source;                               // file name, begins every message
  Vocabulary vocabulary;                            // of the model
  Vocabulary all_tokens;                            // and the added tokens
  std::vector<std::pair<int32_t, int32_t>> merges;  // in rank order
  std::vector<uint32_t> merge_ranks;                // of each merge; empty: their indices
  BpeOptions bpe;
  std::optional<UnigramParts> unigram;  // then not BPE
  std::vector<AddedToken> added_tokens;
  std::unordered_map<int32_t, size_t> added_by_id;  // index in added_tokens
  std::unique_ptr<Normalizer> normalizer;           // null: none
  PreTokenizerPlan pre_tokenizer;
  PostProcessor post_processor;
  std::unique_ptr<Decoder> decoder;  // null: tokens joined with spaces, as in the reference
  std::optional<int32_t> bos_id, eos_id;
  std::optional<std::string> gguf_pre;
  std::optional<bool> space_prefix;  // of pieces with U+2581 for spaces; empty: other tokens
  std::vector<float> scores;         // by id, where they say the order of the merges
};

/// tokenizer.json. `root` has an empty path.
Definition read_tokenizer_json(const Part& root);
/// bos_token and eos_token of tokenizer_config.json.
void read_tokenizer_config(const Part& root, Definition& definition);
/// What tokenizer_config.json adds to a tokenizer.model: tokens, and whether BOS and EOS are put
/// around a text.
void read_piece_config(const Part& root, Definition& definition);
/// added_tokens.json, which older folders have beside a tokenizer.model: token → id.
void read_added_pieces(const Part& root, Definition& definition);
/// Adds one added token to `definition`; throws FormatError `<place>: …` if its id or content is
/// taken by another.
void add_added_token(Definition& definition, AddedToken token, const std::string& place);

}  // namespace assay::tokenization
