#include "convert/cli/program.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <new>

#include "convert/cli/build_info.h"
#include "convert/cli/completion.h"
#include "convert/cli/config_file.h"
#include "convert/cli/help.h"
#include "convert/cli/parse.h"
#include "convert/cli/show_config.h"
#include "convert/cli/signals.h"
#include "convert/cli/stream_terminal.h"
#include "convert/cli/suggest.h"
#include "convert/core/file.h"
#include "convert/core/mapping_guard.h"
#include "convert/core/overwrite.h"
#include "convert/core/parallel.h"

namespace assay::cli {
namespace {

constexpr int kBrokenPipeExit = 141;  // 128 + SIGPIPE

using Words = std::vector<std::string>;

const Command* find_command(std::span<const Command* const> commands, std::string_view name) {
  for (const Command* command : commands) {
    if (command->name == name) return command;
  }
  return nullptr;
}

const Command& known_command(std::span<const Command* const> commands, const std::string& name) {
  if (const Command* command = find_command(commands, name)) return *command;
  Words names;
  for (const Command* command : commands) {
    if (!command->name.starts_with("__")) names.emplace_back(command->name);
  }
  if (name.starts_with("-")) {
    throw UsageError(
        fmt::format("expected a command, found the option \"{}\"; options come after "
                    "the command: assay COMMAND {}",
                    name, name));
  }
  throw UsageError(fmt::format("there is no command \"{}\"{}", name, did_you_mean(name, names)));
}

bool is_any_of(const std::string& word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

void apply_threads(const Arguments& arguments, const Surroundings& surroundings) {
  int64_t n_threads = arguments.integer("threads");
  int64_t openmp_threads = 0;
  if (n_threads == 0 && parse_integer(surroundings.variable("OMP_NUM_THREADS"), openmp_threads)) {
    n_threads = std::clamp<int64_t>(openmp_threads, 0, 1024);
  }
  set_n_threads(static_cast<int>(n_threads));
}

/// No command may write over what it reads, or find at its end that it cannot write.
void check_outputs(const Command& command, const OptionTable& table, const Arguments& arguments) {
  std::vector<OutputPath> outputs;
  Words inputs;
  for (const Positional& positional : command.positionals) {
    for (const std::string& path : arguments.list(positional.name)) inputs.push_back(path);
  }
  for (const Option& option : table.options()) {
    if (option.kind != ValueKind::kPath || option.scratch) continue;
    for (const std::string& path : arguments.list(option.name)) {
      if (path.empty()) continue;
      if (option.writes && path == "-") {
        throw UsageError(
            fmt::format("--{} -: nothing is written to standard output in this way; "
                        "name a file (./- if that is its name)",
                        option.name));
      }
      if (option.writes) {
        outputs.push_back({"--" + option.name, path, option.replaceable});
      } else {
        inputs.push_back(path);
      }
    }
  }
  refuse_to_overwrite(outputs, inputs);
  for (const Option& option : table.options()) {
    if (option.file_at_end && arguments.given(option.name)) {
      require_file_place(arguments.text(option.name));
    }
  }
}

/// One run of the program. The terminal is a member so that errors reach the log file too.
class Run {
 public:
  Run(std::span<const Command* const> commands, const ProgramHooks& hooks,
      const Surroundings& surroundings)
      : commands_(commands), hooks_(hooks), surroundings_(surroundings) {}

  int execute(const Words& words) {
    json_ = std::find(words.begin(), words.end(), "--json") != words.end();
    try {
      return finish(dispatch_to_end(words));
    } catch (const BrokenPipe&) {
      return kBrokenPipeExit;
    } catch (const Error& error) {
      return report(error.what(), error.exit_code());
    } catch (const std::bad_alloc&) {
      return report("out of memory; fewer threads, shorter contexts or smaller batches need less",
                    ExitCode::kResources);
    } catch (const std::filesystem::filesystem_error& error) {
      // Links in a circle, names that are too long, folders that may not be read.
      return report(error.path1().string() + ": cannot be examined: " + error.code().message(),
                    ExitCode::kInput);
    } catch (const std::exception& error) {
      return report(fmt::format("unexpected: {}; this is a fault of assay, please report it with "
                                "the command and the output of \"assay env\"",
                                error.what()),
                    ExitCode::kInternal);
    }
  }

 private:
  /// What is wrong with an input tells more than what was made of zeros in place of its bytes.
  ExitCode dispatch_to_end(const Words& words) {
    try {
      return dispatch(words);
    } catch (const Error&) {
      require_whole_mappings();
      throw;
    }
  }

  ExitCode dispatch(const Words& words) {
    const int columns = surroundings_.columns();
    if (words.empty()) {
      surroundings_.write_error(index_help(commands_, columns));
      return ExitCode::kUsage;
    }
    const std::initializer_list<std::string_view> index_words = {"--help", "-h", "--help-all",
                                                                 "help"};
    const bool more = words.size() > 1;
    if (is_any_of(words[0], index_words) &&
        (words[0] != "help" || !more || is_any_of(words[1], index_words))) {
      surroundings_.write_out(index_help(commands_, columns));
      return ExitCode::kDone;
    }
    if (words[0] == "help") {
      const Command& command = known_command(commands_, words[1]);
      surroundings_.write_out(command_help(command, /*all=*/false, columns));
      return ExitCode::kDone;
    }
    const bool wants_version = is_any_of(words[0], {"--version", "-V"});
    if (words[0] == "__complete") return print_candidates(words);
    command_ = &known_command(commands_, wants_version ? "version" : words[0]);
    return run_command(*command_, Words(words.begin() + 1, words.end()));
  }

  ExitCode print_candidates(const Words& words) {
    for (const Candidate& candidate : complete(Words(words.begin() + 1, words.end()), commands_)) {
      surroundings_.write_out(fmt::format("{}\t{}\n", candidate.word, candidate.description));
    }
    return ExitCode::kDone;
  }

  ExitCode run_command(const Command& command, const Words& words) {
    const OptionTable table(command);
    Arguments arguments = parse_command_line(command, table, words);
    const bool all = arguments.flag("help-all");
    if (all || arguments.flag("help")) {
      surroundings_.write_out(command_help(command, all, surroundings_.columns()));
      return ExitCode::kDone;
    }
    add_environment(table, surroundings_.environment, arguments);
    if (arguments.given("config")) {
      add_config_file(arguments.text("config"), command, table, commands_, arguments);
    }
    add_defaults(command, table, arguments);
    json_ = arguments.flag("json");
    if (arguments.flag("show-config")) return show_config(command, table, arguments);
    check_required(command, table, arguments);
    check_outputs(command, table, arguments);

    apply_threads(arguments, surroundings_);
    if (hooks_.set_isa) hooks_.set_isa(arguments.text("isa"));
    terminal_ = std::make_unique<StreamTerminal>(TerminalOptions::from(arguments, surroundings_),
                                                 surroundings_);
    warn_of_misspelt_variables();
    return command.run(arguments, *terminal_);
  }

  ExitCode show_config(const Command& command, const OptionTable& table,
                       const Arguments& arguments) {
    surroundings_.write_out(json_ ? effective_config_json(command, table, arguments).dump() + "\n"
                                  : effective_config_yaml(command, table, arguments));
    return ExitCode::kDone;
  }

  /// ASSAY_GROUPSIZE would else be ignored in silence.
  void warn_of_misspelt_variables() {
    constexpr std::string_view kPrefix = "ASSAY_";
    Words known;  // without the prefix, which would make any two names alike
    for (const Command* command : commands_) {
      const OptionTable table(*command);
      for (const Option& option : table.options()) {
        known.push_back(environment_name(option).substr(kPrefix.size()));
      }
    }
    for (const auto& [name, value] : surroundings_.environment) {
      if (!name.starts_with(kPrefix)) continue;
      const std::string word = name.substr(kPrefix.size());
      if (std::find(known.begin(), known.end(), word) != known.end()) continue;
      const std::string hint = did_you_mean(word, known, kPrefix);
      if (hint.empty()) continue;
      terminal_->log(LogLevel::kWarning,
                     fmt::format("the variable {} belongs to no option{}", name, hint));
    }
  }

  /// Neither a log file with missing lines nor an input with missing bytes is a success.
  int finish(ExitCode code) {
    require_whole_mappings();
    if (terminal_ && code == ExitCode::kDone) terminal_->require_log_file();
    return static_cast<int>(code);
  }

  int report(const std::string& message, ExitCode code) {
    const std::string name = command_ == nullptr ? "" : fmt::format(" {}", command_->name);
    std::string text = fmt::format("assay{}: {}", name, message);
    if (code == ExitCode::kUsage) text += fmt::format("\nTry: assay{} --help", name);
    if (terminal_) {
      // Stopping where the user asked is no error.
      terminal_->log(code == ExitCode::kStopped ? LogLevel::kWarning : LogLevel::kError, text);
    } else {
      surroundings_.write_error("error: " + text + "\n");
    }
    if (json_ && !(terminal_ && terminal_->printed())) print_error_document(message, code);
    return static_cast<int>(code);
  }

  /// With --json, standard output holds one document in any case.
  void print_error_document(const std::string& message, ExitCode code) {
    Json error = Json::object();
    error.set("exit_code", static_cast<int>(code)).set("message", message);
    Json document = Json::object();
    document.set("error", std::move(error));
    try {
      surroundings_.write_out(document.dump() + "\n");
    } catch (const std::exception&) {
      // The message stands on standard error already, and the exit code tells of the failure.
    }
  }

  std::span<const Command* const> commands_;
  const ProgramHooks& hooks_;
  const Surroundings& surroundings_;
  const Command* command_ = nullptr;
  std::unique_ptr<StreamTerminal> terminal_;
  bool json_ = false;
};

}  // namespace

int run_words(const std::vector<std::string>& words, std::span<const Command* const> commands,
              const ProgramHooks& hooks, const Surroundings& surroundings) {
  return Run(commands, hooks, surroundings).execute(words);
}

int run_program(int argc, const char* const* argv, std::span<const Command* const> commands,
                const ProgramHooks& hooks) {
  occupy_standard_descriptors();
  install_signal_handlers();
  install_mapping_guard();
  if (!hooks.git_id.empty()) set_git_id(hooks.git_id);
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  return run_words(words, commands, hooks, process_surroundings());
}

}  // namespace assay::cli
