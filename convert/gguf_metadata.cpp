#include <limits>
#include <type_traits>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/gguf.h"

namespace assay {
namespace {

[[noreturn]] void wrong_type(std::string_view key, const char* expected) {
  throw FormatError("GGUF key " + in_quotes(key) + ": expected " + expected +
                    ", found a value of another type");
}

template <class T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

}  // namespace

size_t GgufArray::size() const {
  return std::visit([](const auto& vector) { return vector.size(); }, values);
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &items_[found->second].second;
}

void GgufMetadata::set(std::string_view key, GgufValue value) {
  const auto [place, is_new] = by_key_.emplace(key, items_.size());
  if (is_new) {
    items_.emplace_back(key, std::move(value));
  } else {
    items_[place->second].second = std::move(value);
  }
}

void GgufMetadata::remove(std::string_view key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  const size_t at = found->second;
  items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(at));
  by_key_.erase(found);
  for (auto& [name, position] : by_key_) position -= position > at ? 1 : 0;
}

std::optional<int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  return std::visit(
      [&](const auto& held) -> int64_t {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, uint64_t>) {
          if (held > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
            throw FormatError("GGUF key " + in_quotes(key) + ": " + std::to_string(held) +
                              " is too large");
          }
        }
        if constexpr (kIsInteger<T>) {
          return static_cast<int64_t>(held);
        } else {
          wrong_type(key, "an integer");
        }
      },
      *value);
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  return std::visit(
      [&](const auto& held) -> double {
        using T = std::decay_t<decltype(held)>;
        if constexpr (kIsInteger<T> || std::is_floating_point_v<T>) {
          return static_cast<double>(held);
        } else {
          wrong_type(key, "a number");
        }
      },
      *value);
}

std::optional<std::string> GgufMetadata::string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const std::string* text = std::get_if<std::string>(value)) return *text;
  wrong_type(key, "a string");
}

std::optional<bool> GgufMetadata::boolean(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const bool* flag = std::get_if<bool>(value)) return *flag;
  wrong_type(key, "a boolean");
}

}  // namespace assay
