#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "convert/cli/command.h"

namespace assay::cli {

/// The options of one command together with the global ones: what parsing, environment, config
/// file, help and completion all walk.
class OptionTable {
 public:
  /// Throws std::logic_error if two options share a name or a letter.
  explicit OptionTable(const Command& command);

  const std::vector<Option>& options() const& { return options_; }
  void options() && = delete;                       // would dangle
  const Option* find(std::string_view name) const;  // nullptr if there is none
  const Option* find_short(char letter) const;      // nullptr if there is none
  std::vector<std::string> names() const;

 private:
  std::vector<Option> options_;
};

/// ASSAY_GROUP_SIZE for group-size.
std::string environment_name(const Option& option);

/// "an integer from 1 to 4096", "one of 4, 8", "a size such as 512M or 2GiB".
std::string expected_value(const Option& option);

/// Checks kind, range and choices of one value. Returns the text to keep: flags become "true" or
/// "false", everything else stays as written. `place` begins the message: `--bits`,
/// `run.yaml:3:9: bits`. Throws UsageError "<place>: expected …, found …".
std::string checked_value(const Option& option, std::string_view value, std::string_view place);

/// Strict readers of the value kinds; false if the text is none. Bytes: digits with an optional
/// fraction and unit; K, M, G, T and KiB … count in 1024, KB, MB, GB, TB in 1000.
bool parse_integer(std::string_view text, int64_t& value);
bool parse_number(std::string_view text, double& value);
bool parse_bytes(std::string_view text, uint64_t& value);
/// 1, on, yes, true and 0, off, no, false in any case.
bool parse_switch(std::string_view text, bool& value);

}  // namespace assay::cli
