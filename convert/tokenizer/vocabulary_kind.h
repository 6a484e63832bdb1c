#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace assay::tokenization {

/// tokenizer.ggml.token_type, and the types of SentencePiece (llama.cpp's convert_hf_to_gguf.py).
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

/// A kind of vocabulary that a GGUF file may hold, and which of the keys tokenizer.ggml.* it has.
struct VocabularyKind {
  std::string_view name;  // .model
  /// Tokens are pieces of text with U+2581 for spaces, and "<0x0A>" for bytes; else they are
  /// spelled in the byte-level alphabet.
  bool has_pieces;
  bool has_merges;    // .merges in their order; else the scores say it
  bool has_scores;    // .scores; beside merges they are all alike
  bool has_pre;       // .pre; pieces need no split rule: "default"
  bool space_prefix;  // of pieces: what a file without .add_space_prefix means
  /// Special tokens that a file calls user-defined, so that readers show them.
  std::span<const std::string_view> shown_specials = {};

  bool shows(std::string_view token) const {
    return std::find(shown_specials.begin(), shown_specials.end(), token) != shown_specials.end();
  }
};

/// By tokenizer.ggml.model; nullptr if there is none.
const VocabularyKind* find_vocabulary_kind(std::string_view name);
/// The known names, for messages.
std::string vocabulary_kind_names();

}  // namespace assay::tokenization
