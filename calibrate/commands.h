#pragma once

#include "convert/cli/command.h"

namespace assay::cli {

const Command& calibrate_command();  // calibrate_main.cpp

}  // namespace assay::cli
