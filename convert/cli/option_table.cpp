#include "convert/cli/option_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "convert/cli/suggest.h"
#include "convert/core/words.h"

namespace assay::cli {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

/// 4096 instead of 4096.0, 0.01 as it is.
std::string plain_number(double value) { return fmt::format("{}", value); }

std::string with_range(std::string what, const Option& option) {
  if (option.minimum && option.maximum) {
    return fmt::format("{} from {} to {}", what, plain_number(*option.minimum),
                       plain_number(*option.maximum));
  }
  if (option.minimum) return fmt::format("{} of at least {}", what, plain_number(*option.minimum));
  if (option.maximum) return fmt::format("{} of at most {}", what, plain_number(*option.maximum));
  return what;
}

bool in_range(const Option& option, double value) {
  return !(option.minimum && value < *option.minimum) &&
         !(option.maximum && value > *option.maximum);
}

bool is_choice(const Option& option, std::string_view value) {
  return option.choices.empty() ||
         std::find(option.choices.begin(), option.choices.end(), value) != option.choices.end();
}

bool fits(const Option& option, std::string_view value) {
  int64_t integer = 0;
  double number = 0;
  uint64_t bytes = 0;
  bool on = false;
  switch (option.kind) {
    case ValueKind::kFlag:
      return parse_switch(value, on);
    case ValueKind::kText:
      return is_choice(option, value);
    case ValueKind::kPath:
      return !value.empty() && is_choice(option, value);
    case ValueKind::kInteger:
      return parse_integer(value, integer) && in_range(option, static_cast<double>(integer)) &&
             is_choice(option, std::to_string(integer));
    case ValueKind::kNumber:
      return parse_number(value, number) && in_range(option, number) && is_choice(option, value);
    case ValueKind::kBytes:
      return parse_bytes(value, bytes) && in_range(option, static_cast<double>(bytes)) &&
             is_choice(option, value);
  }
  return false;
}

/// For numbers that are integers of the range, and yet do not fit.
std::string largest_integer(const Option& option, std::string_view value) {
  int64_t unused = 0;
  const auto read = std::from_chars(value.data(), value.data() + value.size(), unused);
  if (option.kind != ValueKind::kInteger || read.ec != std::errc::result_out_of_range) return {};
  return fmt::format("; integers go to {}", INT64_MAX);
}

}  // namespace

OptionTable::OptionTable(const Command& command) : options_(command.options) {
  for (Option& option : global_options()) options_.push_back(std::move(option));
  for (size_t i = 0; i < options_.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const bool same_letter =
          options_[i].short_name != 0 && options_[i].short_name == options_[j].short_name;
      if (options_[i].name == options_[j].name || same_letter) {
        throw std::logic_error(fmt::format("command {}: options --{} and --{} collide",
                                           command.name, options_[j].name, options_[i].name));
      }
    }
  }
}

const Option* OptionTable::find(std::string_view name) const {
  for (const Option& option : options_) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

const Option* OptionTable::find_short(char letter) const {
  for (const Option& option : options_) {
    if (letter != 0 && option.short_name == letter) return &option;
  }
  return nullptr;
}

std::vector<std::string> OptionTable::names() const {
  std::vector<std::string> result;
  for (const Option& option : options_) result.push_back(option.name);
  return result;
}

std::string environment_name(const Option& option) {
  std::string result = "ASSAY_";
  for (const char c : option.name) {
    result += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return result;
}

std::string expected_value(const Option& option) {
  if (!option.choices.empty()) return "one of " + join_words(option.choices);
  switch (option.kind) {
    case ValueKind::kFlag:
      return "true or false";
    case ValueKind::kText:
      return "text";
    case ValueKind::kPath:
      return "a path";
    case ValueKind::kInteger:
      return with_range("an integer", option);
    case ValueKind::kNumber:
      return with_range("a number", option);
    case ValueKind::kBytes:
      return with_range("a size such as 512M or 2GiB", option);
  }
  return {};
}

std::string checked_value(const Option& option, std::string_view value, std::string_view place) {
  if (!fits(option, value)) {
    throw UsageError(fmt::format("{}: expected {}, found \"{}\"{}{}", place, expected_value(option),
                                 value, did_you_mean(value, option.choices),
                                 largest_integer(option, value)));
  }
  if (option.kind != ValueKind::kFlag) return std::string(value);
  bool on = false;
  parse_switch(value, on);
  return on ? "true" : "false";
}

bool parse_integer(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_number(std::string_view text, double& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

bool parse_bytes(std::string_view text, uint64_t& value) {
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return false;
  const std::string unit = lower(std::string_view(end, static_cast<size_t>(last - end)));

  double factor = 1;
  if (!unit.empty() && unit != "b") {
    constexpr std::string_view kPowers = "kmgt";
    const size_t power = kPowers.find(unit[0]);
    const std::string_view rest = std::string_view(unit).substr(1);
    if (power == std::string_view::npos) return false;
    if (!rest.empty() && rest != "b" && rest != "ib") return false;
    factor = std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = std::floor(number * factor);
  if (bytes >= 0x1p63) return false;
  value = static_cast<uint64_t>(bytes);
  return true;
}

bool parse_switch(std::string_view text, bool& value) {
  const std::string word = lower(text);
  value = word == "1" || word == "on" || word == "yes" || word == "true";
  return value || word == "0" || word == "off" || word == "no" || word == "false";
}

}  // namespace assay::cli
