#pragma once

#include <span>
#include <string>
#include <string_view>

#include "convert/cli/command.h"
#include "convert/cli/option_table.h"

namespace assay::cli {

/// Reads option values from a YAML file (JSON is a subset of it) and sets those that `arguments`
/// does not hold yet. Keys are option names ('_' may stand for '-'); a mapping under a command's
/// name holds values for that command only and wins over the same key outside. Strict: no
/// duplicate or unknown keys (also in sections of other commands), no anchors, aliases, merge keys
/// or tags, one document, numbers and booleans in JSON syntax only, at most 1 MiB. Errors are
/// UsageError "<file>:<line>:<column>: …"; FileError if it cannot be read.
void add_config_file(const std::string& path, const Command& command, const OptionTable& table,
                     std::span<const Command* const> commands, Arguments& arguments);

/// The same for text that was read before; `source` is its name in messages.
void add_config_text(std::string_view text, const std::string& source, const Command& command,
                     const OptionTable& table, std::span<const Command* const> commands,
                     Arguments& arguments);

/// Options that decide how the command line itself is read: not in files.
bool is_command_line_only(const Option& option);

}  // namespace assay::cli
