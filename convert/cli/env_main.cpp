#include <fmt/core.h>
#include <gnu/libc-version.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <cstdlib>

#include "convert/cli/build_info.h"
#include "convert/cli/commands.h"
#include "convert/core/version.h"

namespace assay::cli {
namespace {

struct Fact {
  std::string name;  // "cpu_level"
  Json value;
};

struct Variable {
  const char* name;
  std::string_view effect;
};

/// Every variable that changes what assay does, besides ASSAY_<OPTION>. Files hold no
/// time, and temporary ones lie beside their final name, so TMPDIR and SOURCE_DATE_EPOCH have none.
constexpr Variable kVariables[] = {
    {"OMP_NUM_THREADS", "worker threads where --threads is 0"},
    {"NO_COLOR", "no colour if not empty"},
    {"CLICOLOR_FORCE", "colour without a terminal if neither empty nor 0"},
    {"TERM", "dumb: no colour, no progress bar"},
    {"COLUMNS", "width of help where there is no terminal"},
    {"HF_HUB_DISABLE_PROGRESS_BARS", "no progress if true"},
    {"ASSAY_CUDA_PLUGIN", "file of the CUDA plug-in for --device cuda"},
    {"ASSAY_FAULT", "for tests: makes writing files fail"},
};

std::vector<Fact> machine_facts() {
  utsname system{};
  uname(&system);
  struct sysinfo memory {};
  sysinfo(&memory);
  return {
      {"version", version()},
      {"git_id", git_id()},
      {"arithmetic", kArithmetic},
      {"compiler", compiler_name()},
      {"cuda", "built without"},
      {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
      {"glibc", gnu_get_libc_version()},
      {"cpu", cpu_name()},
      {"cpu_level", cpu_level()},
      {"usable_cores", n_usable_cores()},
      {"memory_bytes", static_cast<uint64_t>(memory.totalram) * memory.mem_unit},
  };
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.as_string() : value.dump(0);
}

std::string env_text() {
  std::string result;
  for (const Fact& fact : machine_facts()) {
    result += fmt::format("{:<14}{}\n", fact.name, text_of(fact.value));
  }
  result += "\nLibraries:\n";
  for (const LibraryInfo& library : linked_libraries()) {
    result += fmt::format("  {:<34}{:<10}{}\n", library.name, library.version, library.licence);
  }
  result += "\nEnvironment variables respected (and ASSAY_<OPTION> for each option):\n";
  for (const Variable& variable : kVariables) {
    const char* value = std::getenv(variable.name);
    result += fmt::format("  {:<30}{}\n", variable.name,
                          value == nullptr ? "(not set)" : fmt::format("\"{}\"", value));
    result += fmt::format("      {}\n", variable.effect);
  }
  return result;
}

Json env_json() {
  Json result = Json::object();
  for (Fact& fact : machine_facts()) result.set(fact.name, std::move(fact.value));
  Json libraries = Json::array();
  for (const LibraryInfo& library : linked_libraries()) {
    Json row = Json::object();
    row.set("name", library.name).set("version", library.version);
    row.set("licence", library.licence).set("use", library.use);
    libraries.push(std::move(row));
  }
  result.set("libraries", std::move(libraries));
  Json variables = Json::object();
  for (const Variable& variable : kVariables) {
    const char* value = std::getenv(variable.name);
    variables.set(variable.name, value == nullptr ? Json() : Json(value));
  }
  return result.set("variables", std::move(variables));
}

ExitCode run_env(const Arguments&, Terminal& terminal) {
  terminal.print(terminal.json() ? env_json().dump() + "\n" : env_text());
  return ExitCode::kDone;
}

}  // namespace

const Command& env_command() {
  static const Command command = {
      .name = "env",
      .brief = "Print versions, machine and environment, for fault reports",
      .description =
          "Prints what a fault report should hold: version, compiler, machine, libraries "
          "with licences, and the environment variables that assay respects. Nothing "
          "is sent anywhere.",
      .examples = {{"assay env", "Paste this into a fault report."}},
      .run = run_env,
  };
  return command;
}

}  // namespace assay::cli
