#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "convert/core/json.h"
#include "convert/tokenizer/definition.h"

namespace assay::tokenization {

/// U+2581, which stands for a space inside of pieces.
inline constexpr const char* kMetaSpace = "\xE2\x96\x81";

/// What a vocabulary in the manner of SentencePiece says beside its pieces.
struct PieceRules {
  bool add_space_prefix = true;  // before every text between special tokens, as in transformers
  bool byte_fallback = false;
};

/// "normalizer" and "decoder" of tokenizer.json for pieces with kMetaSpace.
Json piece_normalizer(bool add_space_prefix);
Json piece_decoder(bool add_space_prefix);
/// Whether a space is put in front of texts, if "normalizer" and "pre_tokenizer" of a
/// tokenizer.json do with spaces what pieces with kMetaSpace need; empty if they do something else.
std::optional<bool> space_prefix_of(const Json& normalizer, const Json& pre_tokenizer);

/// These and options for pieces with kMetaSpace.
void set_piece_rules(const PieceRules& rules, Definition& definition);

/// A file tokenizer.model: the ModelProto of SentencePiece, of the kind BPE or unigram, without
/// character map and without removal of spaces (those of Llama, Mistral and Gemma have none).
/// Control and user-defined pieces become added tokens, as in transformers' conversion; BOS is put
/// in front. Throws FormatError with the byte offset, UnsupportedError for other kinds.
Definition read_sentencepiece(std::span<const std::byte> bytes, const std::string& source);

}  // namespace assay::tokenization
