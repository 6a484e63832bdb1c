// Checks of logits, hidden states and greedy continuations, prompt by prompt.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/checks.h"
#include "verify/describe.h"
#include "verify/hidden_states.h"
#include "verify/logits.h"
#include "verify/row_statistics.h"
#include "verify/token_hash.h"

namespace assay {
namespace {

constexpr size_t kMostDetails = 5;

/// Outcome of figures that are judged by one limit.
Outcome judge(bool equal, double size, const Policy& policy, const std::optional<double>& limit) {
  if (equal) return Outcome::kEqual;
  if (policy.bitwise) return Outcome::kDifferent;
  if (!limit) return Outcome::kReported;
  return size <= *limit ? Outcome::kWithin : Outcome::kDifferent;
}

/// Adds up the comparisons of all prompts.
class LogitsCheck {
 public:
  explicit LogitsCheck(const Policy& policy) : policy_(policy) { check_.name = "logits"; }

  void add(const std::string& prompt_id, std::string_view rows, const LogitsComparison& found,
           std::optional<double> kld) {
    ++n_;
    n_equal_ += found.equal() ? 1 : 0;
    n_rows_ += found.n_rows;
    n_argmax_ += found.n_argmax_different;
    Json item = Json::object();
    item.set("prompt", prompt_id);
    item.set("rows", rows);
    const Json figures = found.to_json();
    for (const auto& [key, value] : figures.as_object()) item.set(key, value);
    if (kld) item.set("kld", *kld);
    items_.push(std::move(item));
    if (found.equal()) return;

    if (first_prompt_.empty()) first_prompt_ = prompt_id;
    rms_ = std::max(rms_, found.rms_difference);
    if (worst_prompt_.empty() || found.max_abs_difference > worst_) {
      worst_ = found.max_abs_difference;
      worst_prompt_ = prompt_id;
      worst_at_ = *found.worst;
    }
    const Outcome outcome =
        judge(false, found.max_abs_difference, policy_, policy_.max_logit_difference);
    if (outcome != Outcome::kDifferent) return;
    if (check_.details.size() < kMostDetails) {
      check_.details.push_back(fmt::format("prompt \"{}\" ({}): {}; {} of {} values differ",
                                           prompt_id, rows, found.first_difference(),
                                           found.n_different, found.n_rows * found.n_columns));
    } else {
      ++n_hidden_;
    }
  }

  /// A prompt that one side has no logits of.
  void leave_out() { ++n_left_out_; }

  Check finish() {
    check_.outcome = judge(n_equal_ == n_, worst_, policy_, policy_.max_logit_difference);
    if (n_hidden_ > 0) check_.details.push_back(fmt::format("… and {} more", n_hidden_));
    if (n_ == 0) {
      // Nothing was held against a limit: that is no pass.
      const bool judged = policy_.bitwise || policy_.max_logit_difference;
      check_.outcome = judged ? Outcome::kDifferent : Outcome::kReported;
      check_.summary = "no prompt has logits on both sides";
    } else if (n_equal_ == n_) {
      check_.summary = fmt::format("{} prompts, {} rows: every bit is equal", n_, n_rows_);
    } else {
      check_.summary = fmt::format(
          "largest difference {} (prompt \"{}\", row {}, index {}), rms up to {}; other best token "
          "in {} of {} rows",
          describe_figure(worst_), worst_prompt_, worst_at_.row, worst_at_.column,
          describe_figure(rms_), n_argmax_, n_rows_);
    }
    if (n_ > 0 && n_left_out_ > 0) {
      check_.summary += fmt::format("; {} more have no logits on both sides", n_left_out_);
    }
    check_.data.set("n_prompts", uint64_t{n_});
    check_.data.set("n_left_out", uint64_t{n_left_out_});
    check_.data.set("n_equal", uint64_t{n_equal_});
    check_.data.set("n_rows", n_rows_);
    check_.data.set("n_argmax_different", n_argmax_);
    check_.data.set("max_abs_difference", std::isfinite(worst_) ? Json(worst_) : Json(nullptr));
    check_.data.set("max_rms_difference", std::isfinite(rms_) ? Json(rms_) : Json(nullptr));
    check_.data.set("first_different_prompt",
                    first_prompt_.empty() ? Json(nullptr) : Json(first_prompt_));
    check_.data.set("prompts", std::move(items_));
    return std::move(check_);
  }

