#pragma once

#include <string>

#include "convert/core/json.h"
#include "verify/equivalence.h"

namespace assay {

/// The verdict for people: sides, policy, what was fed, one line per check with where it differs,
/// the table of NLL per position, the verdict.
std::string to_text(const EquivalenceReport& report);

/// Everything; the input of `assay report --verify`. Keys are stable: "equal", "sides", "policy",
/// "checks" (each with "name", "outcome", "summary", "details", "data").
Json to_json(const EquivalenceReport& report);

/// What would be compared, for --dry-run.
std::string to_text(const EquivalencePlan& plan);
Json to_json(const EquivalencePlan& plan);

/// One test case per check; a difference is a failure, one that no limit judges is skipped. Valid
/// XML 1.0: all text is escaped, control characters are replaced.
std::string to_junit(const EquivalenceReport& report);

/// Escapes for XML and HTML text and attribute values; characters that XML 1.0 forbids, and bytes
/// that are no UTF-8, become U+FFFD.
std::string escape_markup(std::string_view text);

}  // namespace assay
