#include <fmt/core.h>

#include "convert/cli/build_info.h"
#include "convert/cli/commands.h"
#include "convert/core/version.h"

namespace assay::cli {
namespace {

ExitCode run_version(const Arguments&, Terminal& terminal) {
  if (!terminal.json()) {
    terminal.print(
        fmt::format("assay {} (git {}, arithmetic {})\n", version(), git_id(), kArithmetic));
    return ExitCode::kDone;
  }
  Json result = Json::object();
  result.set("name", "assay");
  result.set("version", version());
  result.set("git_id", git_id());
  result.set("arithmetic", kArithmetic);
  result.set("compiler", compiler_name());
  terminal.print(result.dump() + "\n");
  return ExitCode::kDone;
}

}  // namespace

const Command& version_command() {
  static const Command command = {
      .name = "version",
      .brief = "Print the version",
      .description =
          "Prints the version, the commit it was built from and the arithmetic that "
          "results are computed in. assay env tells more.",
      .examples = {{"assay version --json", "The same for scripts, with the compiler."}},
      .run = run_version,
  };
  return command;
}

}  // namespace assay::cli
