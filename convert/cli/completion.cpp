#include "convert/cli/completion.h"

#include <fmt/core.h>

#include <algorithm>

#include "convert/cli/commands.h"
#include "convert/cli/option_table.h"

namespace assay::cli {
namespace {

using Words = std::vector<std::string>;

constexpr std::string_view kBash = R"(# bash completion for assay: source <(assay completion bash)
_assay() {
  local IFS=$'\n' word
  COMPREPLY=()
  while IFS=$'\t' read -r word _; do
    [[ -n $word ]] && COMPREPLY+=("$word")
  done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o bashdefault -o default -F _assay assay
)";

constexpr std::string_view kZsh = R"(#compdef assay
# zsh completion for assay: assay completion zsh > "${fpath[1]}/_assay"
_assay() {
  local -a candidates
  local word description
  while IFS=$'\t' read -r word description; do
    [[ -n $word ]] && candidates+=("${word//:/\\:}:$description")
  done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
  if (( ${#candidates} )); then
    _describe assay candidates
  else
    _files
  fi
}
if [ "$funcstack[1]" = "_assay" ]; then _assay "$@"; else compdef _assay assay; fi
)";

constexpr std::string_view kFish = R"(# fish completion for assay: assay completion fish | source
function __assay_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..-1] 2>/dev/null
end
complete -c assay -a '(__assay_complete)'
)";

std::string first_sentence(const std::string& text) {
  const size_t end = std::min(text.find(". "), text.size());
  std::string result = text.substr(0, end);
  if (!result.empty() && result.back() == '.') result.pop_back();
  return result;
}

void add_if_prefixed(const std::string& word, std::string_view prefix,
                     const std::string& description, std::vector<Candidate>& candidates) {
  if (word.starts_with(prefix)) candidates.push_back({word, description});
}

std::vector<Candidate> command_candidates(std::string_view prefix,
                                          std::span<const Command* const> commands,
                                          bool with_help) {
  std::vector<Candidate> result;
  for (const Command* command : commands) {
    add_if_prefixed(std::string(command->name), prefix, std::string(command->brief), result);
  }
  if (with_help) add_if_prefixed("help", prefix, "Help for a command", result);
  return result;
}

/// Bash makes three words of --bits=4 (its COMP_WORDBREAKS); put them together as two.
Words without_lone_equal_signs(const Words& words) {
  Words result;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool lone = words[i] == "=" && i > 0 && words[i - 1].starts_with("--");
    if (!lone) result.push_back(words[i]);
    if (lone && i + 1 == words.size()) result.emplace_back();
  }
  return result;
}

const Option* option_of_word(const OptionTable& table, const std::string& word) {
  if (word.starts_with("--")) return table.find(word.substr(2));
  return word.size() == 2 && word[0] == '-' ? table.find_short(word[1]) : nullptr;
}

std::vector<Candidate> option_candidates(const OptionTable& table, const Words& words) {
  const std::string& last = words.back();
  std::vector<Candidate> result;
  const size_t equal = last.find('=');
  if (equal != std::string::npos) {
    const Option* option = option_of_word(table, last.substr(0, equal));
    if (option == nullptr) return result;
    for (const std::string& choice : option->choices) {
      add_if_prefixed(last.substr(0, equal + 1) + choice, last, "", result);
    }
    return result;
  }
  for (const Option& option : table.options()) {
    const std::string word = "--" + option.name;
    const bool given = std::find(words.begin(), words.end() - 1, word) != words.end() - 1;
    if (given && !option.repeatable) continue;
    add_if_prefixed(word, last, first_sentence(option.help), result);
  }
  return result;
}

}  // namespace

std::vector<Candidate> complete(const std::vector<std::string>& typed,
                                std::span<const Command* const> commands) {
  const Words words = without_lone_equal_signs(typed);
  if (words.size() <= 1) {
    return command_candidates(words.empty() ? "" : words[0], commands, /*with_help=*/true);
  }
  if (words[0] == "help") return command_candidates(words.back(), commands, /*with_help=*/false);
  const auto found = std::find_if(commands.begin(), commands.end(), [&](const Command* command) {
    return command->name == words[0];
  });
  if (found == commands.end()) return {};
  const Command& command = **found;

  const OptionTable table(command);
  const Option* before =
      words.size() > 2 ? option_of_word(table, words[words.size() - 2]) : nullptr;
  std::vector<Candidate> result;
  if (before != nullptr && before->kind != ValueKind::kFlag) {
    for (const std::string& choice : before->choices) {
      add_if_prefixed(choice, words.back(), "", result);
    }
    return result;
  }
  if (words.back().starts_with("-")) return option_candidates(table, words);
  for (const Positional& positional : command.positionals) {
    for (const std::string& choice : positional.choices) {
      add_if_prefixed(choice, words.back(), "", result);
    }
  }
  return result;
}

std::string completion_script(std::string_view shell) {
  if (shell == "zsh") return std::string(kZsh);
  return std::string(shell == "fish" ? kFish : kBash);
}

const Command& completion_command() {
  static const Command command = {
      .name = "completion",
      .brief = "Print the completion script of a shell",
      .description =
          "Prints the lines that teach a shell to complete commands, options and their "
          "words.",
      .positionals = {{.name = "SHELL",
                       .help = "bash, zsh or fish",
                       .choices = {"bash", "zsh", "fish"}}},
      .examples = {{"assay completion bash > ~/.local/share/bash-completion/completions/assay",
                    "For every later bash."},
                   {"assay completion fish > ~/.config/fish/completions/assay.fish", "For fish."}},
      .run =
          [](const Arguments& arguments, Terminal& terminal) {
            const std::string shell = arguments.text("SHELL");
            const std::string script = completion_script(shell);
            terminal.print(terminal.json()
                               ? Json::object().set("shell", shell).set("script", script).dump() +
                                     "\n"
                               : script);
            return ExitCode::kDone;
          },
  };
  return command;
}

}  // namespace assay::cli
