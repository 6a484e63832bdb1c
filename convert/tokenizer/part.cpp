#include "convert/tokenizer/part.h"

#include <cstdint>
#include <limits>

#include "convert/core/error.h"

namespace assay::tokenization {
namespace {

std::string place(const std::string& source, const std::string& path) {
  return path.empty() ? source : source + ": " + path;
}

}  // namespace

Part Part::member(std::string_view key) const {
  const Json* found = json_->find(key);
  std::string path = path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  if (!found) malformed("has no member \"" + std::string(key) + "\"");
  return Part(*found, source_, std::move(path));
}

std::optional<Part> Part::optional_member(std::string_view key) const {
  const Json* found = json_->find(key);
  if (!found || found->is_null()) return std::nullopt;
  return member(key);
}

std::vector<Part> Part::elements() const {
  if (!json_->is_array()) malformed("must be an array");
  std::vector<Part> parts;
  const Json::Array& array = json_->as_array();
  parts.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    parts.emplace_back(array[i], source_, path_ + "[" + std::to_string(i) + "]");
  }
  return parts;
}

const std::string& Part::string() const {
  if (!json_->is_string()) malformed("must be a string");
  return json_->as_string();
}

bool Part::boolean() const {
  if (!json_->is_bool()) malformed("must be true or false");
  return json_->as_bool();
}

int64_t Part::integer() const {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  if (!json_->is_integer_in(-kMost, kMost)) malformed("must be an integer below 2^63");
  return json_->as_integer();
}

bool Part::boolean_or(std::string_view key, bool fallback) const {
  const std::optional<Part> found = optional_member(key);
  return found ? found->boolean() : fallback;
}

const std::string& Part::type() const { return member("type").string(); }

void Part::unsupported(std::string_view what) const {
  throw UnsupportedError(place(source_, path_) + ": " + std::string(what));
}

void Part::malformed(std::string_view what) const {
  throw FormatError(place(source_, path_) + ": " + std::string(what));
}

}  // namespace assay::tokenization
