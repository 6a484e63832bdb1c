#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "convert/core/json.h"

namespace assay {

/// Typed and range-checked access to one object of a configuration file. A key that is absent and
/// one that is null are the same. Every error is a FormatError that names file, key, what was found
/// and what is allowed.
class ConfigReader {
 public:
  /// `source` begins every message ("config.json", "config.json: rope_scaling"). `config` must
  /// outlive the reader. Throws FormatError if it is no object.
  ConfigReader(const Json& config, std::string source);

  const std::string& source() const { return source_; }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// The value, or nullptr if absent or null.
  const Json* find(std::string_view key) const;

  /// An integer in [minimum, maximum]; a number without fraction (4096.0) counts as one.
  int64_t integer(std::string_view key, int64_t minimum, int64_t maximum) const;
  int64_t integer_or(std::string_view key, int64_t minimum, int64_t maximum,
                     int64_t fallback) const;
  /// A finite number in [minimum, maximum].
  double number(std::string_view key, double minimum, double maximum) const;
  double number_or(std::string_view key, double minimum, double maximum, double fallback) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string_view fallback) const;

  /// Throws FormatError "<source>: "<key>" is <found>; expected <expected>".
  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

 private:
  const Json& required(std::string_view key) const;
  const Json* config_;
  std::string source_;
};

}  // namespace assay