 private:
  const Policy& policy_;
  Check check_;
  size_t n_ = 0, n_equal_ = 0, n_hidden_ = 0, n_left_out_ = 0;
  int64_t n_rows_ = 0;
  uint64_t n_argmax_ = 0;
  double worst_ = 0.0, rms_ = 0.0;
  std::string worst_prompt_, first_prompt_;
  FloatDifference worst_at_;
  Json items_ = Json::array();
};

double mean_kld(std::span<const float> a, std::span<const float> b, size_t columns) {
  double sum = 0.0;
  for (size_t begin = 0; begin < a.size(); begin += columns) {
    sum += kld_of_rows(a.subspan(begin, columns), b.subspan(begin, columns));
  }
  const size_t n_rows = a.size() / columns;
  return n_rows == 0 ? 0.0 : sum / static_cast<double>(n_rows);
}

/// Positions of an all-positions prompt that both sides can give.
std::vector<int64_t> common_positions(const Side& a, const Side& b, const ReferencePrompt& prompt) {
  for (const Side* side : {&a, &b}) {
    if (!side->is_bundle()) continue;
    const auto rows = side->bundle().all_logits(prompt.id);
    return rows ? rows->positions : std::vector<int64_t>();
  }
  std::vector<int64_t> positions(prompt.token_ids.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(i);
  return positions;
}

/// A divergence that the reference's own margin explains: its two best tokens lie within the limit.
bool explained(const TokenDivergence& divergence, bool b_is_reference, const Policy& policy) {
  const std::optional<float>& margin = b_is_reference ? divergence.margin_b : divergence.margin_a;
  return !policy.bitwise && policy.max_logit_difference && margin && divergence.a >= 0 &&
         divergence.b >= 0 && static_cast<double>(*margin) <= *policy.max_logit_difference;
}

}  // namespace

Check check_logits(Side& a, Side& b, const TokenPlan& plan, const Policy& policy,
                   WorkMeter& meter) {
  const int64_t columns = a.vocab_size();
  LogitsCheck check(policy);
  for (const ReferencePrompt& prompt : plan.prompts) {
    meter.begin(fmt::format("logits of prompt {}", prompt.id),
                static_cast<double>(prompt.token_ids.size()));
    if (prompt.keeps_all_positions()) {
      const std::vector<int64_t> positions = common_positions(a, b, prompt);
      const auto rows_a = a.logits_at(prompt, positions), rows_b = b.logits_at(prompt, positions);
      if (!positions.empty() && rows_a && rows_b) {
        check.add(prompt.id, "all positions", compare_logits(*rows_a, *rows_b, columns),
                  mean_kld(*rows_a, *rows_b, static_cast<size_t>(columns)));
        continue;
      }
    }
    const auto last_a = a.final_logits(prompt), last_b = b.final_logits(prompt);
    if (!last_a || !last_b) {
      check.leave_out();
      continue;
    }
    check.add(prompt.id, "last position", compare_logits(*last_a, *last_b, columns), std::nullopt);
  }
  return check.finish();
}

namespace {

/// Compares hidden states one after another; the first that is too far off is where a fault began.
class HiddenCheck {
 public:
  HiddenCheck(const ReferencePrompt& prompt, const Policy& policy, const Json& noise,
              KvType kv_type)
      : prompt_(prompt), policy_(policy), noise_(noise), kv_type_(kv_type) {
    check_.name = "hidden states";
    check_.data.set("prompt", prompt.id);
  }

  void add(const std::string& name, std::span<const float> expected, std::span<const float> found) {
    ++n_;
    const size_t n_tokens = prompt_.token_ids.size();
    if (found.size() != expected.size() || expected.size() % n_tokens != 0) {
      differ(fmt::format("{}: {} against {} values", name, expected.size(), found.size()));
      return;
    }
    const LogitsComparison comparison =
        compare_logits(expected, found, static_cast<int64_t>(expected.size() / n_tokens));
    const double relative =
        comparison.rms_a > 0.0 ? comparison.rms_difference / comparison.rms_a : 0.0;
    worst_ = std::max(worst_, relative);
    const std::optional<double> limit = limit_of(name);
    const Outcome outcome =
        judge(comparison.equal(), comparison.max_abs_difference, policy_, limit);
    if (outcome == Outcome::kDifferent) {
      differ(fmt::format("{}: {}", name, comparison.first_difference()) +
             (limit ? fmt::format("; largest difference {}, the limit is {}",
                                  describe_figure(comparison.max_abs_difference),
                                  describe_figure(*limit))
                    : std::string()));
    } else if (outcome != Outcome::kEqual && check_.outcome != Outcome::kDifferent) {
      check_.outcome = std::max(check_.outcome, outcome);
    }
    Json item = Json::object();
    item.set("name", name);
    const Json figures = comparison.to_json();
    for (const auto& [key, value] : figures.as_object()) {
      if (key != "n_argmax_different") item.set(key, value);
    }
    item.set("relative_rms_difference", relative);
    item.set("limit", json_of(limit));
    items_.push(std::move(item));
  }

  Check finish() {
    check_.summary = fmt::format("{} states of prompt \"{}\": rms difference up to {} of the state",
                                 n_, prompt_.id, describe_figure(worst_));
    check_.data.set("states", std::move(items_));
    return std::move(check_);
  }

