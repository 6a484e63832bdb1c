#include "convert/chat/strings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "convert/chat/builtins.h"
#include "convert/chat/operations.h"
#include "convert/chat/white_space.h"
#include "convert/tokenizer/unicode.h"

namespace assay::chat {
namespace {

using tokenization::decode_character;
using tokenization::DecodedCharacter;
using Bound = std::vector<std::optional<Value>>;

bool is_given(const std::optional<Value>& argument) {
  return argument && !std::holds_alternative<None>(*argument);
}

/// Where a text ends when the character before `end` is taken off.
size_t before(const std::string& bytes, size_t end) {
  return static_cast<size_t>(tokenization::previous_character(bytes.data() + end) - bytes.data());
}

/// Changes every character by change(code, is_first_of_word, out), where a word begins at the
/// begin of the text and, if `words`, after a separator of the filter title.
template <class Change>
Text changed(const Text& text, bool words, Machine& machine, const Change& change) {
  machine.make(text.cost());
  Text out;
  bool first = true;
  text.for_each_stretch([&](std::string_view bytes, bool is_outside) {
    std::string result;
    for (size_t at = 0; at < bytes.size();) {
      const DecodedCharacter c = decode_character(bytes.data() + at);
      change(c.code, first, result);
      first =
          words && (is_python_space(c.code) ||
                    (c.code < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.code)) !=
                                          std::string_view::npos));
      at += c.length;
    }
    out.append(result, is_outside);
  });
  return out;
}

void append_upper(std::string& out, uint32_t code, Machine& machine) {
  if (code >= 'a' && code <= 'z') {
    out += static_cast<char>(code - 32);
  } else if (code >= 0x80 && (tokenization::character_classes()[code] & tokenization::kLetter)) {
    machine.unsupported("upper case of letters beyond ASCII is not implemented");
  } else {
    tokenization::append_utf8(out, code);
  }
}

Value list_of(const std::vector<Text>& parts, Machine& machine) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const Text& part : parts) items.push_back(make_charged(part, machine));
  return make_list(std::move(items), machine);
}

bool has_affix(const Text& text, const Value& affix, bool at_start, Machine& machine) {
  if (const List* any = as_list(affix)) {
    return std::any_of(any->items.begin(), any->items.end(),
                       [&](const Value& one) { return has_affix(text, one, at_start, machine); });
  }
  const std::string& wanted = text_of(affix, at_start ? "startswith" : "endswith", machine).bytes();
  machine.scan(wanted.size());
  return at_start ? text.bytes().starts_with(wanted) : text.bytes().ends_with(wanted);
}

int64_t count_of(const Text& text, const Text& part, Machine& machine) {
  machine.scan(text.size());
  if (part.empty()) machine.unsupported("count of an empty string is not implemented");
  int64_t count = 0;
  for (size_t at = find_text(text.bytes(), part.bytes(), 0); at != std::string_view::npos;
       at = find_text(text.bytes(), part.bytes(), at + part.size())) {
    ++count;
  }
  return count;
}

Value position_of(const Text& text, const Text& part, Machine& machine) {
  machine.scan(text.size() + part.size());
  const size_t at = find_text(text.bytes(), part.bytes(), 0);
  if (at == std::string_view::npos) return int64_t{-1};
  return length(make_charged(text.part(0, at), machine), machine);
}

Text without_affix(const Text& text, const Text& affix, bool at_start) {
  if (at_start && text.bytes().starts_with(affix.bytes())) {
    return text.part(affix.size(), text.size());
  }
  if (!at_start && text.bytes().ends_with(affix.bytes())) {
    return text.part(0, text.size() - affix.size());
  }
  return text;
}

constexpr std::array<std::string_view, 17> kTextMethods = {
    "strip",      "lstrip",       "rstrip",       "split", "rsplit",    "splitlines",
    "startswith", "endswith",     "replace",      "upper", "lower",     "find",
    "count",      "removeprefix", "removesuffix", "join",  "capitalize"};
constexpr std::array<std::string_view, 4> kDictMethods = {"items", "keys", "values", "get"};

/// A method that must have its first argument.
const Value& needed(const Bound& bound, std::string_view name, Machine& machine) {
  if (!bound[0]) machine.malformed(fmt::format("{}: needs an argument", name));
  return *bound[0];
}

Value split_method(const Text& text, std::string_view name, CallArguments& arguments,
                   Machine& machine) {
  const Bound bound = arguments.bind({"sep", "maxsplit"});
  const int64_t most = bound[1] ? integer_of(*bound[1], name, machine) : -1;
  return list_of(split_text(text, bound[0], most, name == "rsplit", machine), machine);
}

