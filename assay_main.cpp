#include "calibrate/commands.h"
#include "convert/cli/commands.h"
#include "convert/commands.h"
#include "convert/core/isa.h"
#include "git_id.h"
#include "quantizer/commands.h"
#include "runtime/commands.h"
#include "verify/commands.h"

namespace {

void set_isa(const std::string& name) {
  if (const auto isa = assay::isa_from_name(name)) assay::force_isa(*isa);  // none for "auto"
}

}  // namespace

/// The one list of subcommands, in the order of the help. A command is a function in a *_main.cpp,
/// declared in its folder's commands.h, and one row here.
int main(int argc, char** argv) {
  const assay::cli::Command* const commands[] = {
      &assay::cli::quantize_command(),
      &assay::cli::calibrate_command(),
      &assay::cli::convert_command(),
      &assay::cli::inspect_command(),
      &assay::cli::generate_command(),
      &assay::cli::bench_command(),
      &assay::cli::verify_equivalence_command(),
      &assay::cli::report_command(),
      &assay::cli::version_command(),
      &assay::cli::env_command(),
      &assay::cli::completion_command(),
  };
  return assay::cli::run_program(argc, argv, commands,
                                 {.git_id = ASSAY_GIT_ID, .set_isa = set_isa});
}
