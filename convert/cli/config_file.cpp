#include "convert/cli/config_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "convert/cli/parse.h"
#include "convert/cli/suggest.h"
#include "convert/cli/yaml_tree.h"

namespace assay::cli {
namespace {

constexpr size_t kLargestFile = 1 << 20;  // bytes

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// JSON's number syntax: no sign but '-', no leading zero, no hexadecimal, no infinity.
bool is_json_number(std::string_view text) {
  const size_t begin = text.starts_with("-") ? 1 : 0;
  if (text.size() == begin || !is_digit(text[begin]) || !is_digit(text.back())) return false;
  if (text[begin] == '0' && text.size() > begin + 1 && is_digit(text[begin + 1])) return false;
  double value = 0;
  return parse_number(text, value);
}

/// Whether YAML 1.1 or 1.2 readers could take a plain scalar for something other than text: `no`,
/// `null`, `010`, `.inf`, `1e3`.
bool is_ambiguous_text(std::string_view text) {
  std::string word(text);
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* special : {"true", "false", "yes", "no", "on", "off", "y", "n", "null", "~",
                              ".inf", "-.inf", "+.inf", ".nan"}) {
    if (word == special) return true;
  }
  if (word.starts_with("0x") || word.starts_with("0o")) return true;
  if (word.starts_with("+")) word.erase(0, 1);
  double number = 0;
  return parse_number(word, number);
}

/// The text that command line and environment would give for this node.
std::string scalar_text(const Option& option, const YamlNode& node, const std::string& place) {
  const bool plain = node.kind == YamlNode::Kind::kScalar && !node.quoted;
  const bool is_choice =
      std::find(option.choices.begin(), option.choices.end(), node.text) != option.choices.end();
  bool fits = node.kind == YamlNode::Kind::kScalar;
  switch (option.kind) {
    case ValueKind::kFlag:
      fits = plain && (node.text == "true" || node.text == "false");
      break;
    case ValueKind::kInteger:
    case ValueKind::kNumber:
      fits = plain && is_json_number(node.text);
      break;
    case ValueKind::kBytes:
      fits = fits && (is_json_number(node.text) || !is_ambiguous_text(node.text));
      break;
    case ValueKind::kText:
    case ValueKind::kPath:
      if (plain && !is_choice && is_ambiguous_text(node.text)) {
        throw UsageError(
            fmt::format("{}: expected {}, found \"{}\", which YAML does not read as "
                        "text; put it in quotes",
                        place, expected_value(option), node.text));
      }
      break;
  }
  if (!fits) {
    throw UsageError(
        fmt::format("{}: expected {}, found {}", place, expected_value(option), node.describe()));
  }
  return checked_value(option, node.text, place);
}

std::vector<std::string> option_values(const Option& option, const YamlNode& node,
                                       const std::string& source) {
  const auto place = [&](const YamlNode& at) {
    return fmt::format("{}: {}", at.place(source), option.name);
  };
  if (node.kind != YamlNode::Kind::kSequence) return {scalar_text(option, node, place(node))};
  if (!option.repeatable) {
    throw UsageError(fmt::format("{}: expected {}, found a list; this option takes one value",
                                 place(node), expected_value(option)));
  }
  std::vector<std::string> values;
  for (const YamlNode& item : node.items) values.push_back(scalar_text(option, item, place(item)));
  return values;
}

class ConfigReader {
 public:
  ConfigReader(const std::string& source, const Command& command,
               std::span<const Command* const> commands)
      : source_(source), command_(command), commands_(commands) {}

  /// Sections first: they win over the same key outside.
  void read(const YamlNode& root, const OptionTable& table, Arguments& arguments) const {
    if (root.kind != YamlNode::Kind::kMapping) {
      throw UsageError(fmt::format("{}: expected option names with values, found {}",
                                   root.place(source_), root.describe()));
    }
    for (const auto& [key, value] : root.members) {
      const Command* section = find_command(key.text);
      if (section == nullptr || table.find(key.text) != nullptr) continue;
      if (section == &command_) {
        read_section(value, command_, table, arguments);
      } else {
        Arguments unused;  // checked all the same: a slip is told when it is made
        read_section(value, *section, OptionTable(*section), unused);
      }
    }
    for (const auto& [key, value] : root.members) {
      if (table.find(key.text) == nullptr && find_command(key.text) != nullptr) continue;
      read_option(key, value, command_, table, arguments);
    }
  }

 private:
  const Command* find_command(std::string_view name) const {
    for (const Command* command : commands_) {
      if (command->name == name) return command;
    }
    return nullptr;
  }

  void read_section(const YamlNode& section, const Command& command, const OptionTable& table,
                    Arguments& arguments) const {
    if (section.kind == YamlNode::Kind::kNull) return;
    if (section.kind != YamlNode::Kind::kMapping) {
      throw UsageError(fmt::format("{}: {}: expected option names with values, found {}",
                                   section.place(source_), command.name, section.describe()));
    }
    for (const auto& [key, value] : section.members) {
      read_option(key, value, command, table, arguments);
    }
  }

  void read_option(const YamlNode& key, const YamlNode& value, const Command& command,
                   const OptionTable& table, Arguments& arguments) const {
    const Option* option = table.find(key.text);
    if (option == nullptr) throw_unknown_key(key, command, table);
    if (is_command_line_only(*option)) {
      throw UsageError(fmt::format("{}: \"{}\" can only be given on the command line",
                                   key.place(source_), key.text));
    }
    std::vector<std::string> values = option_values(*option, value, source_);
    if (arguments.given(option->name)) return;
    arguments.set(
        option->name, std::move(values), Arguments::Origin::kConfig,
        {.kind = option->kind, .is_list = option->repeatable, .place = value.place(source_)});
  }

  [[noreturn]] void throw_unknown_key(const YamlNode& key, const Command& command,
                                      const OptionTable& table) const {
    std::string hint = did_you_mean(key.text, table.names());
    for (const Command* other : commands_) {
      if (other != &command && OptionTable(*other).find(key.text) != nullptr) {
        hint =
            fmt::format("; it belongs to assay {}: put it under \"{}:\"", other->name, other->name);
        break;
      }
    }
    throw UsageError(fmt::format("{}: assay {} has no option \"{}\"{}", key.place(source_),
                                 command.name, key.text, hint));
  }

  const std::string& source_;
  const Command& command_;
  std::span<const Command* const> commands_;
};

}  // namespace

bool is_command_line_only(const Option& option) {
  for (const char* name : {"config", "show-config", "help", "help-all"}) {
    if (option.name == name) return true;
  }
  return false;
}

void add_config_text(std::string_view text, const std::string& source, const Command& command,
                     const OptionTable& table, std::span<const Command* const> commands,
                     Arguments& arguments) {
  ConfigReader(source, command, commands).read(parse_yaml(text, source), table, arguments);
}

void add_config_file(const std::string& path, const Command& command, const OptionTable& table,
                     std::span<const Command* const> commands, Arguments& arguments) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw_system_error(path + ": cannot open the config file", errno);
  }
  std::string text(kLargestFile + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) {
    throw_system_error(path + ": cannot read the config file", errno);
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kLargestFile) {
    throw UsageError(fmt::format("{}: a config file has at most {} bytes", path, kLargestFile));
  }
  add_config_text(text, path, command, table, commands, arguments);
}

}  // namespace assay::cli
