#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"
#include "runtime/executor.h"
#include "verify/policy.h"
#include "verify/side.h"
#include "verify/token_plan.h"
#include "verify/work_meter.h"

namespace assay {

/// What a check came to.
enum class Outcome : uint8_t {
  kEqual,      // the same bits, ids or values
  kWithin,     // different, inside the stated limit
  kReported,   // different or not judged: no limit is stated
  kDifferent,  // outside the policy
};
std::string_view outcome_name(Outcome outcome);  // "equal", "within limit", "reported", "different"

/// One thing that was compared.
struct Check {
  std::string name;  // "weights", "logits", "greedy", "nll", "self-equality A", …
  Outcome outcome = Outcome::kEqual;
  std::string summary;               // one line
  std::vector<std::string> details;  // where, and both values; one line each
  Json data;                         // all figures
  /// Whether equality here says how near the numbers of the two sides are: not where one side is
  /// compared with itself, nor for greedy ids that no limit judges.
  bool judges = true;
};

struct EquivalenceReport {
  Json side_a, side_b;
  Policy policy;
  std::string kv_type;
  std::string prompts;  // where they come from and how many
  std::string windows;  // EvaluationWindows::describe(), or empty
  std::vector<std::string> notes;
  std::vector<Check> checks;

  /// No check is outside the policy.
  bool equal() const;
  /// At least one comparison that judges was judged, not merely reported.
  bool judged() const;
};

struct EquivalenceOptions {
  TokenPlanOptions tokens;
  PolicyRequest policy;
  std::optional<KvType> kv_type;  // default: that of a bundle which states one, else f16
  std::string device = "cpu";
  int64_t n_new_tokens = 32;  // greedy, between models; bundles say how many
  bool weights = true, tokenizer = true, logits = true, greedy = true, nll = true,
       self_equality = true;
};

/// What a comparison would do and take, without a weight read or a model run.
struct EquivalencePlan {
  Json side_a, side_b;
  std::string kv_type;
  std::string prompts, windows;     // as in EquivalenceReport
  std::vector<std::string> checks;  // in the order in which they would run
  std::vector<std::string> notes;   // what would be left out, and why
  int64_t context = 0;              // positions a sequence
  int64_t n_tokens = 0;             // that each model would run, prompts, windows and new tokens
  std::vector<LedgerItem> memory;   // of both models, from their headers

  uint64_t memory_bytes() const;
};

/// Throws what verify_equivalence would throw before it reads weights; UnsupportedError where the
/// vocabularies differ in size.
EquivalencePlan plan_equivalence(const Side& a, const Side& b, const EquivalenceOptions& options);

/// Compares two sides as options say. A difference is a result; throws for input that cannot be
/// compared at all (other token ids, unreadable files) and for wrong combinations of options.
EquivalenceReport verify_equivalence(Side& a, Side& b, const EquivalenceOptions& options,
                                     const VerifyProgress& progress = {});

}  // namespace assay
