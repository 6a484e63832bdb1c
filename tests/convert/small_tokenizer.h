#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/core/json.h"
#include "convert/tokenizer.h"

namespace assay::test {

using Merges = std::vector<std::pair<std::string, std::string>>;

/// One token of added_tokens; flags as letters: s special, w single_word, l lstrip, r rstrip,
/// n normalized.
Json added_token(int id, std::string_view content, std::string_view flags = "s");

/// A byte-level BPE tokenizer.json: ids 0 to 255 are the bytes, each merge adds the next id; merges
/// are written in the byte-level alphabet. Split rule of GPT-2. Tests change members as they need.
Json byte_level_json(const Merges& merges);

/// A BPE tokenizer.json over characters with exactly these tokens (ids in order), no split rule and
/// the decoder Fuse.
Json character_json(const std::vector<std::string>& tokens, const Merges& merges);

/// A "pre_tokenizer" that splits by a regular expression and spells bytes.
Json split_by(std::string_view pattern);

Tokenizer make_tokenizer(const Json& json);

/// Random valid UTF-8: ASCII, spaces, marks, all planes, as the seed has it.
std::string random_text(uint64_t seed, size_t n_characters);

}  // namespace assay::test
