#include "convert/core/json.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "convert/core/error.h"
#include "convert/core/file.h"

namespace assay {
namespace {

std::string_view type_name(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_bool()) return "a boolean";
  if (value.is_integer()) return "an integer";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a string";
  if (value.is_array()) return "an array";
  return "an object";
}

[[noreturn]] void wrong_type(std::string_view expected, const Json& found) {
  throw FormatError("expected " + std::string(expected) + ", found " +
                    std::string(type_name(found)));
}

[[noreturn]] void fail_at(std::string_view source, uint64_t offset, const std::string& what) {
  throw FormatError(std::string(source) + ": JSON, byte " + std::to_string(offset) + ": " + what);
}

// Index of a key that an earlier member has, or members.size().
size_t find_duplicate(const Json::Object& members) {
  constexpr size_t kLinear = 12;  // below this, comparing all pairs beats hashing
  if (members.size() <= kLinear) {
    for (size_t i = 1; i < members.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (members[i].first == members[j].first) return i;
      }
    }
    return members.size();
  }
  std::unordered_set<std::string_view> seen(members.size() * 2);
  for (size_t i = 0; i < members.size(); ++i) {
    if (!seen.insert(members[i].first).second) return i;
  }
  return members.size();
}

struct DuplicateKey {};  // thrown by Builder; the place is then found by DuplicateFinder

// What both handlers have in common: no limits of their own, comments never arrive.
struct HandlerBase {
  static constexpr size_t max_object_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_array_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_key_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_string_size = std::numeric_limits<size_t>::max();
  using Text = boost::json::string_view;
  using Code = boost::json::error_code;

  bool on_document_begin(Code&) { return true; }
  bool on_document_end(Code&) { return true; }
  bool on_comment_part(Text, Code&) { return true; }
  bool on_comment(Text, Code&) { return true; }
};

// Builds the tree bottom up: finished values wait on one stack until their container ends, so that
// each container is allocated once with its exact size.
struct Builder : HandlerBase {
  Builder(std::string_view text_, std::string_view source_, uint64_t max_values_)
      : text(text_), source(source_), max_values(max_values_) {}

  bool on_object_begin(Code&) { return true; }
  bool on_array_begin(Code&) { return true; }

  bool on_object_end(size_t n, Code&) {
    Json::Object members;
    members.reserve(n);
    const auto first_key = keys.end() - static_cast<std::ptrdiff_t>(n);
    const auto first_value = values.end() - static_cast<std::ptrdiff_t>(n);
    for (size_t i = 0; i < n; ++i) {
      members.emplace_back(std::move(first_key[static_cast<std::ptrdiff_t>(i)]),
                           std::move(first_value[static_cast<std::ptrdiff_t>(i)]));
    }
    if (find_duplicate(members) != n) throw DuplicateKey{};
    keys.erase(first_key, keys.end());
    values.erase(first_value, values.end());
    return push(std::move(members));
  }

  bool on_array_end(size_t n, Code&) {
    const auto first = values.end() - static_cast<std::ptrdiff_t>(n);
    Json::Array items(std::make_move_iterator(first), std::make_move_iterator(values.end()));
    values.erase(first, values.end());
    return push(std::move(items));
  }

  bool on_string_part(Text part, size_t, Code&) { return append(part); }
  bool on_key_part(Text part, size_t, Code&) { return append(part); }
  bool on_number_part(Text part, Code&) { return append(part); }

