#include "convert/cli/parse.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/program_options.hpp>

#include "convert/cli/config_file.h"
#include "convert/cli/suggest.h"
#include "convert/core/words.h"

namespace assay::cli {
namespace {

namespace po = boost::program_options;

using Words = std::vector<std::string>;

std::string option_label(const Option& option) { return "--" + option.name; }

/// Every value stays text here: kinds and ranges are checked by set_checked, whose messages say
/// what was expected. Boost only splits words, so its traps stay out: no guessing of abbreviations,
/// no optional values that swallow the next word, no multitoken options.
po::options_description boost_description(const OptionTable& table) {
  po::options_description description;
  for (const Option& option : table.options()) {
    std::string names = option.name;
    if (option.short_name != 0) names += std::string(",") + option.short_name;
    if (option.kind == ValueKind::kFlag) {
      description.add_options()(names.c_str(), po::value<Words>()->zero_tokens(), "");
      description.add_options()(("no-" + option.name).c_str(), po::value<Words>()->zero_tokens(),
                                "");
    } else {
      description.add_options()(names.c_str(), po::value<Words>(), "");
    }
  }
  return description;
}

[[noreturn]] void throw_unknown_option(const OptionTable& table, const std::string& found) {
  const size_t dashes = std::min(found.find_first_not_of('-'), found.size());
  std::string name = found.substr(dashes);
  const size_t equal = name.find('=');
  if (equal != std::string::npos) name.resize(equal);
  throw UsageError(
      fmt::format("there is no option \"{}\"{}", found, did_you_mean(name, table.names(), "--")));
}

std::vector<po::option> split_words(const OptionTable& table, const Words& words) {
  namespace style = po::command_line_style;
  constexpr int kStyle = style::allow_long | style::allow_short | style::allow_dash_for_short |
                         style::long_allow_adjacent | style::long_allow_next |
                         style::short_allow_adjacent | style::short_allow_next |
                         style::allow_sticky;
  const po::options_description description = boost_description(table);
  try {
    return po::command_line_parser(words).options(description).style(kStyle).run().options;
  } catch (const po::unknown_option& error) {
    throw_unknown_option(table, error.get_option_name());
  } catch (const po::invalid_command_line_syntax& error) {
    const std::string name = error.get_option_name();
    const size_t dashes = std::min(name.find_first_not_of('-'), name.size());
    const Option* option = table.find(name.substr(dashes));
    if (option == nullptr && name.size() == 2) option = table.find_short(name[1]);
    if (option == nullptr) throw UsageError(error.what());
    if (option->kind == ValueKind::kFlag) {
      throw UsageError(
          fmt::format("--{} takes no value; --no-{} switches it off", option->name, option->name));
    }
    throw UsageError(
        fmt::format("--{}: expected {}, found nothing", option->name, expected_value(*option)));
  } catch (const po::error& error) {
    throw UsageError(error.what());
  }
}

/// What Boost accepts although it is almost surely a slip: `--out --threads 4` and `-t=4`.
void refuse_slips(const Option& option, const po::option& parsed) {
  if (parsed.value.empty() || parsed.original_tokens.empty()) return;
  const std::string& value = parsed.value.front();
  const bool own_word = parsed.original_tokens.size() > 1;
  if (own_word && value.starts_with("--")) {
    throw UsageError(
        fmt::format("--{}: expected {}, found the option \"{}\"; write --{}={} if "
                    "that is the value",
                    option.name, expected_value(option), value, option.name, value));
  }
  const std::string& word = parsed.original_tokens.front();
  const bool short_form = word.size() > 1 && word[0] == '-' && word[1] != '-';
  if (!own_word && short_form && value.starts_with("=")) {
    throw UsageError(fmt::format("\"{}\": a short option takes its value without \"=\": -{} {}",
                                 word, option.short_name, value.substr(1)));
  }
}

struct GivenOption {
  const Option* option = nullptr;
  Words values;
};

/// Adds one parsed option to those that were given before it.
void collect_option(const OptionTable& table, const po::option& parsed,
                    std::vector<GivenOption>& given) {
  const Option* option = table.find(parsed.string_key);
  const bool negated = option == nullptr;
  if (negated) option = table.find(std::string_view(parsed.string_key).substr(3));
  if (option == nullptr) throw_unknown_option(table, "--" + parsed.string_key);
  refuse_slips(*option, parsed);

  Words values = parsed.value;
  if (option->kind == ValueKind::kFlag) values = {negated ? "false" : "true"};
  for (GivenOption& before : given) {
    if (before.option != option) continue;
    if (!option->repeatable) {
      throw UsageError(fmt::format("--{} is given twice (\"{}\" and \"{}\"); it takes one value",
                                   option->name, join_words(before.values), join_words(values)));
    }
    before.values.insert(before.values.end(), values.begin(), values.end());
    return;
  }
  given.push_back({option, std::move(values)});
}

void check_choice(const Positional& positional, const std::string& word) {
  const Words& choices = positional.choices;
  if (choices.empty() || std::find(choices.begin(), choices.end(), word) != choices.end()) return;
  throw UsageError(fmt::format("{}: expected one of {}, found \"{}\"{}", positional.name,
                               join_words(choices), word, did_you_mean(word, choices)));
}

void set_positionals(const Command& command, const Words& words, Arguments& arguments) {
  size_t next = 0;
  for (const Positional& positional : command.positionals) {
    if (next == words.size()) return;
    const size_t n = positional.repeatable ? words.size() - next : 1;
    for (size_t i = next; i < next + n; ++i) {
      if (words[i].empty()) {
        throw UsageError(fmt::format("{}: expected a value, found an empty word", positional.name));
      }
      check_choice(positional, words[i]);
    }
    const auto first = words.begin() + static_cast<std::ptrdiff_t>(next);
    arguments.set(positional.name, Words(first, first + static_cast<std::ptrdiff_t>(n)),
                  Arguments::Origin::kCommandLine,
                  {.kind = ValueKind::kText, .is_list = positional.repeatable});
    next += n;
  }
  if (next < words.size()) {
    throw UsageError(fmt::format(
        "unexpected argument \"{}\"; assay {} takes {}", words[next], command.name,
        command.positionals.empty() ? "options only"
                                    : fmt::format("{} argument{}", next, next == 1 ? "" : "s")));
  }
}

Words split_list(const std::string& text) {
  Words result;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(';', begin), text.size());
    if (end > begin) result.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

}  // namespace

void set_checked(const Option& option, const std::vector<std::string>& values,
                 Arguments::Origin origin, const std::string& label, const std::string& place,
                 Arguments& arguments) {
  Words checked;
  for (const std::string& value : values) checked.push_back(checked_value(option, value, label));
  arguments.set(option.name, std::move(checked), origin,
                {.kind = option.kind, .is_list = option.repeatable, .place = place});
}

Arguments parse_command_line(const Command& command, const OptionTable& table,
                             const std::vector<std::string>& words) {
  std::vector<GivenOption> given;
  Words positionals;
  for (const po::option& parsed : split_words(table, words)) {
    if (!parsed.string_key.empty()) {
      collect_option(table, parsed, given);
      continue;
    }
    // Boost makes the positional "x" of "--=x".
    if (!parsed.original_tokens.empty() && parsed.original_tokens[0].starts_with("--=")) {
      throw_unknown_option(table, parsed.original_tokens[0]);
    }
    positionals.insert(positionals.end(), parsed.value.begin(), parsed.value.end());
  }

  Arguments arguments;
  for (const GivenOption& one : given) {
    set_checked(*one.option, one.values, Arguments::Origin::kCommandLine, option_label(*one.option),
                "", arguments);
  }
  set_positionals(command, positionals, arguments);
  return arguments;
}

void add_environment(const OptionTable& table, const EnvironmentMap& environment,
                     Arguments& arguments) {
  for (const Option& option : table.options()) {
    const std::string name = environment_name(option);
    const auto found = environment.find(name);
    if (found == environment.end() || found->second.empty() || arguments.given(option.name)) {
      continue;
    }
    if (is_command_line_only(option) && option.name != "config") continue;
    const Words values = option.repeatable ? split_list(found->second) : Words{found->second};
    set_checked(option, values, Arguments::Origin::kEnvironment, name, name, arguments);
  }
}

void add_defaults(const Command& command, const OptionTable& table, Arguments& arguments) {
  for (const Option& option : table.options()) {
    if (arguments.given(option.name)) continue;
    Words values;
    if (option.kind == ValueKind::kFlag) values = {"false"};
    if (!option.default_value.empty()) values = {option.default_value};
    set_checked(option, values, Arguments::Origin::kDefault, option_label(option), "", arguments);
  }
  for (const Positional& positional : command.positionals) {
    if (arguments.given(positional.name)) continue;
    arguments.set(positional.name, {}, Arguments::Origin::kDefault,
                  {.kind = ValueKind::kText, .is_list = positional.repeatable});
  }
}

void check_required(const Command& command, const OptionTable& table, const Arguments& arguments) {
  for (const Positional& positional : command.positionals) {
    if (!positional.optional && !arguments.given(positional.name)) {
      throw UsageError(fmt::format("{} is missing: {}", positional.name, positional.help));
    }
  }
  for (const Option& option : table.options()) {
    if (option.required && !arguments.given(option.name)) {
      throw UsageError(fmt::format("--{}{}{} is missing: {}", option.name,
                                   option.value_name.empty() ? "" : " ", option.value_name,
                                   option.help));
    }
  }
}

}  // namespace assay::cli
