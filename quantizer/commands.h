#pragma once

#include "convert/cli/command.h"

namespace assay::cli {

const Command& quantize_command();  // quantize_main.cpp

}  // namespace assay::cli
