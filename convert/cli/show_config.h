#pragma once

#include <string>

#include "convert/cli/command.h"
#include "convert/cli/option_table.h"

namespace assay::cli {

/// The values in effect, each with its origin, as a YAML file that --config takes again.
std::string effective_config_yaml(const Command& command, const OptionTable& table,
                                  const Arguments& arguments);

/// The same as JSON: {"command": …, "options": {name: {"value": …, "origin": …}}}.
Json effective_config_json(const Command& command, const OptionTable& table,
                           const Arguments& arguments);

}  // namespace assay::cli
