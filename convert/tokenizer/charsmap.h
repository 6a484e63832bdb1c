#pragma once

#include <memory>

#include "convert/tokenizer/normalizer.h"

namespace assay::tokenization {

/// The normalizer "Precompiled" of tokenizer.json: the character map of a SentencePiece model
/// ("precompiled_charsmap", base64), as the reference library applies it. A grapheme cluster of
/// fewer than six bytes is looked up as a whole, every other character alone; the shortest key that
/// the text begins with decides. Throws FormatError for a map that leads outside of itself.
std::unique_ptr<Normalizer> make_precompiled(const Part& part);

}  // namespace assay::tokenization
