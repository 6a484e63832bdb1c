#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "convert/tokenizer/function_ref.h"
#include "convert/tokenizer/part.h"

namespace assay::tokenization {

/// A piece of the text on its way to the model.
struct Piece {
  std::string_view text;
  bool at_start;  // begins at the first byte of the whole input
};
using PieceSink = FunctionRef<void(const Piece&)>;

/// The "pre_tokenizer" of tokenizer.json, or one step of it.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Hands the parts of `piece` to `sink` in order, never an empty one. A part may view memory that
  /// lives only during the call of `sink`.
  virtual void split(const Piece& piece, PieceSink sink) const = 0;
};

struct PreTokenizerPlan {
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: the text is one piece
  /// The last step turns bytes into the byte-level alphabet. It is left to the model, which looks
  /// up bytes directly; pieces are then plain text.
  bool byte_level_model = false;
  bool asks_for_start = false;  // Piece::at_start makes a difference
};

/// Where Metaspace puts its mark in front.
enum class MetaspacePrefix { kAlways, kFirst, kNever };
/// A "Metaspace", which is a pre-tokenizer and a decoder.
struct MetaspaceRules {
  std::string mark;  // one character
  MetaspacePrefix prefix = MetaspacePrefix::kAlways;
  bool splits = true;
};
MetaspaceRules read_metaspace(const Part& part);

/// Throws UnsupportedError for a type that is not implemented.
PreTokenizerPlan make_pre_tokenizer(const Part& part);

}  // namespace assay::tokenization