  bool on_string(Text last, size_t, Code&) { return push(take(last)); }
  bool on_key(Text last, size_t, Code&) {
    keys.push_back(take(last));
    return true;
  }
  bool on_int64(int64_t value, Text, Code&) {
    partial.clear();
    return push(value);
  }
  bool on_uint64(uint64_t value, Text, Code&) {
    partial.clear();
    return push(value);
  }
  // Boost's own conversion may be off by one unit in the last place; the text decides.
  bool on_double(double rough, Text last, Code&) {
    const std::string number = take(last);
    double value = 0.0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc::result_out_of_range) {
      if (std::fabs(rough) > 1.0) {
        const uint64_t offset = static_cast<uint64_t>(last.data() - text.data());
        fail_at(source, offset, "the number " + number + " is too large for a double");
      }
      value = rough;  // underflow: zero
    } else if (error != std::errc() || end != number.data() + number.size()) {
      fail_at(source, static_cast<uint64_t>(last.data() - text.data()), "not a number: " + number);
    }
    return push(value);
  }
  bool on_bool(bool value, Code&) { return push(value); }
  bool on_null(Code&) { return push(nullptr); }

  template <class Value>
  bool push(Value&& value) {
    if (++n_values > max_values) {
      throw FormatError(std::string(source) + ": JSON: more than " + std::to_string(max_values) +
                        " values");
    }
    values.emplace_back(std::forward<Value>(value));
    return true;
  }
  bool append(Text part) {
    partial.append(part.data(), part.size());
    return true;
  }
  std::string take(Text last) {
    if (partial.empty()) return std::string(last.data(), last.size());
    append(last);
    return std::exchange(partial, std::string());
  }

  std::string_view text;
  std::string_view source;
  uint64_t max_values;
  uint64_t n_values = 0;
  std::string partial;  // of a string or number that arrives in pieces
  std::vector<std::string> keys;
  std::vector<Json> values;
};

// Second pass, only after Builder met a duplicate: fed byte by byte, so that places are known.
struct DuplicateFinder : HandlerBase {
  DuplicateFinder(std::string_view text_, std::string_view source_)
      : text(text_), source(source_) {}

  bool on_object_begin(Code&) {
    open_objects.emplace_back();
    return true;
  }
  bool on_object_end(size_t, Code&) {
    open_objects.pop_back();
    return true;
  }
  bool on_array_begin(Code&) { return true; }
  bool on_array_end(size_t, Code&) { return true; }
  bool on_string_part(Text, size_t, Code&) { return true; }
  bool on_string(Text, size_t, Code&) { return true; }
  bool on_number_part(Text, Code&) { return true; }
  bool on_int64(int64_t, Text, Code&) { return true; }
  bool on_uint64(uint64_t, Text, Code&) { return true; }
  bool on_double(double, Text, Code&) { return true; }
  bool on_bool(bool, Code&) { return true; }
  bool on_null(Code&) { return true; }

  bool on_key_part(Text part, size_t, Code&) {
    key.append(part.data(), part.size());
    return true;
  }
  bool on_key(Text last, size_t, Code&) {
    key.append(last.data(), last.size());
    const uint64_t start = opening_quote();
    const auto [member, is_new] = open_objects.back().emplace(key, start);
    if (!is_new) {
      fail_at(source, start,
              "key " + in_quotes(key) + " occurs twice in one object, first at byte " +
                  std::to_string(member->second));
    }
    key.clear();
    return true;
  }

  // `position` is the closing quote; the opening one is the nearest before it that no odd number of
  // backslashes escapes.
  uint64_t opening_quote() const {
    for (size_t at = position; at-- > 0;) {
      if (text[at] != '"') continue;
      size_t backslashes = 0;
      while (backslashes < at && text[at - 1 - backslashes] == '\\') ++backslashes;
      if (backslashes % 2 == 0) return at;
    }
    return 0;
  }

  std::string_view text;
  std::string_view source;
  size_t position = 0;
  std::string key;
  std::vector<std::unordered_map<std::string, uint64_t>> open_objects;
};

boost::json::parse_options boost_options(const JsonParseOptions& options) {
  boost::json::parse_options out;
  out.max_depth = static_cast<size_t>(options.max_depth);
  return out;
}

[[noreturn]] void report_duplicate(std::string_view text, std::string_view source,
                                   const JsonParseOptions& options) {
  boost::json::basic_parser<DuplicateFinder> parser(boost_options(options), text, source);
  boost::json::error_code code;
  for (size_t i = 0; i < text.size() && !code; ++i) {
    parser.handler().position = i;
    parser.write_some(true, text.data() + i, 1, code);
  }
  throw FormatError(std::string(source) + ": JSON: a key occurs twice in one object");
}

