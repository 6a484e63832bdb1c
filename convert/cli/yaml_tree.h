#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace assay::cli {

struct YamlMember;

/// One node of a YAML document with its place. Only what config files need.
struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kSequence, kMapping };
  Kind kind = Kind::kNull;
  int line = 1;    // from 1
  int column = 1;  // from 1, in characters
  std::string text;
  bool quoted = false;              // scalar in quotes or a block scalar
  std::vector<YamlNode> items;      // of a sequence
  std::vector<YamlMember> members;  // of a mapping

  /// "run.yaml:3:9"
  std::string place(std::string_view source) const;
  /// For messages: `"text"`, "a list", "a mapping", "nothing".
  std::string describe() const;
};

struct YamlMember {
  YamlNode key;  // a scalar
  YamlNode value;
};

/// Parses one document strictly: no anchors, aliases, merge keys, tags, complex or duplicate keys
/// ('_' and '-' count as equal), no second document, at most 8 levels. An empty document is an
/// empty mapping. Throws UsageError "<source>:<line>:<column>: …".
YamlNode parse_yaml(std::string_view text, const std::string& source);

}  // namespace assay::cli
