#include "convert/cli/show_config.h"

#include <fmt/core.h>

#include "convert/cli/config_file.h"

namespace assay::cli {
namespace {

/// "group-size: 128" padded so that the origins stand in one column.
std::string yaml_line(const std::string& line, const std::string& origin) {
  constexpr size_t kOriginColumn = 40;
  return fmt::format("{:<{}}  # {}\n", line, kOriginColumn, origin);
}

}  // namespace

std::string effective_config_yaml(const Command& command, const OptionTable& table,
                                  const Arguments& arguments) {
  std::string result = fmt::format("# assay {}: values in effect\n", command.name);
  for (const Positional& positional : command.positionals) {
    result += yaml_line(
        fmt::format("# {}: {}", positional.name, arguments.value_to_json(positional.name).dump(0)),
        arguments.place(positional.name));
  }
  for (const Option& option : table.options()) {
    if (is_command_line_only(option)) continue;
    const Json value = arguments.value_to_json(option.name);
    const bool none = value.is_null() || (value.is_array() && value.as_array().empty());
    result += yaml_line(fmt::format("{}{}: {}", none ? "# " : "", option.name, value.dump(0)),
                        arguments.place(option.name));
  }
  return result;
}

Json effective_config_json(const Command& command, const OptionTable& table,
                           const Arguments& arguments) {
  Json options = Json::object();
  for (const Option& option : table.options()) {
    if (is_command_line_only(option)) continue;
    Json entry = Json::object();
    entry.set("value", arguments.value_to_json(option.name));
    entry.set("origin", arguments.place(option.name));
    options.set(option.name, std::move(entry));
  }
  Json result = Json::object();
  return result.set("command", command.name).set("options", std::move(options));
}

}  // namespace assay::cli
