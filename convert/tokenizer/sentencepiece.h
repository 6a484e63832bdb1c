#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/core/json.h"
#include "convert/tokenizer/definition.h"
#include "convert/tokenizer/vocabulary_kind.h"

namespace assay::tokenization {

/// U+2581, which stands for a space inside of pieces.
inline constexpr const char* kMetaSpace = "\xE2\x96\x81";

/// What a vocabulary in the manner of SentencePiece says beside its pieces.
struct PieceRules {
  bool add_space_prefix = true;  // before every text between special tokens, as in transformers
  bool byte_fallback = false;
};

/// "normalizer" and "decoder" of tokenizer.json for pieces with kMetaSpace; up to `n_spaces` are
/// taken from the begin of a decoded text.
Json piece_normalizer(bool add_space_prefix);
Json piece_decoder(int64_t n_spaces);
/// Whether a space is put in front of texts, if "normalizer" and "pre_tokenizer" of a
/// tokenizer.json do with spaces what pieces with kMetaSpace need; empty if they do something else.
std::optional<bool> space_prefix_of(const Json& normalizer, const Json& pre_tokenizer);

/// These and options for pieces with kMetaSpace.
void set_piece_rules(const PieceRules& rules, Definition& definition);

/// A file tokenizer.model: the ModelProto of SentencePiece, of the kind BPE or unigram. Control and
/// user-defined pieces become added tokens, as in transformers' conversion; BOS is put in front. A
/// character map and the removal of spaces are applied to each text between them. Throws
/// FormatError with the byte offset, UnsupportedError for other kinds.
Definition read_sentencepiece(std::span<const std::byte> bytes, const std::string& source);

/// One entry of such a file.
struct SentencePiece {
  std::string text;
  float score = 0;
  TokenType type = TokenType::kNormal;
};
/// The pieces of a file of the kind BPE, by id; none for another kind. Throws FormatError.
std::vector<SentencePiece> read_bpe_pieces(std::span<const std::byte> bytes,
                                           const std::string& source);

}  // namespace assay::tokenization
