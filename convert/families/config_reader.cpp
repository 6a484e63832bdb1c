#include "convert/families/config_reader.h"

#include <fmt/format.h>

#include <cmath>

#include "convert/core/error.h"

namespace assay {
namespace {

/// What a message shows of a value: its JSON text, shortened.
std::string shown(const Json& value) {
  std::string text = value.dump(0);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::optional<int64_t> whole_number(const Json& value) {
  if (value.is_integer()) {
    try {
      return value.as_integer();
    } catch (const FormatError&) {
      return std::nullopt;  // beyond 2^63 − 1
    }
  }
  if (!value.is_number()) return std::nullopt;
  const double number = value.as_number();
  if (std::fabs(number) > 9007199254740992.0 || number != std::trunc(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace

ConfigReader::ConfigReader(const Json& config, std::string source)
    : config_(&config), source_(std::move(source)) {
  if (!config.is_object()) {
    throw FormatError(fmt::format("{}: expected an object, found {}", source_, shown(config)));
  }
}

const Json* ConfigReader::find(std::string_view key) const {
  const Json* value = config_->find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Json& ConfigReader::required(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) throw FormatError(fmt::format("{}: \"{}\" is missing", source_, key));
  return *value;
}

void ConfigReader::fail(std::string_view key, std::string_view expected) const {
  const Json* value = find(key);
  throw FormatError(fmt::format("{}: \"{}\" is {}; expected {}", source_, key,
                                value == nullptr ? "missing" : shown(*value), expected));
}

int64_t ConfigReader::integer(std::string_view key, int64_t minimum, int64_t maximum) const {
  const std::optional<int64_t> value = whole_number(required(key));
  if (!value || *value < minimum || *value > maximum) {
    fail(key, fmt::format("an integer from {} to {}", minimum, maximum));
  }
  return *value;
}

int64_t ConfigReader::integer_or(std::string_view key, int64_t minimum, int64_t maximum,
                                 int64_t fallback) const {
  return has(key) ? integer(key, minimum, maximum) : fallback;
}

double ConfigReader::number(std::string_view key, double minimum, double maximum) const {
  const Json& value = required(key);
  const double number = value.is_number() ? value.as_number() : NAN;
  if (!(number >= minimum && number <= maximum)) {
    fail(key, fmt::format("a number from {} to {}", minimum, maximum));
  }
  return number;
}

double ConfigReader::number_or(std::string_view key, double minimum, double maximum,
                               double fallback) const {
  return has(key) ? number(key, minimum, maximum) : fallback;
}

bool ConfigReader::boolean_or(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) fail(key, "true or false");
  return value->as_bool();
}

std::string ConfigReader::text(std::string_view key) const {
  const Json& value = required(key);
  if (!value.is_string()) fail(key, "a text");
  return value.as_string();
}

std::string ConfigReader::text_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}

}  // namespace assay
