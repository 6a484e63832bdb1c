#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "convert/core/json.h"
#include "runtime/executor.h"

namespace assay {

/// Token windows of an evaluation text, as they are fed.
struct EvaluationWindows {
  std::vector<std::vector<int32_t>> windows;
  int64_t window_length = 0;      // tokens of every window but a short only one; also the stride
  std::optional<int32_t> bos_id;  // overwrites the first id of each window; empty: nothing does
  int64_t n_text_tokens = 0;      // of the whole text, as encoded; 0: not known
  int64_t n_unused_tokens = 0;    // of the text, after the last window
  std::string text_sha256;        // of the text's ids (LE64); empty: not known

  /// Tokens that get an NLL: all but the first of each window.
  int64_t n_scored() const;
  /// SHA-256 of all windows' ids, one after another (LE64).
  std::string sha256() const;
  /// Window, stride, first scored position, counts, BOS rule, hashes (case B79).
  Json to_json() const;
  /// The same in one sentence.
  std::string describe() const;
};

/// Cuts ids into consecutive windows without overlap; a rest shorter than a window stays unused,
/// unless there is no whole window: then the text is the only, shorter one. `n_windows` 0: all.
/// With `bos_id` the first id of every window is overwritten by it. Throws UsageError for fewer
/// than two tokens or a window shorter than two.
EvaluationWindows cut_windows(std::span<const int32_t> token_ids, int64_t window_length,
                              int64_t n_windows, std::optional<int32_t> bos_id);

/// Scores of one window. Row r (0 … length − 2) is about token r + 1 given tokens 0 … r.
struct WindowScores {
  std::vector<float> nll;       // nats
  std::vector<int32_t> argmax;  // best id
  std::vector<float> margin;    // largest minus second largest logit
};
WindowScores score_window(Executor& executor, std::span<const int32_t> window);

/// Two models on one window. KLD is of A's distribution against B's.
struct PairedWindowScores {
  WindowScores a, b;
  std::vector<double> kld;  // nats, per row; empty: not known
};

/// Mean over windows with the half-width of its 95 % interval (Student, n − 1 degrees of freedom);
/// the half-width is empty for fewer than two windows.
struct IntervalMean {
  double mean = 0.0;
  std::optional<double> half_width;

  std::string describe() const;  // "0.0123 ± 0.0012"
  Json to_json() const;
};
/// `values`: one per window; means are weighted equally.
IntervalMean interval_mean(std::span<const double> values);

/// Rows [begin, end) of all windows.
struct NllBucket {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t n_scored = 0;
  double mean_a = 0.0;
  double mean_b = 0.0;
  double delta = 0.0;  // mean of B − A
  std::optional<double> kld;
  double top1_agreement = 0.0;  // share of rows with the same argmax

  std::string name() const;  // "0-64", as in the reference bundles
};

/// The figures of two models over the same windows. Sums are fp64: one chain per window in token
/// order, then one chain over the windows.
struct NllComparison {
  int64_t n_windows = 0;
  int64_t n_scored = 0;
  double nll_sum_a = 0.0, nll_sum_b = 0.0;
  double mean_a = 0.0, mean_b = 0.0;  // nats per token
  double delta = 0.0;                 // mean_b − mean_a, summed from the differences
  IntervalMean delta_interval;        // over windows, paired
  std::vector<double> window_sum_a;   // per window: NLL sum of A
  std::vector<double> window_delta;   // per window: mean of B − A
  std::vector<double> window_kld;     // per window, mean over tokens; empty: not known
  std::optional<double> kld;          // mean over tokens
  std::optional<IntervalMean> kld_interval;
  std::optional<double> kld_max;
  double top1_agreement = 0.0;
  uint64_t n_rows_different = 0;  // rows whose NLL differs in bits
  std::vector<NllBucket> buckets;

  /// Largest |window_delta| and where; NaN counts as the largest. 0 for no windows.
  std::pair<double, int64_t> worst_window() const;
  Json to_json() const;
};

/// Adds up windows in order.
class NllComparer {
 public:
  /// Throws ShapeError if the sides have other numbers of rows.
  void add(const PairedWindowScores& window);
  NllComparison finish();

 private:
  struct BucketSums {
    int64_t n = 0;
    int64_t n_agree = 0;
    double a = 0.0, b = 0.0, delta = 0.0, kld = 0.0;
  };
  void add_bucket(const PairedWindowScores& window, size_t bucket, size_t begin, size_t end);
  NllComparison result_;
  std::vector<BucketSums> buckets_;
  std::vector<double> window_kld_;
  double delta_sum_ = 0.0, kld_sum_ = 0.0, kld_max_ = 0.0;
  int64_t n_agree_ = 0;
  bool has_kld_ = true;
};

/// Mean of an NLL list the canonical way: an fp64 chain in token order.
double nll_sum(std::span<const float> nll);

}  // namespace assay
