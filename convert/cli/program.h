#pragma once

#include <span>
#include <string>
#include <vector>

#include "convert/cli/command.h"
#include "convert/cli/surroundings.h"

namespace assay::cli {

/// run_program() without the process around it: words after the program's name, and the outside
/// world as given. Installs no signal handlers.
int run_words(const std::vector<std::string>& words, std::span<const Command* const> commands,
              const ProgramHooks& hooks, const Surroundings& surroundings);

}  // namespace assay::cli
