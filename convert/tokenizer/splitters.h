#pragma once

#include <cstddef>
#include <string_view>

namespace assay::tokenization {

/// Split rules of known models, written by hand: the same pieces as the regular expression with the
/// Unicode tables of the reference library, many times faster.
///
/// A splitter gives the length in bytes of the piece at the start of `text` (valid UTF-8, not
/// empty). The pieces cover the text without gaps.
using Splitter = size_t (*)(std::string_view text);

/// The regular expressions as they stand in tokenizer.json.
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwen2Pattern;
extern const std::string_view kQwen35Pattern;
extern const std::string_view kGpt2Pattern;
extern const std::string_view kTekkenPattern;  // known by name only: no splitter

/// The splitter of exactly this pattern, or nullptr.
Splitter find_splitter(std::string_view pattern);

}  // namespace assay::tokenization
