#pragma once

#include "convert/cli/command.h"

namespace assay::cli {

/// `assay convert --to hf`: a plain Hugging Face folder.
ExitCode run_convert_hf(const Arguments& arguments, Terminal& terminal);

}  // namespace assay::cli
