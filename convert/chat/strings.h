#pragma once

#include <optional>
#include <vector>

#include "convert/chat/machine.h"
#include "convert/chat/value.h"

namespace assay::chat {

// Python's methods of strings, keeping what came from outside marked.

/// Without characters at its ends: those of the string `characters`, else white space.
Text strip_text(const Text& text, const std::optional<Value>& characters, bool left, bool right,
                Machine& machine);
/// At most `count` replacements; all if negative.
Text replace_text(const Text& text, const Text& from, const Text& to, int64_t count,
                  Machine& machine);
/// str.split() and str.rsplit(): `separator` none splits at white space.
std::vector<Text> split_text(const Text& text, const std::optional<Value>& separator,
                             int64_t max_splits, bool from_right, Machine& machine);
std::vector<Text> split_lines(const Text& text, bool keep_ends, Machine& machine);
Text lower_text(const Text& text, Machine& machine);
/// Characters beyond ASCII must not be letters: UnsupportedError.
Text upper_text(const Text& text, Machine& machine);
Text capitalized_text(const Text& text, Machine& machine);
/// As the filter title: words begin after white space and after -({[<.
Text title_text(const Text& text, Machine& machine);

/// The members of a mapping as tuples (key, value).
Value items_of(const Dict& dict, Machine& machine);

}  // namespace assay::chat
