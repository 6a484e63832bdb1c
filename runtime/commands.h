#pragma once

#include "convert/cli/command.h"

namespace assay::cli {

const Command& generate_command();  // generate_main.cpp
const Command& bench_command();     // bench_main.cpp

}  // namespace assay::cli