 private:
  std::optional<double> limit_of(const std::string& name) const {
    return policy_.bitwise ? std::nullopt : derive_state_tolerance(noise_, name, kv_type_);
  }

  static Json json_of(const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
  }

  void differ(std::string line) {
    check_.outcome = Outcome::kDifferent;
    if (check_.details.empty()) check_.details.push_back("first: " + std::move(line));
  }

  const ReferencePrompt& prompt_;
  const Policy& policy_;
  const Json& noise_;
  KvType kv_type_;
  Check check_;
  size_t n_ = 0;
  double worst_ = 0.0;
  Json items_ = Json::array();
};

}  // namespace

std::optional<Check> check_hidden(Side& a, Side& b, const TokenPlan& plan, const Policy& policy) {
  const Side& reference = a.is_bundle() ? a : b;
  Side& other = a.is_bundle() ? b : a;
  if (!reference.is_bundle()) return std::nullopt;
  std::vector<std::string> names = reference.bundle().hidden_names();
  const auto prompt = std::find_if(plan.prompts.begin(), plan.prompts.end(),
                                   [](const auto& p) { return p.keeps_all_positions(); });
  if (other.is_bundle()) {
    const std::vector<std::string> others = other.bundle().hidden_names();
    std::erase_if(names, [&](const std::string& name) {
      return std::find(others.begin(), others.end(), name) == others.end();
    });
  }
  if (names.empty() || prompt == plan.prompts.end()) return std::nullopt;

  std::map<std::string, std::vector<float>> states;
  if (other.is_bundle()) {
    for (const std::string& name : names) states[name] = other.bundle().hidden(name);
  } else {
    states = run_hidden_states(other.executor(), prompt->token_ids);
  }
  const KvType kv_type = other.has_executor() ? other.executor().options().kv_type : KvType::kF16;
  HiddenCheck check(*prompt, policy, reference.bundle().noise(), kv_type);
  for (const std::string& name : names) {
    check.add(name, reference.bundle().hidden(name), states[name]);
  }
  return check.finish();
}

Check check_greedy(Side& a, Side& b, const TokenPlan& plan, int64_t n_new_tokens,
                   const Policy& policy, WorkMeter& meter) {
  Check check;
  check.name = "greedy";
  Json items = Json::array();
  const bool b_is_reference = b.is_bundle() && !a.is_bundle();
  size_t n = 0, n_equal = 0, n_explained = 0, n_diverged = 0;
  for (const std::string& id : plan.greedy_ids) {
    const ReferencePrompt& prompt = *plan.find_prompt(id);
    meter.begin(fmt::format("greedy tokens of prompt {}", id),
                static_cast<double>(prompt.token_ids.size()) +
                    WorkMeter::kDecodeCost * static_cast<double>(n_new_tokens));
    const auto run_a = a.greedy(prompt, n_new_tokens), run_b = b.greedy(prompt, n_new_tokens);
    if (!run_a || !run_b) continue;
    ++n;
    const auto divergence = first_divergence(*run_a, *run_b);
    Json item = Json::object();
    item.set("prompt", id);
    item.set("n_new_tokens", uint64_t{run_a->token_ids.size()});
    item.set("sha256_a", run_a->sha256());
    item.set("sha256_b", run_b->sha256());
    item.set("divergence", divergence ? divergence->to_json() : Json(nullptr));
    items.push(std::move(item));
    if (!divergence) {
      ++n_equal;
      continue;
    }
    const bool close = explained(*divergence, b_is_reference, policy);
    n_explained += close ? 1 : 0;
    ++n_diverged;
    if (n_diverged <= kMostDetails) {
      check.details.push_back(fmt::format("prompt \"{}\": {}{}", id, divergence->describe(),
                                          close ? "; the margin is below the limit" : ""));
    }
  }
  check.judges = policy.bitwise || policy.max_logit_difference;
  if (n_equal == n) {
    check.outcome = n == 0 ? Outcome::kReported : Outcome::kEqual;
  } else if (!check.judges) {
    check.outcome = Outcome::kReported;
  } else {
    check.outcome = n_equal + n_explained == n ? Outcome::kWithin : Outcome::kDifferent;
  }
  if (n_diverged > kMostDetails) {
    check.details.push_back(fmt::format("… and {} more", n_diverged - kMostDetails));
  }
  check.summary = fmt::format("{} of {} continuations have the same ids", n_equal, n);
  check.data.set("n_prompts", uint64_t{n});
  check.data.set("n_equal", uint64_t{n_equal});
  check.data.set("n_explained", uint64_t{n_explained});
  check.data.set("prompts", std::move(items));
  return check;
}

}  // namespace assay
