#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"

namespace assay::tokenization {

/// A value inside tokenizer.json with the place where it stands, so that every message can say
/// `<file>: <path>: …`. Views the Json, which must outlive it.
class Part {
 public:
  Part(const Json& json, std::string source, std::string path)
      : json_(&json), source_(std::move(source)), path_(std::move(path)) {}

  const Json& json() const { return *json_; }
  const std::string& source() const { return source_; }
  const std::string& path() const { return path_; }

  /// The member; FormatError if there is none.
  Part member(std::string_view key) const;
  /// The member, or nothing if it is absent or null.
  std::optional<Part> optional_member(std::string_view key) const;
  std::vector<Part> elements() const;

  const std::string& string() const;
  bool boolean() const;
  int64_t integer() const;
  bool boolean_or(std::string_view key, bool fallback) const;
  /// The string member "type".
  const std::string& type() const;

  /// Throws UnsupportedError or FormatError: `<source>: <path>: <what>`.
  [[noreturn]] void unsupported(std::string_view what) const;
  [[noreturn]] void malformed(std::string_view what) const;

 private:
  const Json* json_;
  std::string source_;
  std::string path_;
};

}  // namespace assay::tokenization
