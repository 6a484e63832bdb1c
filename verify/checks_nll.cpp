// NLL, KLD and agreement over the windows of an evaluation text.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "runtime/ops/nll.h"
#include "verify/checks.h"
#include "verify/describe.h"
#include "verify/logits.h"
#include "verify/row_statistics.h"

namespace assay {
namespace {

constexpr int64_t kMostLogitBytes = int64_t{64} << 20;

/// Runs both models side by side over the windows, some positions at a time.
class PairScorer {
 public:
  PairScorer(Executor& a, Executor& b)
      : a_(a),
        b_(b),
        columns_(static_cast<size_t>(a.program().spec.vocab_size)),
        comparer_(a.program().spec.vocab_size) {
    const auto row_bytes = static_cast<int64_t>(columns_ * sizeof(float));
    chunk_ = static_cast<size_t>(
        std::max<int64_t>(1, std::min({a.options().max_batch_tokens, b.options().max_batch_tokens,
                                       kMostLogitBytes / row_bytes})));
  }

  PairedWindowScores score(std::span<const int32_t> window) {
    const size_t n_rows = window.size() - 1;
    PairedWindowScores scores{sized(n_rows), sized(n_rows), std::vector<double>(n_rows)};
    a_.reset(0);
    b_.reset(0);
    for (size_t begin = 0; begin < window.size(); begin += chunk_) {
      const auto ids = window.subspan(begin, std::min(chunk_, window.size() - begin));
      const BatchItem item{0, ids, LogitRows::kAll};
      a_.forward({&item, 1}, logits_a_);
      b_.forward({&item, 1}, logits_b_);
      comparer_.add(logits_a_, logits_b_);
      score_rows(window, begin, std::min(ids.size(), n_rows - std::min(n_rows, begin)), scores);
    }
    return scores;
  }

  LogitsComparison finish() { return comparer_.finish(); }

 private:
  static WindowScores sized(size_t n) {
    return {std::vector<float>(n), std::vector<int32_t>(n), std::vector<float>(n)};
  }

  static void set(std::span<const float> row, int32_t target, size_t at, WindowScores& scores) {
    const Margin margin = margin_of(row);
    scores.nll[at] = nll(row, target);
    scores.argmax[at] = margin.best;
    scores.margin[at] = margin.margin;
  }

  void score_rows(std::span<const int32_t> window, size_t first, size_t n,
                  PairedWindowScores& scores) const {
    parallel_for(static_cast<int64_t>(n), 8, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const auto row_a = std::span<const float>(logits_a_).subspan(i * columns_, columns_);
        const auto row_b = std::span<const float>(logits_b_).subspan(i * columns_, columns_);
        const int32_t target = window[first + i + 1];
        set(row_a, target, first + i, scores.a);
        set(row_b, target, first + i, scores.b);
        scores.kld[first + i] = kld_of_rows(row_a, row_b);
      }
    });
  }

  Executor& a_;
  Executor& b_;
  size_t columns_;
  size_t chunk_ = 1;
  LogitsComparer comparer_;
  std::vector<float> logits_a_, logits_b_;
};

WindowScores scores_of(Side& side, std::span<const int32_t> ids, int64_t window) {
  return side.is_bundle() ? side.bundle().window_scores(window)
                          : score_window(side.executor(), ids);
}

/// Rows where the best token differs although the reference's lead is larger than the limit.
struct ArgmaxFlips {
  bool b_is_reference = false;
  uint64_t n = 0;
  uint64_t n_beyond_limit = 0;
  std::string first;  // of those beyond the limit

  void add(const PairedWindowScores& scores, int64_t window, const Policy& policy) {
    for (size_t row = 0; row < scores.a.argmax.size(); ++row) {
      if (scores.a.argmax[row] == scores.b.argmax[row]) continue;
      ++n;
      const float margin = (b_is_reference ? scores.b : scores.a).margin[row];
      if (!policy.max_logit_difference ||
          static_cast<double>(margin) <= *policy.max_logit_difference) {
        continue;
      }
      ++n_beyond_limit;
      if (!first.empty()) continue;
      first = fmt::format(
          "window {}, row {}: best token {} (margin {}) against {} (margin {})", window, row,
          scores.a.argmax[row], describe_figure(static_cast<double>(scores.a.margin[row])),
          scores.b.argmax[row], describe_figure(static_cast<double>(scores.b.margin[row])));
    }
  }
};

/// Window and position of a row of all windows, one after another; they may have other lengths.
std::pair<size_t, int64_t> place_of_row(const EvaluationWindows& windows, int64_t row) {
  size_t window = 0;
  while (row >= static_cast<int64_t>(windows.windows[window].size())) {
    row -= static_cast<int64_t>(windows.windows[window++].size());
  }
  return {window, row};
}

