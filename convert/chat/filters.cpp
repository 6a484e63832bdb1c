#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "convert/chat/builtins.h"
#include "convert/chat/operations.h"
#include "convert/chat/strings.h"
#include "convert/chat/white_space.h"

namespace assay::chat {
namespace {

using Bound = std::vector<std::optional<Value>>;

bool flag(const std::optional<Value>& argument) { return argument && truth(*argument); }

/// Follows "a.b.0" from `value`, as attribute= of the filters does.
Value follow(const Value& value, const Value& attribute, Machine& machine) {
  if (as_integer(attribute)) return item(value, attribute, machine);
  std::string_view path = text_of(attribute, "an attribute", machine).bytes();
  Value found = value;
  while (true) {
    machine.step();
    const size_t dot = path.find('.');
    const std::string_view name = path.substr(0, dot);
    int64_t index = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = read.ec == std::errc() && read.ptr == name.data() + name.size();
    if (is_undefined(found)) return found;
    found = item(found, is_index ? Value(index) : make_own_text(name), machine);
    if (dot == std::string_view::npos) return found;
    path.remove_prefix(dot + 1);
  }
}

Value filter_default(const Value& value, CallArguments& arguments, Machine&) {
  const Bound bound = arguments.bind({"default_value", "boolean"});
  const bool missing = is_undefined(value) || (flag(bound[1]) && !truth(value));
  if (!missing) return value;
  return bound[0].value_or(make_own_text(""));
}

Value filter_join(const Value& value, CallArguments& arguments, Machine& machine) {
  const Bound bound = arguments.bind({"d", "attribute"});
  const Text between = bound[0] ? to_text(*bound[0], machine) : Text();
  Text out;
  bool first = true;
  const auto list = elements(value, machine);
  for (const Value& element : list->items) {
    if (!first) {
      machine.make(between.cost());
      out.append(between);
    }
    first = false;
    out.append(to_text(bound[1] ? follow(element, *bound[1], machine) : element, machine));
  }
  return make_charged(std::move(out), machine);
}

Value filter_replace(const Value& value, CallArguments& arguments, Machine& machine) {
  const Bound bound = arguments.bind({"old", "new", "count"});
  if (!bound[0] || !bound[1]) machine.malformed("replace: needs two strings");
  const int64_t count = bound[2] ? integer_of(*bound[2], "replace", machine) : -1;
  return make_charged(replace_text(to_text(value, machine), to_text(*bound[0], machine),
                                   to_text(*bound[1], machine), count, machine),
                      machine);
}

Value filter_trim(const Value& value, CallArguments& arguments, Machine& machine) {
  const Bound bound = arguments.bind({"chars"});
  return make_charged(strip_text(to_text(value, machine), bound[0], true, true, machine), machine);
}

Value filter_tojson(const Value& value, CallArguments& arguments, Machine& machine) {
  const Bound bound = arguments.bind({"indent", "ensure_ascii", "separators", "sort_keys"});
  std::optional<int64_t> indent;
  if (bound[0] && !std::holds_alternative<None>(*bound[0])) {
    indent = integer_of(*bound[0], "tojson", machine);
    if (*indent < 0 || *indent > 64) machine.unsupported("tojson: an indent beyond 0 to 64");
  }
  if (flag(bound[1])) machine.unsupported("tojson: ensure_ascii is not implemented");
  if (bound[2] && !std::holds_alternative<None>(*bound[2])) {
    machine.unsupported("tojson: separators are not implemented");
  }
  return make_charged(to_json(value, indent, flag(bound[3]), machine), machine);
}

Value filter_int(const Value& value, CallArguments& arguments, Machine& machine) {
  const Bound bound = arguments.bind({"default"});
  Value fallback = bound[0].value_or(int64_t{0});
  if (const Text* text = as_text(value)) {
    std::string_view digits = without_space_at_end(without_space_at_begin(text->bytes()));
    if (digits.starts_with('+')) digits.remove_prefix(1);
    int64_t number = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (read.ec == std::errc::result_out_of_range) {
      machine.unsupported("int: integers beyond 64 bits are not implemented");
    }
    if (read.ec == std::errc() && read.ptr == digits.data() + digits.size()) return number;
    if (digits.find_first_of("._eE") != std::string_view::npos) {
      machine.unsupported("int: of a string that is not all digits is not implemented");
    }
    return fallback;
  }
  if (const double* number = std::get_if<double>(&value)) {
    if (std::abs(*number) >= 9e18) machine.unsupported("int: beyond 64 bits is not implemented");
    return static_cast<int64_t>(*number);
  }
  if (const bool* b = std::get_if<bool>(&value)) return int64_t{*b ? 1 : 0};
  return as_integer(value) ? value : fallback;
}

Value filter_float(const Value& value, CallArguments& arguments, Machine& machine) {
  const Bound bound = arguments.bind({"default"});
  if (as_text(value)) machine.unsupported("float: of a string is not implemented");
  if (const bool* b = std::get_if<bool>(&value)) return *b ? 1.0 : 0.0;
  if (const int64_t* integer = as_integer(value)) return static_cast<double>(*integer);
  return std::holds_alternative<double>(value) ? value : bound[0].value_or(0.0);
}

Value filter_reverse(const Value& value, CallArguments& arguments, Machine& machine) {
  arguments.bind({});
  if (as_text(value)) return slice(value, None{}, None{}, int64_t{-1}, machine);
  std::vector<Value> items = elements(value, machine)->items;
  std::reverse(items.begin(), items.end());
  return make_list(std::move(items), machine);
}

Value filter_items(const Value& value, CallArguments& arguments, Machine& machine) {
  arguments.bind({});
  if (is_undefined(value)) return make_list({}, machine);
  const Dict* dict = as_dict(value);
  if (!dict) machine.malformed(fmt::format("items: {} is no mapping", kind_name(value)));
  return items_of(*dict, machine);
}

Value folded(const Value& value, bool case_sensitive, Machine& machine) {
  const Text* text = as_text(value);
  return text && !case_sensitive ? make_charged(lower_text(*text, machine), machine) : value;
}

/// Sorts by keys(i), keeping the order of equal ones.
std::vector<Value> sorted(const std::vector<Value>& items, const std::vector<Value>& keys,
                          bool reverse, Machine& machine) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(keys[b], keys[a], machine) : less(keys[a], keys[b], machine);
  });
  std::vector<Value> result;
  for (const size_t i : order) result.push_back(items[i]);
  return result;
}