Value replace_method(const Text& text, CallArguments& arguments, Machine& machine) {
  const Bound bound = arguments.bind({"old", "new", "count"});
  if (!bound[0] || !bound[1]) machine.malformed("replace: needs two strings");
  const int64_t count = bound[2] ? integer_of(*bound[2], "replace", machine) : -1;
  return make_charged(replace_text(text, text_of(*bound[0], "replace", machine),
                                   text_of(*bound[1], "replace", machine), count, machine),
                      machine);
}

Value join_method(const Text& between, CallArguments& arguments, Machine& machine) {
  Text out;
  bool first = true;
  for (const Value& part :
       elements(needed(arguments.bind({"iterable"}), "join", machine), machine)->items) {
    if (!first) {
      machine.make(between.cost());
      out.append(between);
    }
    first = false;
    const Text& text = text_of(part, "join", machine);
    machine.make(text.cost());
    out.append(text);
  }
  return make_charged(std::move(out), machine);
}

Value text_method(const Text& text, std::string_view name, CallArguments& arguments,
                  Machine& machine) {
  if (name == "split" || name == "rsplit") return split_method(text, name, arguments, machine);
  if (name == "replace") return replace_method(text, arguments, machine);
  if (name == "join") return join_method(text, arguments, machine);
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound bound = arguments.bind({"chars"});
    return make_charged(strip_text(text, bound[0], name != "rstrip", name != "lstrip", machine),
                        machine);
  }
  if (name == "splitlines") {
    const Bound bound = arguments.bind({"keepends"});
    return list_of(split_lines(text, bound[0] && truth(*bound[0]), machine), machine);
  }
  if (name == "startswith" || name == "endswith") {
    const Bound bound = arguments.bind({"prefix"});
    return has_affix(text, needed(bound, name, machine), name == "startswith", machine);
  }
  if (name == "find" || name == "count" || name == "removeprefix" || name == "removesuffix") {
    const Bound bound = arguments.bind({"text"});
    const Text& part = text_of(needed(bound, name, machine), name, machine);
    if (name == "find") return position_of(text, part, machine);
    if (name == "count") return count_of(text, part, machine);
    return make_charged(without_affix(text, part, name == "removeprefix"), machine);
  }
  arguments.bind({});
  if (name == "upper") return make_charged(upper_text(text, machine), machine);
  if (name == "lower") return make_charged(lower_text(text, machine), machine);
  return make_charged(capitalized_text(text, machine), machine);
}

Value dict_method(const Dict& dict, std::string_view name, CallArguments& arguments,
                  Machine& machine) {
  if (name == "get") {
    const Bound bound = arguments.bind({"key", "default"});
    machine.step(1 + dict.members.size() / 8);
    const Text* key = as_text(needed(bound, name, machine));
    const Value* found = key ? dict.find(key->bytes()) : nullptr;
    return found ? *found : bound[1].value_or(None{});
  }
  arguments.bind({});
  if (name == "items") return items_of(dict, machine);
  std::vector<Value> items;
  for (const auto& [key, value] : dict.members) {
    items.push_back(name == "keys" ? make_charged(key, machine) : value);
  }
  return make_list(std::move(items), machine);
}

bool is_line_end(uint32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

std::vector<Text> split_at_space(const Text& text, int64_t max_splits, bool from_right,
                                 Machine& machine) {
  if (from_right && max_splits >= 0) {
    machine.unsupported("rsplit at white space with a limit is not implemented");
  }
  std::vector<Text> parts;
  const std::string& bytes = text.bytes();
  size_t at = bytes.size() - without_space_at_begin(bytes).size();
  while (at < bytes.size()) {
    machine.make(sizeof(Text));
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(text.part(at, without_space_at_end(bytes).size()));
      break;
    }
    size_t end = at;
    while (end < bytes.size()) {
      const DecodedCharacter c = decode_character(bytes.data() + end);
      if (is_python_space(c.code)) break;
      end += c.length;
    }
    parts.push_back(text.part(at, end));
    const std::string_view rest = std::string_view(bytes).substr(end);
    at = bytes.size() - without_space_at_begin(rest).size();
  }
  return parts;
}

}  // namespace

Text strip_text(const Text& text, const std::optional<Value>& characters, bool left, bool right,
                Machine& machine) {
  machine.scan(text.size());
  const std::string& bytes = text.bytes();
  std::vector<uint32_t> taken;
  if (is_given(characters)) {
    const std::string& set = text_of(*characters, "strip", machine).bytes();
    machine.scan(set.size());
    for (size_t at = 0; at < set.size();) {
      const DecodedCharacter c = decode_character(set.data() + at);
      taken.push_back(c.code);
      at += c.length;
    }
    std::sort(taken.begin(), taken.end());
  }
  const auto is_taken = [&](uint32_t code) {
    return is_given(characters) ? std::binary_search(taken.begin(), taken.end(), code)
                                : is_python_space(code);
  };
  size_t begin = 0, end = bytes.size();
  while (left && begin < end) {
    const DecodedCharacter c = decode_character(bytes.data() + begin);
    if (!is_taken(c.code)) break;
    begin += c.length;
  }
  while (right && begin < end) {
    const size_t last = before(bytes, end);
    if (!is_taken(decode_character(bytes.data() + last).code)) break;
    end = last;
  }
  return text.part(begin, end);
}