bool beyond(double size, const std::optional<double>& limit) { return limit && !(size <= *limit); }

void judge(const NllComparison& found, const ArgmaxFlips& flips, bool equal_bits,
           const Policy& policy, Check& check) {
  if (equal_bits) return;
  const auto [worst, window] = found.worst_window();
  if (policy.bitwise) {
    check.outcome = Outcome::kDifferent;
    if (check.details.empty()) {
      check.details.push_back(fmt::format("{} of {} rows differ; window {}: mean NLL differs by {}",
                                          found.n_rows_different, found.n_scored, window,
                                          describe_figure(worst)));
    }
    return;
  }
  if (beyond(worst, policy.max_window_nll_difference)) {
    check.details.push_back(fmt::format("window {}: mean NLL differs by {}, the limit is {}",
                                        window, describe_figure(worst),
                                        describe_figure(*policy.max_window_nll_difference)));
  }
  if (beyond(std::fabs(found.delta), policy.max_delta_nll)) {
    check.details.push_back(fmt::format("delta_nll is {}, the limit is {}",
                                        describe_figure(found.delta),
                                        describe_figure(*policy.max_delta_nll)));
  }
  if (found.kld && beyond(*found.kld, policy.max_kld)) {
    check.details.push_back(fmt::format("KLD is {}, the limit is {}", describe_figure(*found.kld),
                                        describe_figure(*policy.max_kld)));
  }
  if (flips.n_beyond_limit > 0) check.details.push_back(flips.first);
  const bool limited =
      policy.max_window_nll_difference || policy.max_delta_nll || (policy.max_kld && found.kld);
  if (!check.details.empty()) {
    check.outcome = Outcome::kDifferent;
  } else {
    check.outcome = limited ? Outcome::kWithin : Outcome::kReported;
  }
}

std::string summary_of(const NllComparison& found, const ArgmaxFlips& flips) {
  std::string text = fmt::format("mean NLL {:.6f} and {:.6f}, delta_nll {}", found.mean_a,
                                 found.mean_b, found.delta_interval.describe());
  if (found.kld) text += fmt::format(", KLD {}", found.kld_interval->describe());
  const auto [worst, window] = found.worst_window();
  text += fmt::format(
      ", same best token {:.4f} % ({} rows differ); largest window difference {} "
      "(window {})",
      100.0 * found.top1_agreement, flips.n, describe_figure(worst), window);
  return text;
}

}  // namespace

Check check_nll(Side& a, Side& b, const EvaluationWindows& windows, const Policy& policy,
                WorkMeter& meter) {
  NllComparer comparer;
  ArgmaxFlips flips{b.is_bundle() && !a.is_bundle(), 0, 0, {}};
  std::optional<PairScorer> pair;
  if (a.has_executor() && b.has_executor()) pair.emplace(a.executor(), b.executor());
  for (size_t i = 0; i < windows.windows.size(); ++i) {
    const auto& ids = windows.windows[i];
    meter.begin(fmt::format("evaluation window {} of {}", i + 1, windows.windows.size()),
                static_cast<double>(ids.size()));
    const auto number = static_cast<int64_t>(i);
    const PairedWindowScores scores =
        pair ? pair->score(ids)
             : PairedWindowScores{scores_of(a, ids, number), scores_of(b, ids, number), {}};
    comparer.add(scores);
    flips.add(scores, number, policy);
  }
  const NllComparison found = comparer.finish();

  Check check;
  check.name = "nll";
  bool equal_bits = found.n_rows_different == 0;
  check.data = windows.to_json();
  const Json figures = found.to_json();
  for (const auto& [key, value] : figures.as_object()) check.data.set(key, value);
  check.data.set("n_argmax_different", flips.n);
  check.data.set("n_argmax_different_beyond_limit", flips.n_beyond_limit);
  if (pair) {
    const LogitsComparison logits = pair->finish();
    equal_bits = equal_bits && logits.equal();
    if (policy.bitwise && !logits.equal()) {
      const auto [window, position] = place_of_row(windows, logits.first->row);
      check.details.push_back(
          fmt::format("window {}, position {}: {}", window, position, logits.first_difference()));
    }
    check.data.set("logits", logits.to_json());
  }
  judge(found, flips, equal_bits, policy, check);
  check.summary = equal_bits ? fmt::format(
                                   "{} windows, {} tokens scored: every bit is equal, mean "
                                   "NLL {:.6f}",
                                   found.n_windows, found.n_scored, found.mean_a)
                             : summary_of(found, flips);
  return check;
}

}  // namespace assay
