#include "convert/chat/operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "convert/core/json.h"
#include "convert/tokenizer/unicode.h"

namespace assay::chat {
namespace {

using tokenization::decode_character;

constexpr uint64_t kValueBytes = 64;  // of an element of a list, about

int nesting_of(const Value& value) {
  if (const List* list = as_list(value)) return list->depth;
  if (const Dict* dict = as_dict(value)) return dict->depth;
  return 0;
}

/// Refuses what a list cannot hold: namespaces could make rings.
int depth_around(const Value& value, Machine& machine) {
  if (std::holds_alternative<std::shared_ptr<Namespace>>(value) ||
      std::holds_alternative<std::shared_ptr<const Loop>>(value)) {
    machine.unsupported(fmt::format(
        "{} inside of a list, a mapping or a namespace is not implemented", kind_name(value)));
  }
  const int depth = nesting_of(value) + 1;
  if (depth > kMaxNesting) machine.unsupported("lists and mappings are nested too deep");
  return depth;
}

std::optional<double> number_of(const Value& value) {
  if (const bool* b = std::get_if<bool>(&value)) return *b ? 1.0 : 0.0;
  if (const int64_t* i = std::get_if<int64_t>(&value)) return static_cast<double>(*i);
  if (const double* d = std::get_if<double>(&value)) return *d;
  return std::nullopt;
}

std::optional<int64_t> integer_or_bool(const Value& value) {
  if (const bool* b = std::get_if<bool>(&value)) return *b ? 1 : 0;
  if (const int64_t* i = std::get_if<int64_t>(&value)) return *i;
  return std::nullopt;
}

/// repr() of a string. What Python escapes beyond ASCII depends on its Unicode tables.
Text quoted(const Text& text, Machine& machine) {
  const bool has_single = text.bytes().find('\'') != std::string::npos;
  const char quote = has_single && text.bytes().find('"') == std::string::npos ? '"' : '\'';
  Text out;
  out.append_own(std::string_view(&quote, 1));
  text.for_each_stretch([&](std::string_view bytes, bool is_outside) {
    std::string escaped;
    for (const char c : bytes) {
      if (static_cast<uint8_t>(c) >= 0x80) {
        machine.unsupported(
            "printing a list or mapping whose text is not all ASCII is not implemented; use "
            "tojson");
      }
      if (c == quote || c == '\\') {
        escaped += '\\';
        escaped += c;
      } else if (c == '\n') {
        escaped += "\\n";
      } else if (c == '\r') {
        escaped += "\\r";
      } else if (c == '\t') {
        escaped += "\\t";
      } else if (c < ' ' || c == 127) {
        escaped += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
      } else {
        escaped += c;
      }
    }
    out.append(escaped, is_outside);
  });
  out.append_own(std::string_view(&quote, 1));
  return out;
}

std::string float_text(double value, Machine& machine) {
  if (!std::isfinite(value)) machine.unsupported("infinity and NaN are not implemented");
  return Json(value).dump(0);
}

Text printed(const Value& value, bool is_inside, Machine& machine);

Text printed_list(const List& list, Machine& machine) {
  Text out;
  out.append_own(list.is_tuple ? "(" : "[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append_own(", ");
    out.append(printed(list.items[i], true, machine));
  }
  if (list.is_tuple && list.items.size() == 1) out.append_own(",");
  out.append_own(list.is_tuple ? ")" : "]");
  return out;
}

Text printed(const Value& value, bool is_inside, Machine& machine) {
  const Machine::Level level(machine);
  machine.step();
  if (is_undefined(value)) return Text::of_template(is_inside ? "Undefined" : "");
  if (std::holds_alternative<None>(value)) return Text::of_template("None");
  if (const bool* b = std::get_if<bool>(&value)) return Text::of_template(*b ? "True" : "False");
  if (const int64_t* i = std::get_if<int64_t>(&value)) return Text::of_template(std::to_string(*i));
  if (const double* d = std::get_if<double>(&value)) {
    return Text::of_template(float_text(*d, machine));
  }
  if (const Text* text = as_text(value)) {
    machine.make(text->cost());
    return is_inside ? quoted(*text, machine) : *text;
  }
  if (const List* list = as_list(value)) return printed_list(*list, machine);
  if (const Dict* dict = as_dict(value)) {
    Text out = Text::of_template("{");
    for (size_t i = 0; i < dict->members.size(); ++i) {
      if (i > 0) out.append_own(", ");
      machine.make(dict->members[i].first.size());
      out.append(quoted(dict->members[i].first, machine));
      out.append_own(": ");
      out.append(printed(dict->members[i].second, true, machine));
    }
    out.append_own("}");
    return out;
  }
  machine.unsupported(fmt::format("printing {} is not implemented", kind_name(value)));
}

bool equal_lists(const List& a, const List& b, Machine& machine) {
  return a.is_tuple == b.is_tuple && a.items.size() == b.items.size() &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(),
                    [&](const Value& x, const Value& y) { return equal(x, y, machine); });
}

bool equal_dicts(const Dict& a, const Dict& b, Machine& machine) {
  if (a.members.size() != b.members.size()) return false;
  for (const auto& [key, value] : a.members) {
    machine.step(1 + b.members.size() / 8);
    const Value* other = b.find(key.bytes());
    if (!other || !equal(value, *other, machine)) return false;
  }
  return true;
}

/// Floor division and its remainder, as in Python.
int64_t floor_quotient(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && ((a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

Value integer_arithmetic(std::string_view op, int64_t a, int64_t b, Machine& machine) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else {
    if (b == 0) machine.malformed("division by zero");
    if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
    overflow = a == INT64_MIN && b == -1;
    if (!overflow) result = op == "//" ? floor_quotient(a, b) : a - floor_quotient(a, b) * b;
  }
  if (overflow) machine.unsupported("integers beyond 64 bits are not implemented");
  return result;
}

Value float_arithmetic(std::string_view op, double a, double b, Machine& machine) {
  if (op == "//" || op == "%") {
    machine.unsupported(fmt::format("{} of floats is not implemented", op));
  }
  if (op == "/" && b == 0) machine.malformed("division by zero");
  const double result = op == "+" ? a + b : op == "-" ? a - b : op == "*" ? a * b : a / b;
  if (!std::isfinite(result)) machine.unsupported("infinity and NaN are not implemented");
  return result;
}

Value repeated(const Value& value, int64_t times, Machine& machine) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  const Text* text = as_text(value);
  const List* list = as_list(value);
  const uint64_t size = text ? text->cost() : list->items.size() * kValueBytes;
  if (size > 0 && n > (uint64_t{1} << 40) / size) machine.unsupported("a repetition is too long");
  machine.step(n);
  machine.make(size * n);
  if (text) {
    Text result;
    for (uint64_t i = 0; i < n; ++i) result.append(*text);
    return make_text(std::move(result));
  }
  std::vector<Value> items;
  for (uint64_t i = 0; i < n; ++i)
    items.insert(items.end(), list->items.begin(), list->items.end());
  return make_list(std::move(items), machine, list->is_tuple);
}

void append_json_text(Text& out, const Text& text, Machine& machine) {
  machine.make(text.cost());
  out.append_own("\"");
  text.for_each_stretch([&](std::string_view bytes, bool is_outside) {
    std::string escaped;
    for (const char c : bytes) {
      static constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
      if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
        escaped += '\\';
        escaped += kTo[i];
      } else if (static_cast<uint8_t>(c) < 0x20) {
        escaped += fmt::format("\\u{:04x}", static_cast<uint8_t>(c));
      } else {
        escaped += c;
      }
    }
    out.append(escaped, is_outside);
  });
  out.append_own("\"");
}

class JsonWriter {
 public:
  JsonWriter(std::optional<int64_t> indent, bool sort_keys, Machine& machine)
      : indent_(indent), sort_keys_(sort_keys), machine_(machine) {}

