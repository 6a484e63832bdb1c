#pragma once

#include "convert/cli/command.h"

namespace assay {

const cli::Command& calibrate_command();  // calibrate_main.cpp

}  // namespace assay