Value filter_dictsort(const Value& value, CallArguments& arguments, Machine& machine) {
  const Bound bound = arguments.bind({"case_sensitive", "by", "reverse"});
  const Dict* dict = as_dict(value);
  if (!dict) machine.malformed(fmt::format("dictsort: {} is no mapping", kind_name(value)));
  const std::string by =
      bound[1] ? text_of(*bound[1], "dictsort", machine).bytes() : std::string("key");
  if (by != "key" && by != "value") machine.malformed("dictsort: by must be key or value");
  std::vector<Value> keys;
  for (const auto& [key, member] : dict->members) {
    keys.push_back(
        folded(by == "key" ? make_charged(key, machine) : member, flag(bound[0]), machine));
  }
  const Value pairs = items_of(*dict, machine);
  return make_list(sorted(as_list(pairs)->items, keys, flag(bound[2]), machine), machine);
}

Value filter_sort(const Value& value, CallArguments& arguments, Machine& machine) {
  const Bound bound = arguments.bind({"reverse", "case_sensitive", "attribute"});
  const auto list = elements(value, machine);
  std::vector<Value> keys;
  for (const Value& element : list->items) {
    keys.push_back(
        folded(bound[2] ? follow(element, *bound[2], machine) : element, flag(bound[1]), machine));
  }
  return make_list(sorted(list->items, keys, flag(bound[0]), machine), machine);
}

Value filter_unique(const Value& value, CallArguments& arguments, Machine& machine) {
  const Bound bound = arguments.bind({"case_sensitive", "attribute"});
  std::vector<Value> keys, result;
  const auto list = elements(value, machine);
  for (const Value& element : list->items) {
    Value key =
        folded(bound[1] ? follow(element, *bound[1], machine) : element, flag(bound[0]), machine);
    const bool seen = std::any_of(keys.begin(), keys.end(),
                                  [&](const Value& k) { return equal(k, key, machine); });
    if (seen) continue;
    keys.push_back(std::move(key));
    result.push_back(element);
  }
  return make_list(std::move(result), machine);
}

/// The arguments after the first `n` positional ones.
CallArguments rest_of(const CallArguments& arguments, size_t n, std::string_view callee,
                      Machine& machine) {
  const std::vector<Value>& all = arguments.positional();
  return CallArguments(
      callee,
      std::vector<Value>(all.begin() + static_cast<ptrdiff_t>(std::min(n, all.size())), all.end()),
      arguments.named(), machine);
}

