#pragma once

#include "convert/cli/command.h"

namespace assay::cli {

const Command& verify_equivalence_command();  // verify_main.cpp
const Command& report_command();              // report_main.cpp

}  // namespace assay::cli