  void write(const Value& value, int depth) {
    const Machine::Level level(machine_);
    machine_.step();
    if (const Text* text = as_text(value)) {
      append_json_text(out, *text, machine_);
    } else if (const List* list = as_list(value)) {
      write_parts('[', ']', list->items.size(), depth,
                  [&](size_t i) { write(list->items[i], depth + 1); });
    } else if (const Dict* dict = as_dict(value)) {
      std::vector<size_t> order(dict->members.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      if (sort_keys_) {
        machine_.step(order.size() * 32);
        std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
          return dict->members[a].first.bytes() < dict->members[b].first.bytes();
        });
      }
      write_parts('{', '}', order.size(), depth, [&](size_t i) {
        const auto& [key, member] = dict->members[order[i]];
        append_json_text(out, key, machine_);
        out.append_own(": ");
        write(member, depth + 1);
      });
    } else if (std::holds_alternative<None>(value)) {
      out.append_own("null");
    } else if (const bool* b = std::get_if<bool>(&value)) {
      out.append_own(*b ? "true" : "false");
    } else if (std::holds_alternative<int64_t>(value) || std::holds_alternative<double>(value)) {
      out.append(to_text(value, machine_));
    } else {
      machine_.malformed(fmt::format("tojson: JSON has no form for {}", kind_name(value)));
    }
  }

