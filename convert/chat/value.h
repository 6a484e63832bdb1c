#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "convert/chat/text.h"
#include "convert/core/json.h"

namespace assay::chat {

struct Statement;
struct List;
struct Dict;
struct Namespace;
struct Loop;

struct Undefined {};
struct None {};
/// A function of the environment, by its name.
struct Function {
  std::string_view name;
};

/// A value of a template. Copies share lists and mappings, which never change.
using Value = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                           std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                           std::shared_ptr<Namespace>, std::shared_ptr<const Loop>,
                           const Statement*, Function>;

/// Lists and mappings nest at most this deep.
inline constexpr int kMaxNesting = 80;

struct List {
  std::vector<Value> items;
  int depth = 1;  // of nesting
  bool is_tuple = false;
};

struct Dict {
  std::vector<std::pair<Text, Value>> members;  // keys differ
  int depth = 1;

  const Value* find(std::string_view key) const;
};

/// namespace(…): the one kind of value that `set` changes.
struct Namespace {
  std::vector<std::pair<std::string, Value>> members;
};

/// The variable `loop`.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
  int64_t nesting = 0;
};

const Text* as_text(const Value& value);
const List* as_list(const Value& value);
const Dict* as_dict(const Value& value);
bool is_undefined(const Value& value);
/// An integer; of a bool, 0 or 1.
const int64_t* as_integer(const Value& value);

Value make_text(Text text);
Value make_own_text(std::string_view bytes);
bool truth(const Value& value);
/// "a string", "a list", …
std::string_view kind_name(const Value& value);

/// Strings and keys of `json` came from outside. Throws UnsupportedError for integers beyond 64
/// bits.
Value value_of(const Json& json);

}  // namespace assay::chat
