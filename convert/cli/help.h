#pragma once

#include <span>
#include <string>
#include <string_view>

#include "convert/cli/command.h"

namespace assay::cli {

/// Breaks text at spaces into lines of at most `width` columns, each after `indent` spaces; line
/// breaks in the text stay. Ends with a line break unless empty.
std::string wrapped(std::string_view text, int indent, int width);

/// What `assay --help` prints: the commands with their briefs.
std::string index_help(std::span<const Command* const> commands, int width);

/// What `assay quantize --help` prints; `all` shows expert options too.
std::string command_help(const Command& command, bool all, int width);

/// "assay quantize MODEL [FILE…] [options]"
std::string usage_line(const Command& command);

}  // namespace assay::cli
