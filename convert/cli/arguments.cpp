#include <fmt/core.h>

#include <stdexcept>

#include "convert/cli/command.h"
#include "convert/cli/option_table.h"

namespace assay::cli {
namespace {

/// Values are checked when they are set from outside; a value that does not parse here means that a
/// command asks for an option that it has not declared with this kind.
[[noreturn]] void wrong_use(std::string_view name, std::string_view kind) {
  throw std::logic_error(fmt::format(
      "option --{} has no {} value here; this is a fault of assay, please report it", name, kind));
}

}  // namespace

bool Arguments::given(std::string_view name) const { return origin(name) != Origin::kDefault; }

Arguments::Origin Arguments::origin(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? Origin::kDefault : found->second.origin;
}

std::string Arguments::place(std::string_view name) const {
  static constexpr std::string_view kPlaces[] = {"default", "config", "environment",
                                                 "command line"};
  const auto found = values_.find(name);
  if (found == values_.end()) return "default";
  const Value& value = found->second;
  if (!value.details.place.empty()) return value.details.place;
  return std::string(kPlaces[static_cast<size_t>(value.origin)]);
}

bool Arguments::flag(std::string_view name) const { return text(name) == "true"; }

std::string Arguments::text(std::string_view name) const {
  return optional_text(name).value_or(std::string());
}

std::optional<std::string> Arguments::optional_text(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end() || found->second.values.empty()) return std::nullopt;
  return found->second.values.back();
}

std::vector<std::string> Arguments::list(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::vector<std::string>() : found->second.values;
}

int64_t Arguments::integer(std::string_view name) const {
  int64_t value = 0;
  if (!parse_integer(text(name), value)) wrong_use(name, "integer");
  return value;
}

double Arguments::number(std::string_view name) const {
  double value = 0;
  if (!parse_number(text(name), value)) wrong_use(name, "number");
  return value;
}

uint64_t Arguments::bytes(std::string_view name) const {
  uint64_t value = 0;
  if (!parse_bytes(text(name), value)) wrong_use(name, "size");
  return value;
}

void Arguments::set(std::string_view name, std::vector<std::string> values, Origin origin,
                    Details details) {
  values_[std::string(name)] = {std::move(values), origin, std::move(details)};
}

}  // namespace assay::cli