Value filter_map(const Value& value, CallArguments& arguments, Machine& machine) {
  std::vector<Value> result;
  const auto list = elements(value, machine);
  if (arguments.positional().empty()) {
    const Bound bound = arguments.bind({"attribute", "default"});
    if (!bound[0]) machine.malformed("map: needs a filter or attribute=");
    for (const Value& element : list->items) {
      Value found = follow(element, *bound[0], machine);
      if (is_undefined(found) && bound[1]) found = *bound[1];
      result.push_back(std::move(found));
    }
    return make_list(std::move(result), machine);
  }
  const std::string name = text_of(arguments.positional()[0], "map", machine).bytes();
  for (const Value& element : list->items) {
    result.push_back(apply_filter(name, element, rest_of(arguments, 1, name, machine), machine));
  }
  return make_list(std::move(result), machine);
}

/// select, reject, selectattr, rejectattr: elements for which a test (default: truth) is `wanted`.
Value filter_select(const Value& value, CallArguments& arguments, bool by_attribute, bool wanted,
                    Machine& machine) {
  std::vector<Value> result;
  const std::vector<Value>& given = arguments.positional();
  const size_t n_own = by_attribute ? 1 : 0;
  if (given.size() < n_own) machine.malformed("selectattr: needs the name of an attribute");
  const auto list = elements(value, machine);
  for (const Value& element : list->items) {
    machine.step();
    const Value tested = by_attribute ? follow(element, given[0], machine) : element;
    bool passes = truth(tested);
    if (given.size() > n_own) {
      const std::string name = text_of(given[n_own], "the name of a test", machine).bytes();
      passes = apply_test(name, tested, rest_of(arguments, n_own + 1, name, machine), machine);
    }
    if (passes == wanted) result.push_back(element);
  }
  return make_list(std::move(result), machine);
}

Value filter_indent(const Value& value, CallArguments& arguments, Machine& machine) {
  const Bound bound = arguments.bind({"width", "first", "blank"});
  Text margin = Text::of_template("    ");
  if (bound[0] && as_text(*bound[0])) {
    margin = *as_text(*bound[0]);
  } else if (bound[0]) {
    const int64_t width = integer_of(*bound[0], "indent", machine);
    if (width < 0 || width > 256) machine.unsupported("indent: a width beyond 0 to 256");
    margin = Text::of_template(std::string(static_cast<size_t>(width), ' '));
  }
  Text text = to_text(value, machine);
  text.append_own("\n");
  Text out;
  bool first = true;
  for (const Text& line : split_lines(text, false, machine)) {
    if (!first) out.append_own("\n");
    if ((first && flag(bound[1])) || (!first && (flag(bound[2]) || !line.empty()))) {
      machine.make(margin.cost());
      out.append(margin);
    }
    out.append(line);
    first = false;
  }
  return make_charged(std::move(out), machine);
}

Value filter_end(const Value& value, CallArguments& arguments, bool first, Machine& machine) {
  arguments.bind({});
  if (as_text(value)) return item(value, int64_t{first ? 0 : -1}, machine);
  const auto list = elements(value, machine);
  if (list->items.empty()) return Undefined{};
  return first ? list->items.front() : list->items.back();
}

using Filter = Value (*)(const Value&, CallArguments&, Machine&);
struct FilterRow {
  std::string_view name;
  Filter apply;
};

template <Text (*kChange)(const Text&, Machine&)>
Value filter_text(const Value& value, CallArguments& arguments, Machine& machine) {
  arguments.bind({});
  return make_charged(kChange(to_text(value, machine), machine), machine);
}

Value filter_length(const Value& value, CallArguments& arguments, Machine& machine) {
  arguments.bind({});
  return length(value, machine);
}
Value filter_list(const Value& value, CallArguments& arguments, Machine& machine) {
  arguments.bind({});
  return make_list(elements(value, machine)->items, machine);
}
Value filter_string(const Value& value, CallArguments& arguments, Machine& machine) {
  arguments.bind({});
  return make_charged(to_text(value, machine), machine);
}
Value filter_abs(const Value& value, CallArguments& arguments, Machine& machine) {
  arguments.bind({});
  return less(value, int64_t{0}, machine) ? negative(value, machine) : value;
}

const std::array kFilters = std::to_array<FilterRow>({
    {"abs", filter_abs},
    {"capitalize", filter_text<capitalized_text>},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"first",
     [](const Value& v, CallArguments& a, Machine& m) { return filter_end(v, a, true, m); }},
    {"float", filter_float},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last",
     [](const Value& v, CallArguments& a, Machine& m) { return filter_end(v, a, false, m); }},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_text<lower_text>},
    {"map", filter_map},
    {"reject", [](const Value& v, CallArguments& a,
                  Machine& m) { return filter_select(v, a, false, false, m); }},
    {"rejectattr", [](const Value& v, CallArguments& a,
                      Machine& m) { return filter_select(v, a, true, false, m); }},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"safe", filter_string},
    {"select", [](const Value& v, CallArguments& a,
                  Machine& m) { return filter_select(v, a, false, true, m); }},
    {"selectattr", [](const Value& v, CallArguments& a,
                      Machine& m) { return filter_select(v, a, true, true, m); }},
    {"sort", filter_sort},
    {"string", filter_string},
    {"title", filter_text<title_text>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"unique", filter_unique},
    {"upper", filter_text<upper_text>},
});