[[noreturn]] void report_syntax(std::string_view text, std::string_view source, uint64_t offset,
                                const boost::json::error_code& code,
                                const JsonParseOptions& options) {
  if (code == boost::json::error::too_deep) {
    fail_at(source, offset, "nested deeper than " + std::to_string(options.max_depth) + " levels");
  }
  if (code == boost::json::error::incomplete || offset >= text.size()) {
    fail_at(source, text.size(), "the text ends inside a value");
  }
  const auto byte = static_cast<unsigned char>(text[offset]);
  const std::string found = byte > 0x20 && byte < 0x7f
                                ? std::string("'") + static_cast<char>(byte) + "'"
                                : "byte value " + std::to_string(static_cast<int>(byte));
  fail_at(source, offset, "unexpected " + found + " (" + code.message() + ")");
}

// ---- writing ----

// Length of the well-formed UTF-8 sequence at the front of `text`, or 0.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  unsigned char low = 0x80, high = 0xbf;  // allowed second byte
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  }
  if (length == 0 || text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return length;
}

void write_string(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x80) {
      const size_t length = utf8_length(text.substr(i));
      out += length == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(i, length);
      i += std::max<size_t>(length, 1);
      continue;
    }
    ++i;
    switch (byte) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (byte < 0x20) {
          out += "\\u00";
          out += kHex[byte >> 4];
          out += kHex[byte & 15];
        } else {
          out += static_cast<char>(byte);
        }
    }
  }
  out += '"';
}

// Python's repr of a float: shortest digits that read back to the same double; an exponent if it is
// below -4 or above 15.
void write_double(std::string& out, double value) {
  if (!std::isfinite(value)) {
    throw NumericError("JSON cannot hold NaN or infinity");
  }
  std::array<char, 32> scientific;
  const auto [end, error] = std::to_chars(scientific.data(), scientific.data() + scientific.size(),
                                          value, std::chars_format::scientific);
  ASSAY_CHECK(error == std::errc());
  std::string_view text(scientific.data(), static_cast<size_t>(end - scientific.data()));
  const size_t mark = text.find('e');
  const size_t sign = text[mark + 1] == '+' ? 1 : 0;  // from_chars reads '-' but no '+'
  int exponent = 0;
  std::from_chars(text.data() + mark + 1 + sign, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += text;  // to_chars gives at least two exponent digits, as Python does
    return;
  }
  std::string digits;
  for (const char c : text.substr(0, mark)) {
    if (c == '-') {
      out += '-';
    } else if (c != '.') {
      digits += c;
    }
  }
  if (exponent < 0) {
    out += "0.";
    out.append(static_cast<size_t>(-exponent - 1), '0');
    out += digits;
    return;
  }
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole + 1) digits.append(whole + 1 - digits.size(), '0');
  out.append(digits, 0, whole);
  out += '.';
  out.append(digits, whole);
}

class Printer {
 public:
  Printer(std::string& out, int indent) : out_(out), indent_(indent) {}

  void write(const Json& value) {
    if (value.is_null()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.as_bool() ? "true" : "false";
    } else if (value.is_integer()) {
      out_ += value.integer_text();
    } else if (value.is_number()) {
      write_double(out_, value.as_number());
    } else if (value.is_string()) {
      write_string(out_, value.as_string());
    } else if (value.is_array()) {
      write_items('[', ']', value.as_array(), [this](const Json& item) { write(item); });
    } else {
      write_items('{', '}', value.as_object(), [this](const Json::Member& member) {
        write_string(out_, member.first);
        out_ += indent_ > 0 ? ": " : ":";
        write(member.second);
      });
    }
  }