  Text out;

 private:
  void new_line(int depth) {
    if (!indent_) return;
    const uint64_t n = static_cast<uint64_t>(*indent_) * static_cast<uint64_t>(depth);
    machine_.make(n + 1);
    out.append_own("\n" + std::string(n, ' '));
  }
  template <class Write>
  void write_parts(char open, char close, size_t n, int depth, const Write& write_part) {
    out.append_own(std::string_view(&open, 1));
    for (size_t i = 0; i < n; ++i) {
      if (i > 0) out.append_own(indent_ ? "," : ", ");
      new_line(depth + 1);
      write_part(i);
    }
    if (n > 0) new_line(depth);
    out.append_own(std::string_view(&close, 1));
  }

  std::optional<int64_t> indent_;
  bool sort_keys_;
  Machine& machine_;
};

/// Bounds of a slice of `n` elements, as Python's slice.indices() gives them.
struct SliceBounds {
  int64_t begin, end, step;
};
SliceBounds slice_bounds(int64_t n, const Value& begin, const Value& end, const Value& step,
                         Machine& machine) {
  const auto given = [&](const Value& value) { return !std::holds_alternative<None>(value); };
  SliceBounds bounds{0, 0, given(step) ? integer_of(step, "a slice", machine) : 1};
  if (bounds.step == 0) machine.malformed("a slice with step 0");
  const int64_t low = bounds.step > 0 ? 0 : -1, high = bounds.step > 0 ? n : n - 1;
  const auto clipped = [&](const Value& value, int64_t fallback) {
    if (!given(value)) return fallback;
    int64_t i = integer_of(value, "a slice", machine);
    if (i < 0) i = i < -n ? -n - 1 + n : i + n;
    return std::clamp(i, low, high);
  };
  bounds.begin = clipped(begin, bounds.step > 0 ? low : high);
  bounds.end = clipped(end, bounds.step > 0 ? high : low);
  return bounds;
}

/// Where each character of `text` begins, and its end.
std::vector<size_t> character_offsets(const Text& text, Machine& machine) {
  machine.make(text.size() * sizeof(size_t));
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size(); at += decode_character(text.bytes().data() + at).length) {
    offsets.push_back(at);
  }
  offsets.push_back(text.size());
  return offsets;
}

}  // namespace

size_t find_text(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* found =
      ::memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (!found) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

Text to_text(const Value& value, Machine& machine) { return printed(value, false, machine); }

bool equal(const Value& a, const Value& b, Machine& machine) {
  const Machine::Level level(machine);
  machine.step();
  const auto x = integer_or_bool(a), y = integer_or_bool(b);
  if (x && y) return *x == *y;
  const auto u = number_of(a), v = number_of(b);
  if (u && v) return *u == *v;
  if (a.index() != b.index()) return false;
  if (const Text* text = as_text(a)) {
    machine.scan(text->size());
    return text->bytes() == as_text(b)->bytes();
  }
  if (const List* list = as_list(a)) return equal_lists(*list, *as_list(b), machine);
  if (const Dict* dict = as_dict(a)) return equal_dicts(*dict, *as_dict(b), machine);
  if (is_undefined(a) || std::holds_alternative<None>(a)) return true;
  machine.unsupported(fmt::format("comparing {} is not implemented", kind_name(a)));
}

bool less(const Value& a, const Value& b, Machine& machine) {
  machine.step();
  const auto x = integer_or_bool(a), y = integer_or_bool(b);
  if (x && y) return *x < *y;
  const auto u = number_of(a), v = number_of(b);
  if (u && v) return *u < *v;
  const Text *s = as_text(a), *t = as_text(b);
  if (s && t) {
    machine.scan(std::min(s->size(), t->size()));
    return s->bytes() < t->bytes();  // UTF-8 has the order of its characters
  }
  machine.malformed(fmt::format("{} and {} have no order", kind_name(a), kind_name(b)));
}

bool contains(const Value& container, const Value& element, Machine& machine) {
  if (const Text* text = as_text(container)) {
    const Text& needle = text_of(element, "in a string", machine);
    machine.scan(text->size() + needle.size());
    return find_text(text->bytes(), needle.bytes(), 0) != std::string_view::npos;
  }
  if (const Dict* dict = as_dict(container)) {
    machine.step(1 + dict->members.size() / 8);
    const Text* key = as_text(element);
    return key && dict->find(key->bytes());
  }
  if (const List* list = as_list(container)) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& value) { return equal(value, element, machine); });
  }
  if (is_undefined(container)) return false;
  machine.malformed(fmt::format("in: {} has no elements", kind_name(container)));
}

