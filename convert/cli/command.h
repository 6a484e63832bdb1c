#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/json.h"

namespace assay::cli {

enum class ValueKind : uint8_t { kFlag, kText, kPath, kInteger, kNumber, kBytes /* 512M, 2GiB */ };

/// One option. The same row feeds parsing, help, the environment (ASSAY_<NAME>), the YAML config,
/// completion and did-you-mean. Members have initialisers so that tables name only those they set.
struct Option {
  std::string name = {};  // "group-size"
  char short_name = 0;    // 'm' for -m
  ValueKind kind = ValueKind::kText;
  std::string value_name = {};     // "N", shown in help
  std::string default_value = {};  // shown in help; empty: none
  std::string help = {};           // one or two sentences, with the unit
  std::string group = {};          // "Input", "Quantization", …, in order of first use
  bool required = false;
  bool repeatable = false;                // in the environment: values separated by ';'
  bool expert = false;                    // only in --help-all
  bool writes = false;                    // kPath: written by the command, not read
  bool scratch = false;                   // kPath: a folder for files that do not outlive the run
  bool file_at_end = false;               // with `writes`: its place is looked at before the work
  std::string replaceable = {};           // with `writes`: OutputPath::replaceable
  std::vector<std::string> choices = {};  // allowed words
  std::optional<double> minimum = {};     // for kInteger, kNumber, kBytes
  std::optional<double> maximum = {};
};

struct Positional {
  std::string name = {};  // "MODEL"
  std::string help = {};
  bool optional = false;
  bool repeatable = false;                // the last one only
  std::vector<std::string> choices = {};  // allowed words; empty: any
};

struct Example {
  std::string command = {};  // "assay quantize model --out model-W4A16"
  std::string explanation = {};
};

/// Parsed values, each with where it came from. Precedence: command line, environment, config,
/// default.
class Arguments {
 public:
  enum class Origin : uint8_t { kDefault, kConfig, kEnvironment, kCommandLine };
  bool given(std::string_view name) const;  // not merely the default
  Origin origin(std::string_view name) const;
  /// "command line", "ASSAY_BITS", "run.yaml:3:9" or "default".
  std::string place(std::string_view name) const;
  bool flag(std::string_view name) const;
  std::string text(std::string_view name) const;  // empty if absent
  std::optional<std::string> optional_text(std::string_view name) const;
  std::vector<std::string> list(std::string_view name) const;  // repeatable options, positionals
  int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  uint64_t bytes(std::string_view name) const;
  /// All values by name (sorted), for manifests and `--show-config`: numbers, sizes and flags as
  /// such, repeatable options as arrays, absent ones as null.
  Json to_json() const;
  Json value_to_json(std::string_view name) const;

  /// What to_json() and place() need to know beyond the values.
  struct Details {
    ValueKind kind = ValueKind::kText;
    bool is_list = false;    // repeatable
    std::string place = {};  // empty: the usual words for the origin
  };
  void set(std::string_view name, std::vector<std::string> values, Origin origin, Details details);
  void set(std::string_view name, std::vector<std::string> values, Origin origin) {
    set(name, std::move(values), origin, Details());
  }

 private:
  struct Value {
    std::vector<std::string> values;
    Origin origin = Origin::kDefault;
    Details details;
  };
  std::map<std::string, Value, std::less<>> values_;
};

enum class LogLevel : uint8_t { kError, kWarning, kInfo, kDebug };

/// Progress of one long piece of work; destroyed when it is done. On a terminal a bar with ETA,
/// else one plain line per step and at most one per 10 s; nothing with --quiet or --json.
class Progress {
 public:
  virtual ~Progress() = default;
  /// `done` of the total given at creation, in units of the cost model; `label` names the step.
  virtual void update(double done, std::string_view label) = 0;
};

/// The user's terminal: data on stdout, all else on stderr; log lines and the bar do not disturb
/// each other. Global options (--json, --quiet, --verbose, --color, --progress, --log-file) act
/// here.
class Terminal {
 public:
  virtual ~Terminal() = default;
  virtual void print(std::string_view text) = 0;                   // stdout, as it is
  virtual void log(LogLevel level, std::string_view message) = 0;  // stderr (and log file)
  virtual std::unique_ptr<Progress> progress(std::string_view title, double total) = 0;
  virtual bool json() const = 0;  // one JSON document on stdout, nothing else there
  virtual bool quiet() const = 0;
};

/// One subcommand. run() throws assay::Error for errors; its result is the exit code.
struct Command {
  std::string_view name = {};
  std::string_view brief = {};   // one line for the index
  std::string description = {};  // a paragraph
  std::vector<Positional> positionals = {};
  std::vector<Option> options = {};
  std::vector<Example> examples = {};
  ExitCode (*run)(const Arguments& arguments, Terminal& terminal) = nullptr;
};

/// Options that every command has (threads, isa, json, quiet, verbose, color, progress, log-file,
/// config, show-config, help, help-all). Commands do not declare these names again.
std::vector<Option> global_options();

/// What folders above convert add to the program. Empty members are skipped.
struct ProgramHooks {
  /// The commit that the program was built from.
  std::string_view git_id = {};
  /// Called before a command runs with the value of --isa: "auto", "scalar", "avx2" or "avx512".
  /// Throws UsageError or UnsupportedError if this machine cannot run it.
  std::function<void(const std::string& isa)> set_isa = {};
};

/// Parses, dispatches, maps errors to messages on stderr and exit codes. The program's main.
/// `assay help [COMMAND]` and the hidden `assay __complete WORD…` are answered here.
int run_program(int argc, const char* const* argv, std::span<const Command* const> commands,
                const ProgramHooks& hooks = {});

/// True once the user pressed Ctrl-C (or SIGTERM came): long work ends at its next safe point and
/// throws StoppedError. A second signal ends the process with 130.
bool stop_requested();

}  // namespace assay::cli