Text replace_text(const Text& text, const Text& from, const Text& to, int64_t count,
                  Machine& machine) {
  machine.scan(text.size());
  if (from.empty()) machine.unsupported("replacing an empty string is not implemented");
  Text out;
  size_t done = 0;
  for (size_t at = find_text(text.bytes(), from.bytes(), 0);
       at != std::string_view::npos && count != 0;
       at = find_text(text.bytes(), from.bytes(), done), --count) {
    machine.make(to.cost());
    out.append(text.part(done, at));
    out.append(to);
    done = at + from.size();
  }
  out.append(text.part(done, text.size()));
  return out;
}

std::vector<Text> split_text(const Text& text, const std::optional<Value>& separator,
                             int64_t max_splits, bool from_right, Machine& machine) {
  machine.scan(text.size());
  if (!is_given(separator)) return split_at_space(text, max_splits, from_right, machine);
  const std::string& mark = text_of(*separator, "split", machine).bytes();
  if (mark.empty()) machine.malformed("split: an empty separator");
  std::vector<Text> parts;
  if (from_right && max_splits >= 0) {
    size_t end = text.size();
    while (static_cast<int64_t>(parts.size()) < max_splits && end >= mark.size()) {
      machine.make(sizeof(Text) + end / 256);
      const size_t at = text.bytes().rfind(mark, end - mark.size());
      if (at == std::string::npos) break;
      parts.push_back(text.part(at + mark.size(), end));
      end = at;
    }
    parts.push_back(text.part(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t done = 0;
  for (size_t at = find_text(text.bytes(), mark, 0);
       at != std::string_view::npos &&
       (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits);
       at = find_text(text.bytes(), mark, done)) {
    machine.make(sizeof(Text));
    parts.push_back(text.part(done, at));
    done = at + mark.size();
  }
  parts.push_back(text.part(done, text.size()));
  return parts;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends, Machine& machine) {
  machine.scan(text.size());
  std::vector<Text> lines;
  const std::string& bytes = text.bytes();
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const DecodedCharacter c = decode_character(bytes.data() + at);
    size_t next = at + c.length;
    if (is_line_end(c.code)) {
      machine.make(sizeof(Text));
      if (c.code == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      lines.push_back(text.part(begin, keep_ends ? next : at));
      begin = next;
    }
    at = next;
  }
  if (begin < bytes.size()) lines.push_back(text.part(begin, bytes.size()));
  return lines;
}

Text lower_text(const Text& text, Machine& machine) {
  return changed(text, false, machine, [](uint32_t code, bool, std::string& out) {
    tokenization::append_lower_case(out, code);
  });
}

Text upper_text(const Text& text, Machine& machine) {
  return changed(text, false, machine,
                 [&](uint32_t code, bool, std::string& out) { append_upper(out, code, machine); });
}

Text capitalized_text(const Text& text, Machine& machine) {
  return changed(text, false, machine, [&](uint32_t code, bool first, std::string& out) {
    if (first) {
      append_upper(out, code, machine);
    } else {
      tokenization::append_lower_case(out, code);
    }
  });
}

Text title_text(const Text& text, Machine& machine) {
  return changed(text, true, machine, [&](uint32_t code, bool first, std::string& out) {
    if (first) {
      append_upper(out, code, machine);
    } else {
      tokenization::append_lower_case(out, code);
    }
  });
}

Value items_of(const Dict& dict, Machine& machine) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.members) {
    items.push_back(make_list({make_charged(key, machine), value}, machine, true));
  }
  return make_list(std::move(items), machine);
}

bool is_method(const Value& value, std::string_view name) {
  const auto is_in = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return (as_text(value) && is_in(kTextMethods)) || (as_dict(value) && is_in(kDictMethods));
}

std::optional<Value> call_method(const Value& value, std::string_view name, CallArguments arguments,
                                 Machine& machine) {
  machine.step();
  if (!is_method(value, name)) return std::nullopt;
  if (const Text* text = as_text(value)) return text_method(*text, name, arguments, machine);
  return dict_method(*as_dict(value), name, arguments, machine);
}

}  // namespace assay::chat