Value arithmetic(std::string_view op, const Value& a, const Value& b, Machine& machine) {
  const auto x = integer_or_bool(a), y = integer_or_bool(b);
  if (x && y) return integer_arithmetic(op, *x, *y, machine);
  const auto u = number_of(a), v = number_of(b);
  if (u && v) return float_arithmetic(op, *u, *v, machine);
  const Text *s = as_text(a), *t = as_text(b);
  if (op == "+" && s && t) {
    machine.make(s->cost() + t->cost());
    Text sum = *s;
    sum.append(*t);
    return make_text(std::move(sum));
  }
  const List *p = as_list(a), *q = as_list(b);
  if (op == "+" && p && q && p->is_tuple == q->is_tuple) {
    std::vector<Value> items = p->items;
    items.insert(items.end(), q->items.begin(), q->items.end());
    return make_list(std::move(items), machine, p->is_tuple);
  }
  if (op == "*" && (s || p) && y) return repeated(a, *y, machine);
  if (op == "*" && (t || q) && x) return repeated(b, *x, machine);
  if (op == "%" && s) machine.unsupported("formatting by % is not implemented");
  machine.malformed(fmt::format("{} {} {} is not defined", kind_name(a), op, kind_name(b)));
}

Value negative(const Value& value, Machine& machine) {
  if (const double* number = std::get_if<double>(&value)) return -*number;
  const auto integer = integer_or_bool(value);
  if (!integer) machine.malformed(fmt::format("- of {} is not defined", kind_name(value)));
  return integer_arithmetic("-", 0, *integer, machine);
}

Value make_list(std::vector<Value> items, Machine& machine, bool is_tuple) {
  machine.make((items.size() + 1) * kValueBytes);
  machine.step(items.size());
  List list;
  for (const Value& value : items) list.depth = std::max(list.depth, depth_around(value, machine));
  list.items = std::move(items);
  list.is_tuple = is_tuple;
  return std::make_shared<const List>(std::move(list));
}

Value make_dict(std::vector<std::pair<Text, Value>> members, Machine& machine) {
  machine.make((members.size() + 1) * 2 * kValueBytes);
  Dict dict;
  for (std::pair<Text, Value>& member : members) {
    machine.make(member.first.size());
    machine.step(1 + dict.members.size() / 8);
    dict.depth = std::max(dict.depth, depth_around(member.second, machine));
    const auto same = std::find_if(
        dict.members.begin(), dict.members.end(),
        [&](const auto& other) { return other.first.bytes() == member.first.bytes(); });
    if (same != dict.members.end()) {
      same->second = std::move(member.second);
    } else {
      dict.members.push_back(std::move(member));
    }
  }
  return std::make_shared<const Dict>(std::move(dict));
}

Value make_charged(Text text, Machine& machine) {
  machine.make(text.cost() + kValueBytes);
  return make_text(std::move(text));
}

