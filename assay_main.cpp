#include "convert/cli/commands.h"
#include "git_id.h"

/// The one list of subcommands, in the order of the help. A command is a function in a *_main.cpp,
/// declared in its folder's commands.h, and one row here.
int main(int argc, char** argv) {
  const assay::cli::Command* const commands[] = {
      &assay::cli::version_command(),
      &assay::cli::env_command(),
  };
  return assay::cli::run_program(argc, argv, commands, {.git_id = ASSAY_GIT_ID});
}
