#include "convert/chat/value.h"

#include <algorithm>
#include <type_traits>

#include "convert/core/error.h"

namespace assay::chat {

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name.bytes() == key) return &value;
  }
  return nullptr;
}

const Text* as_text(const Value& value) {
  const auto* text = std::get_if<std::shared_ptr<const Text>>(&value);
  return text ? text->get() : nullptr;
}
const List* as_list(const Value& value) {
  const auto* list = std::get_if<std::shared_ptr<const List>>(&value);
  return list ? list->get() : nullptr;
}
const Dict* as_dict(const Value& value) {
  const auto* dict = std::get_if<std::shared_ptr<const Dict>>(&value);
  return dict ? dict->get() : nullptr;
}
bool is_undefined(const Value& value) { return std::holds_alternative<Undefined>(value); }
const int64_t* as_integer(const Value& value) { return std::get_if<int64_t>(&value); }

Value make_text(Text text) { return std::make_shared<const Text>(std::move(text)); }
Value make_own_text(std::string_view bytes) { return make_text(Text::of_template(bytes)); }

bool truth(const Value& value) {
  return std::visit(
      [](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, Undefined> || std::is_same_v<T, None>) {
          return false;
        } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t> ||
                             std::is_same_v<T, double>) {
          return v != T{};
        } else if constexpr (std::is_same_v<T, std::shared_ptr<const Text>>) {
          return !v->empty();
        } else if constexpr (std::is_same_v<T, std::shared_ptr<const List>>) {
          return !v->items.empty();
        } else if constexpr (std::is_same_v<T, std::shared_ptr<const Dict>>) {
          return !v->members.empty();
        } else {
          return true;
        }
      },
      value);
}

std::string_view kind_name(const Value& value) {
  switch (value.index()) {
    case 0:
      return "undefined";
    case 1:
      return "none";
    case 2:
      return "a bool";
    case 3:
      return "an integer";
    case 4:
      return "a float";
    case 5:
      return "a string";
    case 6:
      return "a list";
    case 7:
      return "a mapping";
    case 8:
      return "a namespace";
    case 9:
      return "loop";
    case 10:
      return "a macro";
    default:
      return "a function";
  }
}

Value value_of(const Json& json) {
  if (json.is_null()) return None{};
  if (json.is_bool()) return json.as_bool();
  if (json.is_string()) return make_text(Text::from_outside(json.as_string()));
  if (json.is_array()) {
    List list;
    for (const Json& element : json.as_array()) {
      list.items.push_back(value_of(element));
      if (const List* inner = as_list(list.items.back())) {
        list.depth = std::max(list.depth, inner->depth + 1);
      } else if (const Dict* mapping = as_dict(list.items.back())) {
        list.depth = std::max(list.depth, mapping->depth + 1);
      }
    }
    return std::make_shared<const List>(std::move(list));
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [key, element] : json.as_object()) {
      dict.members.emplace_back(Text::from_outside(key), value_of(element));
      const Value& member = dict.members.back().second;
      if (const List* inner = as_list(member)) {
        dict.depth = std::max(dict.depth, inner->depth + 1);
      } else if (const Dict* mapping = as_dict(member)) {
        dict.depth = std::max(dict.depth, mapping->depth + 1);
      }
    }
    return std::make_shared<const Dict>(std::move(dict));
  }
  if (!json.is_integer()) return json.as_number();
  const std::string digits = json.integer_text();
  if (digits.size() >= 19 && digits > "9223372036854775807" && digits[0] != '-') {
    throw UnsupportedError("the integer " + digits + " does not fit into 64 bits");
  }
  return json.as_integer();
}

}  // namespace assay::chat
