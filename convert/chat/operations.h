#pragma once

#include <optional>
#include <string_view>

#include "convert/chat/machine.h"
#include "convert/chat/value.h"

namespace assay::chat {

// What Python's operators and conversions do, on the values of templates. All charge the machine,
// and throw through it what Python or Jinja2 would not accept.

/// Where `needle` begins in `text`, at or after `from`, or npos. Linear in their sizes.
size_t find_text(std::string_view text, std::string_view needle, size_t from);

/// str(value); of undefined, nothing.
Text to_text(const Value& value, Machine& machine);
bool equal(const Value& a, const Value& b, Machine& machine);
/// a < b
bool less(const Value& a, const Value& b, Machine& machine);
bool contains(const Value& container, const Value& element, Machine& machine);
/// + - * / // %
Value arithmetic(std::string_view op, const Value& a, const Value& b, Machine& machine);
Value negative(const Value& value, Machine& machine);

Value make_list(std::vector<Value> items, Machine& machine, bool is_tuple = false);
Value make_dict(std::vector<std::pair<Text, Value>> members, Machine& machine);
Value make_charged(Text text, Machine& machine);

/// container[index]; undefined if there is no such member or element.
Value item(const Value& container, const Value& index, Machine& machine);
/// container[begin:end:step]; none stands for what is left out.
Value slice(const Value& container, const Value& begin, const Value& end, const Value& step,
            Machine& machine);
/// Elements of a list, keys of a mapping, characters of a string; undefined has none.
std::shared_ptr<const List> elements(const Value& value, Machine& machine);
/// Elements, members or characters.
int64_t length(const Value& value, Machine& machine);

/// The text, or an error that says what needed it.
const Text& text_of(const Value& value, std::string_view what, Machine& machine);
int64_t integer_of(const Value& value, std::string_view what, Machine& machine);

/// json.dumps(value, ensure_ascii=False): one line with ", " and ": ", or lines with `indent`.
Text to_json(const Value& value, std::optional<int64_t> indent, bool sort_keys, Machine& machine);

}  // namespace assay::chat