Value item(const Value& container, const Value& index, Machine& machine) {
  machine.step();
  if (const Dict* dict = as_dict(container)) {
    machine.step(dict->members.size() / 8);
    const Text* key = as_text(index);
    const Value* found = key ? dict->find(key->bytes()) : nullptr;
    return found ? *found : Undefined{};
  }
  if (is_undefined(container)) machine.malformed("a member of something that is undefined");
  const auto i = integer_or_bool(index);
  if (!i) return Undefined{};
  if (const List* list = as_list(container)) {
    const auto n = static_cast<int64_t>(list->items.size());
    const int64_t at = *i < 0 ? *i + n : *i;
    return at < 0 || at >= n ? Value(Undefined{}) : list->items[static_cast<size_t>(at)];
  }
  if (const Text* text = as_text(container)) {
    const std::vector<size_t> offsets = character_offsets(*text, machine);
    const auto n = static_cast<int64_t>(offsets.size()) - 1;
    const int64_t at = *i < 0 ? *i + n : *i;
    if (at < 0 || at >= n) return Undefined{};
    return make_text(
        text->part(offsets[static_cast<size_t>(at)], offsets[static_cast<size_t>(at) + 1]));
  }
  return Undefined{};
}

Value slice(const Value& container, const Value& begin, const Value& end, const Value& step,
            Machine& machine) {
  const Text* text = as_text(container);
  const List* list = as_list(container);
  if (!text && !list) {
    if (is_undefined(container)) machine.malformed("a slice of something that is undefined");
    machine.malformed(fmt::format("a slice of {} is not defined", kind_name(container)));
  }
  std::vector<size_t> offsets;
  if (text) offsets = character_offsets(*text, machine);
  const auto n = static_cast<int64_t>(text ? offsets.size() - 1 : list->items.size());
  const SliceBounds bounds = slice_bounds(n, begin, end, step, machine);
  if (text && bounds.step == 1) {
    if (bounds.begin >= bounds.end) return make_own_text("");
    return make_charged(text->part(offsets[static_cast<size_t>(bounds.begin)],
                                   offsets[static_cast<size_t>(bounds.end)]),
                        machine);
  }
  Text out;
  std::vector<Value> items;
  for (int64_t i = bounds.begin; bounds.step > 0 ? i < bounds.end : i > bounds.end;) {
    machine.step();
    const auto at = static_cast<size_t>(i);
    if (text) {
      out.append(text->part(offsets[at], offsets[at + 1]));
    } else {
      items.push_back(list->items[at]);
    }
    if (__builtin_add_overflow(i, bounds.step, &i)) break;
  }
  if (text) return make_charged(std::move(out), machine);
  return make_list(std::move(items), machine, list->is_tuple);
}

std::shared_ptr<const List> elements(const Value& value, Machine& machine) {
  if (const auto* list = std::get_if<std::shared_ptr<const List>>(&value)) return *list;
  std::vector<Value> items;
  if (const Dict* dict = as_dict(value)) {
    for (const auto& [key, member] : dict->members) items.push_back(make_charged(key, machine));
  } else if (const Text* text = as_text(value)) {
    const std::vector<size_t> offsets = character_offsets(*text, machine);
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      items.push_back(make_charged(text->part(offsets[i], offsets[i + 1]), machine));
    }
  } else if (!is_undefined(value)) {
    machine.malformed(fmt::format("{} has no elements", kind_name(value)));
  }
  return std::get<std::shared_ptr<const List>>(make_list(std::move(items), machine));
}

int64_t length(const Value& value, Machine& machine) {
  if (const List* list = as_list(value)) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = as_dict(value)) return static_cast<int64_t>(dict->members.size());
  if (is_undefined(value)) return 0;
  const Text* text = as_text(value);
  if (!text) machine.malformed(fmt::format("{} has no length", kind_name(value)));
  machine.scan(text->size());
  return std::count_if(text->bytes().begin(), text->bytes().end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0u) != 0x80u; });
}

const Text& text_of(const Value& value, std::string_view what, Machine& machine) {
  const Text* text = as_text(value);
  if (!text)
    machine.malformed(fmt::format("{}: expected a string, found {}", what, kind_name(value)));
  return *text;
}

int64_t integer_of(const Value& value, std::string_view what, Machine& machine) {
  const auto integer = integer_or_bool(value);
  if (!integer) {
    machine.malformed(fmt::format("{}: expected an integer, found {}", what, kind_name(value)));
  }
  return *integer;
}

Text to_json(const Value& value, std::optional<int64_t> indent, bool sort_keys, Machine& machine) {
  JsonWriter writer(indent, sort_keys, machine);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace assay::chat
