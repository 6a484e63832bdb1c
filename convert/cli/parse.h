#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "convert/cli/command.h"
#include "convert/cli/option_table.h"

namespace assay::cli {

using EnvironmentMap = std::map<std::string, std::string, std::less<>>;

/// Splits the words after the command's name into options and positionals and checks each value.
/// Only what is on the command line is set in the result. Option names are never abbreviated,
/// `--no-NAME` switches a flag off, `--` ends the options. Throws UsageError.
Arguments parse_command_line(const Command& command, const OptionTable& table,
                             const std::vector<std::string>& words);

/// Adds ASSAY_<OPTION> values for options that `arguments` does not hold yet. An empty variable
/// counts as unset.
void add_environment(const OptionTable& table, const EnvironmentMap& environment,
                     Arguments& arguments);

/// Adds the defaults of options that `arguments` does not hold yet (absent ones without a value).
void add_defaults(const Command& command, const OptionTable& table, Arguments& arguments);

/// Throws UsageError naming the first required option or positional that has no value.
void check_required(const Command& command, const OptionTable& table, const Arguments& arguments);

/// Checks all values of an option and stores them. `place` is where they come from.
void set_checked(const Option& option, const std::vector<std::string>& values,
                 Arguments::Origin origin, const std::string& label, const std::string& place,
                 Arguments& arguments);

}  // namespace assay::cli
