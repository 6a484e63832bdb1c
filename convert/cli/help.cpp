#include "convert/cli/help.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "convert/cli/option_table.h"
#include "convert/core/words.h"

namespace assay::cli {
namespace {

constexpr int kTermIndent = 2;
constexpr int kMostTermColumns = 26;  // longer terms have their help on the next line

/// Columns that UTF-8 text takes: bytes that do not continue a character.
size_t n_columns(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;
  }));
}

struct Row {
  std::string term;
  std::string help;
};

std::string rows_text(const std::vector<Row>& rows, int width) {
  size_t term_columns = 0;
  for (const Row& row : rows) {
    if (n_columns(row.term) <= kMostTermColumns) {
      term_columns = std::max(term_columns, n_columns(row.term));
    }
  }
  const int help_indent = kTermIndent + static_cast<int>(term_columns) + 2;
  std::string result;
  for (const Row& row : rows) {
    const std::string help = wrapped(row.help, help_indent, width);
    std::string line = std::string(kTermIndent, ' ') + row.term;
    if (help.empty() || n_columns(row.term) > term_columns) {
      result.append(line).append("\n").append(help);
    } else {
      line.append(static_cast<size_t>(help_indent) - n_columns(line), ' ');
      result.append(line).append(help, static_cast<size_t>(help_indent));
    }
  }
  return result;
}

std::string option_term(const Option& option) {
  std::string result = option.short_name == 0 ? "    " : fmt::format("-{}, ", option.short_name);
  result += "--" + option.name;
  if (option.kind != ValueKind::kFlag) {
    result += " " + (option.value_name.empty() ? std::string("VALUE") : option.value_name);
  }
  return result;
}

std::string option_help(const Option& option) {
  std::string result = option.help;
  if (!result.empty() && result.back() != '.') result += ".";
  if (!option.choices.empty()) {
    result += " One of " + join_words(option.choices) + ".";
  } else if (option.minimum || option.maximum) {
    result += " Takes " + expected_value(option) + ".";
  }
  if (option.repeatable) result += " May be repeated.";
  if (option.required) result += " Required.";
  if (!option.default_value.empty()) result += " [default: " + option.default_value + "]";
  return result;
}

std::string positional_word(const Positional& positional) {
  std::string word = positional.name;
  if (positional.repeatable) word += "...";
  return positional.optional ? "[" + word + "]" : word;
}

std::string exit_codes_text(int width) {
  return "Exit codes:\n" +
         wrapped(
             "0 done or equal, 1 difference found, 2 usage, 3 input, 4 numeric, 5 device, 6 memory "
             "or disk, 7 unsupported, 70 fault of assay, 75 stopped and resumable, 130 ended by a "
             "second signal, 141 standard output was closed by its reader.",
             kTermIndent, width);
}

}  // namespace

std::string wrapped(std::string_view text, int indent, int width) {
  const std::string margin(static_cast<size_t>(indent), ' ');
  const auto limit = static_cast<size_t>(std::max(width - indent, 20));
  std::string result;
  while (!text.empty()) {
    const size_t line_end = std::min(text.find('\n'), text.size());
    std::string_view paragraph = text.substr(0, line_end);
    text.remove_prefix(std::min(line_end + 1, text.size()));
    std::string line;
    while (!paragraph.empty()) {
      const size_t word_end = std::min(paragraph.find(' '), paragraph.size());
      const std::string_view word = paragraph.substr(0, word_end);
      paragraph.remove_prefix(std::min(word_end + 1, paragraph.size()));
      if (!line.empty() && n_columns(line) + 1 + n_columns(word) > limit) {
        result += margin + line + "\n";
        line.clear();
      }
      if (!line.empty()) line += ' ';
      line += word;
    }
    result += line.empty() ? "\n" : margin + line + "\n";
  }
  return result;
}

std::string usage_line(const Command& command) {
  std::string result = fmt::format("assay {}", command.name);
  for (const Positional& positional : command.positionals) {
    result += " " + positional_word(positional);
  }
  for (const Option& option : command.options) {
    if (!option.required) continue;
    result += fmt::format(" --{} {}", option.name, option.value_name);
  }
  return result + " [options]";
}

std::string index_help(std::span<const Command* const> commands, int width) {
  std::string result = "Assay: reproducible builds for quantized language models.\n\n";
  result += "Usage: assay COMMAND [arguments] [options]\n\nCommands:\n";
  std::vector<Row> rows;
  for (const Command* command : commands) {
    if (command->name.starts_with("__")) continue;
    rows.push_back({std::string(command->name), std::string(command->brief)});
  }
  rows.push_back({"help", "Print the help of a command"});
  result += rows_text(rows, width);
  result += "\nOne command in detail: assay COMMAND --help\n";
  return result;
}

std::string command_help(const Command& command, bool all, int width) {
  std::string result = "Usage: " + usage_line(command) + "\n\n";
  result += wrapped(command.description.empty() ? command.brief : command.description, 0, width);

  std::vector<Row> rows;
  for (const Positional& positional : command.positionals) {
    rows.push_back({positional_word(positional), positional.help});
  }
  if (!rows.empty()) result += "\nArguments:\n" + rows_text(rows, width);

  const OptionTable table(command);
  std::vector<std::string> groups;
  bool any_hidden = false;
  for (const Option& option : table.options()) {
    if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  for (const std::string& group : groups) {
    rows.clear();
    for (const Option& option : table.options()) {
      if (option.group != group) continue;
      if (option.expert && !all) {
        any_hidden = true;
        continue;
      }
      rows.push_back({option_term(option), option_help(option)});
    }
    if (rows.empty()) continue;
    result += "\n" + (group.empty() ? std::string("Options") : group) + ":\n";
    result += rows_text(rows, width);
  }
  if (any_hidden) result += "\nMore options: assay " + std::string(command.name) + " --help-all\n";

  if (!command.examples.empty()) result += "\nExamples:\n";
  for (const Example& example : command.examples) {
    result += fmt::format("  {}\n", example.command);
    result += wrapped(example.explanation, 6, width);
  }
  result += "\n" + exit_codes_text(width);
  result += "\nEnvironment:\n";
  result += wrapped(
      "Each option can also be set by a variable, --threads by ASSAY_THREADS, and in a YAML file "
      "given with --config. The command line wins over the environment, that over the file.",
      kTermIndent, width);
  return result;
}

}  // namespace assay::cli