bool is_number(const Value& value) {
  return std::holds_alternative<bool>(value) || std::holds_alternative<int64_t>(value) ||
         std::holds_alternative<double>(value);
}

bool remainder_is_zero(const Value& value, int64_t divisor, Machine& machine) {
  return equal(arithmetic("%", value, divisor, machine), int64_t{0}, machine);
}

}  // namespace

std::vector<std::optional<Value>> CallArguments::bind(
    std::initializer_list<std::string_view> parameters) {
  std::vector<std::optional<Value>> bound(parameters.size());
  if (positional_.size() > parameters.size()) {
    machine_.malformed(described(fmt::format("has {} arguments, expected at most {}",
                                             positional_.size(), parameters.size())));
  }
  for (size_t i = 0; i < positional_.size(); ++i) bound[i] = positional_[i];
  for (const auto& [name, value] : named_) {
    const auto* found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      machine_.unsupported(described(fmt::format("the argument {}= is not implemented", name)));
    }
    std::optional<Value>& slot = bound[static_cast<size_t>(found - parameters.begin())];
    if (slot) machine_.malformed(described(fmt::format("the argument {} is given twice", name)));
    slot = value;
  }
  return bound;
}

std::string CallArguments::described(std::string_view what) const {
  return fmt::format("{}: {}", callee_, what);
}

Value apply_filter(std::string_view name, const Value& value, CallArguments arguments,
                   Machine& machine) {
  const Machine::Level level(machine);
  machine.step();
  const auto found = std::find_if(kFilters.begin(), kFilters.end(),
                                  [&](const FilterRow& row) { return row.name == name; });
  if (found == kFilters.end()) {
    machine.unsupported(fmt::format("the filter \"{}\" is not implemented", name));
  }
  return found->apply(value, arguments, machine);
}

bool apply_test(std::string_view name, const Value& value, CallArguments arguments,
                Machine& machine) {
  machine.step();
  const auto other = [&] {
    const std::vector<std::optional<Value>> bound = arguments.bind({"other"});
    if (!bound[0]) machine.malformed(fmt::format("is {}: needs an argument", name));
    return *bound[0];
  };
  if (name == "in") return contains(other(), value, machine);
  if (name == "eq" || name == "equalto" || name == "==") return equal(value, other(), machine);
  if (name == "ne" || name == "!=") return !equal(value, other(), machine);
  if (name == "lt" || name == "lessthan" || name == "<") return less(value, other(), machine);
  if (name == "gt" || name == "greaterthan" || name == ">") return less(other(), value, machine);
  if (name == "le" || name == "<=") return !less(other(), value, machine);
  if (name == "ge" || name == ">=") return !less(value, other(), machine);
  if (name == "divisibleby") {
    return remainder_is_zero(value, integer_of(other(), "divisibleby", machine), machine);
  }
  if (name == "sameas") {
    const Value wanted = other();
    if (value.index() != wanted.index() || value.index() > 2) {
      if (value.index() <= 2 || wanted.index() <= 2) return false;
      machine.unsupported("is sameas is implemented for true, false and none alone");
    }
    return equal(value, wanted, machine);
  }
  arguments.bind({});
  if (name == "defined") return !is_undefined(value);
  if (name == "undefined") return is_undefined(value);
  if (name == "none") return std::holds_alternative<None>(value);
  if (name == "string") return as_text(value) != nullptr;
  if (name == "mapping") return as_dict(value) != nullptr;
  if (name == "number") return is_number(value);
  if (name == "integer") return std::holds_alternative<int64_t>(value);
  if (name == "float") return std::holds_alternative<double>(value);
  if (name == "boolean") return std::holds_alternative<bool>(value);
  if (name == "true") return std::holds_alternative<bool>(value) && truth(value);
  if (name == "false") return std::holds_alternative<bool>(value) && !truth(value);
  if (name == "iterable" || name == "sequence") {
    return as_text(value) || as_list(value) || as_dict(value) || is_undefined(value);
  }
  if (name == "callable") {
    return std::holds_alternative<const Statement*>(value) ||
           std::holds_alternative<Function>(value);
  }
  if (name == "even") return remainder_is_zero(value, 2, machine);
  if (name == "odd") return !remainder_is_zero(value, 2, machine);
  machine.unsupported(fmt::format("the test \"{}\" is not implemented", name));
}

}  // namespace assay::chat
