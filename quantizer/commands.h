#pragma once

#include "convert/cli/command.h"

namespace assay {

const cli::Command& quantize_command();  // quantize_main.cpp

}  // namespace assay