 private:
  template <class Items, class WriteItem>
  void write_items(char open, char close, const Items& items, const WriteItem& write_item) {
    out_ += open;
    ++depth_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_ += ',';
      first = false;
      new_line();
      write_item(item);
    }
    --depth_;
    if (!items.empty()) new_line();
    out_ += close;
  }

  void new_line() {
    if (indent_ <= 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(depth_) * static_cast<size_t>(indent_), ' ');
  }

  std::string& out_;
  int indent_;
  int depth_ = 0;
};

}  // namespace

Json::Json(uint64_t value) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    value_ = static_cast<int64_t>(value);
  } else {
    value_ = value;
  }
}

bool Json::as_bool() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  wrong_type("a boolean", *this);
}

int64_t Json::as_integer() const {
  if (const int64_t* value = std::get_if<int64_t>(&value_)) return *value;
  if (const uint64_t* value = std::get_if<uint64_t>(&value_)) {
    throw FormatError("the integer " + std::to_string(*value) + " is larger than 2^63 - 1");
  }
  wrong_type("an integer", *this);
}

double Json::as_number() const {
  if (const double* value = std::get_if<double>(&value_)) return *value;
  if (const int64_t* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  if (const uint64_t* value = std::get_if<uint64_t>(&value_)) return static_cast<double>(*value);
  wrong_type("a number", *this);
}

std::string Json::integer_text() const {
  if (const uint64_t* value = std::get_if<uint64_t>(&value_)) return std::to_string(*value);
  return std::to_string(as_integer());
}

const std::string& Json::as_string() const {
  if (const std::string* value = std::get_if<std::string>(&value_)) return *value;
  wrong_type("a string", *this);
}

const Json::Array& Json::as_array() const {
  if (const Array* value = std::get_if<Array>(&value_)) return *value;
  wrong_type("an array", *this);
}

Json::Array& Json::as_array() {
  if (Array* value = std::get_if<Array>(&value_)) return *value;
  wrong_type("an array", *this);
}

const Json::Object& Json::as_object() const {
  if (const Object* value = std::get_if<Object>(&value_)) return *value;
  wrong_type("an object", *this);
}

Json::Object& Json::as_object() {
  if (Object* value = std::get_if<Object>(&value_)) return *value;
  wrong_type("an object", *this);
}

const Json* Json::find(std::string_view key) const {
  const Object* members = std::get_if<Object>(&value_);
  if (members == nullptr) return nullptr;
  for (const Member& member : *members) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (const Json* value = find(key)) return *value;
  if (!is_object()) {
    throw FormatError("expected an object with the key \"" + std::string(key) + "\", found " +
                      std::string(type_name(*this)));
  }
  throw FormatError("the key " + in_quotes(key) + " is missing");
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  for (Member& member : as_object()) {
    if (member.first == key) {
      member.second = std::move(value);
      return *this;
    }
  }
  as_object().emplace_back(std::string(key), std::move(value));
  return *this;
}

Json& Json::push(Json value) {
  if (is_null()) value_ = Array{};
  as_array().push_back(std::move(value));
  return *this;
}

std::string Json::dump(int indent) const {
  std::string out;
  Printer(out, indent).write(*this);
  return out;
}

std::string in_quotes(std::string_view text) {
  std::string out;
  write_string(out, text);
  return out;
}

Json parse_json(std::string_view text, std::string_view source, const JsonParseOptions& options) {
  boost::json::basic_parser<Builder> parser(boost_options(options), text, source,
                                            options.max_values);
  boost::json::error_code code;
  size_t consumed = 0;
  try {
    consumed = parser.write_some(false, text.data(), text.size(), code);
  } catch (const DuplicateKey&) {
    report_duplicate(text, source, options);
  }
  if (code) report_syntax(text, source, consumed, code, options);
  if (consumed < text.size()) {
    fail_at(source, consumed, "expected the end of the text after the document");
  }
  ASSAY_CHECK(parser.handler().values.size() == 1);
  return std::move(parser.handler().values.front());
}

Json read_json_file(const std::string& path, const JsonParseOptions& options) {
  return parse_json(read_text_file(path), path, options);
}

}  // namespace assay
