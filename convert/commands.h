#pragma once

#include "convert/cli/command.h"

namespace assay::cli {

const Command& convert_command();  // convert_main.cpp
const Command& inspect_command();  // inspect_main.cpp

}  // namespace assay::cli
