#pragma once

#include "convert/cli/command.h"

namespace assay::cli {

// Commands that say something about the program itself. Each folder that defines commands has such
// a header; assay_main.cpp lists them.
const Command& version_command();     // version_main.cpp
const Command& env_command();         // env_main.cpp
const Command& completion_command();  // completion.cpp

}  // namespace assay::cli
