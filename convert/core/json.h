#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace assay {

/// A JSON value that keeps the order of keys. Parsing is strict: RFC 8259, valid UTF-8, no
/// duplicate keys, no NaN or Infinity, bounded depth; errors (FormatError) name the source and byte
/// offset.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;  // null
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(int64_t{value}) {}
  Json(int64_t value) : value_(value) {}
  Json(uint64_t value);
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  static Json object() { return Json(Object{}); }
  static Json array() { return Json(Array{}); }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const {
    return std::holds_alternative<int64_t>(value_) || std::holds_alternative<uint64_t>(value_);
  }
  bool is_integer_in(int64_t minimum, int64_t maximum) const {  // false for any other type
    const int64_t* value = std::get_if<int64_t>(&value_);
    return value != nullptr && *value >= minimum && *value <= maximum;
  }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  /// Typed access; throws FormatError "expected a string, found an array" if the type differs.
  bool as_bool() const;
  int64_t as_integer() const;  // also throws above 2^63 - 1; integers above 2^64 - 1 are doubles
  double as_number() const;
  std::string integer_text() const;  // decimal digits of any is_integer() value
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  /// The member with this key, or nullptr if there is none (or this is no object).
  const Json* find(std::string_view key) const;
  /// The member with this key; throws FormatError naming the key if there is none.
  const Json& at(std::string_view key) const;
  /// Appends or replaces a member of an object (null becomes an object). Returns *this.
  Json& set(std::string_view key, Json value);
  /// Appends to an array (null becomes an array). Returns *this.
  Json& push(Json value);

  /// Text with the given indent (0: one line with no spaces). Numbers are written shortest, in the
  /// manner of Python's json module (1e-06, 1.0); strings as UTF-8, in which bytes that are no
  /// UTF-8 become U+FFFD. Throws NumericError for NaN and infinity.
  std::string dump(int indent = 2) const;

  friend bool operator==(const Json&, const Json&) = default;

 private:
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object>
      value_;  // uint64_t only above 2^63 - 1
};

/// The text as a JSON string, for names from files inside messages: control characters, zero bytes
/// and bytes that are no UTF-8 cannot spoil the terminal or cut the message.
std::string in_quotes(std::string_view text);

struct JsonParseOptions {
  int max_depth = 64;
  uint64_t max_values = 16'000'000;  // a value takes 48 bytes of memory but 2 bytes of text
};

/// Parses one document. `source` (a file name) begins every message.
Json parse_json(std::string_view text, std::string_view source,
                const JsonParseOptions& options = {});
/// Reads and parses a file; FileError if it cannot be read.
Json read_json_file(const std::string& path, const JsonParseOptions& options = {});

}  // namespace assay
