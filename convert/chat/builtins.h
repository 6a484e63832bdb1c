#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/chat/machine.h"
#include "convert/chat/value.h"

namespace assay::chat {

/// Arguments of a filter, test, method or function.
class CallArguments {
 public:
  CallArguments(std::string_view callee, std::vector<Value> positional,
                std::vector<std::pair<std::string, Value>> named, Machine& machine)
      : callee_(callee),
        positional_(std::move(positional)),
        named_(std::move(named)),
        machine_(machine) {}

  /// Gives each parameter its argument or nothing; an argument too many is an error.
  std::vector<std::optional<Value>> bind(std::initializer_list<std::string_view> parameters);
  const std::vector<Value>& positional() const { return positional_; }
  const std::vector<std::pair<std::string, Value>>& named() const { return named_; }
  /// `<callee>: <what>`.
  std::string described(std::string_view what) const;

 private:
  std::string_view callee_;
  std::vector<Value> positional_;
  std::vector<std::pair<std::string, Value>> named_;
  Machine& machine_;
};

/// value | name(arguments)
Value apply_filter(std::string_view name, const Value& value, CallArguments arguments,
                   Machine& machine);
/// value is name(arguments)
bool apply_test(std::string_view name, const Value& value, CallArguments arguments,
                Machine& machine);
/// value.name(arguments); undefined if the value has no such method.
std::optional<Value> call_method(const Value& value, std::string_view name, CallArguments arguments,
                                 Machine& machine);
/// Whether .name of a value of this kind is a method, so that it hides a member of this name.
bool is_method(const Value& value, std::string_view name);

}  // namespace assay::chat
