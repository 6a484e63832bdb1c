#include "verify/nll.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/core/sha256.h"
#include "runtime/ops/nll.h"
#include "verify/describe.h"
#include "verify/logits.h"
#include "verify/run_model.h"

namespace assay {
namespace {

/// Edges of the buckets: 0, 64, 128, 256, … doubling.
int64_t bucket_begin(size_t bucket) { return bucket == 0 ? 0 : int64_t{32} << bucket; }
int64_t bucket_end(size_t bucket) { return int64_t{64} << bucket; }

/// Two-sided 95 % quantile of Student's t: a table, then the Cornish–Fisher expansion of the normal
/// quantile (Abramowitz and Stegun 26.7.5; error below 1e-4 from 31 degrees on).
double student_quantile(int64_t degrees) {
  constexpr std::array<double, 30> kTable = {
      12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
      2.2010,  2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
      2.0796,  2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423};
  if (degrees <= static_cast<int64_t>(kTable.size())) {
    return kTable[static_cast<size_t>(degrees - 1)];
  }
  const double z = 1.959963984540054, n = static_cast<double>(degrees);
  const double z3 = z * z * z, z5 = z3 * z * z;
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n);
}

double ratio(double sum, int64_t n) { return n == 0 ? 0.0 : sum / static_cast<double>(n); }

Json json_of(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json json_of(const std::vector<double>& values) {
  Json json = Json::array();
  for (const double value : values) json.push(value);
  return json;
}

}  // namespace

int64_t EvaluationWindows::n_scored() const {
  int64_t n = 0;
  for (const auto& window : windows) n += static_cast<int64_t>(window.size()) - 1;
  return n;
}

std::string EvaluationWindows::sha256() const {
  std::vector<int32_t> all;
  for (const auto& window : windows) all.insert(all.end(), window.begin(), window.end());
  return sha256_of_token_ids(all);
}

Json EvaluationWindows::to_json() const {
  Json json = Json::object();
  json.set("n_windows", uint64_t{windows.size()});
  json.set("window_length", window_length);
  json.set("stride", window_length);
  json.set("first_scored_position", 1);
  json.set("n_scored", n_scored());
  json.set("n_text_tokens", n_text_tokens);
  json.set("n_unused_tokens", n_unused_tokens);
  json.set("bos", bos_id ? "overwrites the first id of each window" : "none");
  json.set("bos_id", bos_id ? Json(int64_t{*bos_id}) : Json(nullptr));
  json.set("text_token_ids_sha256", text_sha256.empty() ? Json(nullptr) : Json(text_sha256));
  json.set("window_token_ids_sha256", sha256());
  return json;
}

std::string EvaluationWindows::describe() const {
  return fmt::format(
      "{} windows of {} tokens, stride {}, first scored position 1, {} tokens scored, {}",
      windows.size(), window_length, window_length, n_scored(),
      bos_id ? fmt::format("BOS {} overwrites the first id of each window", *bos_id)
             : std::string("no BOS"));
}

EvaluationWindows cut_windows(std::span<const int32_t> token_ids, int64_t window_length,
                              int64_t n_windows, std::optional<int32_t> bos_id) {
  if (window_length < 2) {
    throw UsageError(fmt::format(
        "a window of {} tokens scores nothing: its length must be at least 2", window_length));
  }
  if (token_ids.size() < 2) {
    throw UsageError(fmt::format("the evaluation text has {} tokens; an NLL needs at least 2",
                                 token_ids.size()));
  }
  EvaluationWindows result;
  result.bos_id = bos_id;
  result.n_text_tokens = static_cast<int64_t>(token_ids.size());
  result.text_sha256 = sha256_of_token_ids(token_ids);
  result.window_length = std::min(window_length, result.n_text_tokens);
  const int64_t n_whole = result.n_text_tokens / result.window_length;
  const int64_t n = n_windows > 0 ? std::min(n_windows, n_whole) : n_whole;
  for (int64_t i = 0; i < n; ++i) {
    const auto ids = token_ids.subspan(static_cast<size_t>(i * result.window_length),
                                       static_cast<size_t>(result.window_length));
    auto& window = result.windows.emplace_back(ids.begin(), ids.end());
    if (bos_id) window.front() = *bos_id;
  }
  result.n_unused_tokens = result.n_text_tokens - n * result.window_length;
  return result;
}

WindowScores score_window(Executor& executor, std::span<const int32_t> window) {
  const size_t n_rows = window.size() - 1;
  WindowScores scores{std::vector<float>(n_rows), std::vector<int32_t>(n_rows),
                      std::vector<float>(n_rows)};
  const auto columns = static_cast<size_t>(executor.program().spec.vocab_size);
  const auto score = [&](int64_t first_row, std::span<const float> logits) {
    const auto first = static_cast<size_t>(first_row);
    const size_t n = std::min(logits.size() / columns, n_rows - std::min(n_rows, first));
    parallel_for(static_cast<int64_t>(n), 8, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const auto row = logits.subspan(i * columns, columns);
        const Margin margin = margin_of(row);
        scores.nll[first + i] = nll(row, window[first + i + 1]);
        scores.argmax[first + i] = margin.best;
        scores.margin[first + i] = margin.margin;
      }
    });
  };
  run_all_positions(executor, window, 0, score);
  return scores;
}

std::string IntervalMean::describe() const {
  if (!half_width) return describe_figure(mean);
  return fmt::format("{} ± {}", describe_figure(mean), describe_figure(*half_width));
}

Json IntervalMean::to_json() const {
  Json json = Json::object();
  json.set("mean", mean);
  json.set("half_width_95", json_of(half_width));
  return json;
}

IntervalMean interval_mean(std::span<const double> values) {
  IntervalMean result;
  const auto n = static_cast<int64_t>(values.size());
  double sum = 0.0;
  for (const double value : values) sum += value;
  result.mean = ratio(sum, n);
  if (n < 2) return result;
  double squares = 0.0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  const double variance = squares / static_cast<double>(n - 1);
  result.half_width = student_quantile(n - 1) * std::sqrt(variance / static_cast<double>(n));
  return result;
}

std::string NllBucket::name() const { return fmt::format("{}-{}", begin, end); }

double nll_sum(std::span<const float> nll) {
  double sum = 0.0;
  for (const float value : nll) sum += static_cast<double>(value);
  return sum;
}

void NllComparer::add_bucket(const PairedWindowScores& window, size_t bucket, size_t begin,
                             size_t end) {
  if (buckets_.size() <= bucket) buckets_.resize(bucket + 1);
  BucketSums chain;  // of this window alone; then added to the others
  for (size_t row = begin; row < end; ++row) {
    const auto a = static_cast<double>(window.a.nll[row]);
    const auto b = static_cast<double>(window.b.nll[row]);
    chain.a += a;
    chain.b += b;
    chain.delta += b - a;
    if (!window.kld.empty()) {
      chain.kld += window.kld[row];
      kld_max_ = std::max(kld_max_, window.kld[row]);
    }
    chain.n_agree += window.a.argmax[row] == window.b.argmax[row] ? 1 : 0;
    if (std::bit_cast<uint32_t>(window.a.nll[row]) != std::bit_cast<uint32_t>(window.b.nll[row])) {
      ++result_.n_rows_different;
    }
  }
  BucketSums& total = buckets_[bucket];
  total.n += static_cast<int64_t>(end - begin);
  total.n_agree += chain.n_agree;
  total.a += chain.a;
  total.b += chain.b;
  total.delta += chain.delta;
  total.kld += chain.kld;
  n_agree_ += chain.n_agree;
}

void NllComparer::add(const PairedWindowScores& window) {
  const size_t n = window.a.nll.size();
  if (window.b.nll.size() != n || (!window.kld.empty() && window.kld.size() != n)) {
    throw ShapeError(
        fmt::format("comparison of NLL: windows of {} and {} rows", n, window.b.nll.size()));
  }
  double delta = 0.0, kld = 0.0;
  for (size_t row = 0; row < n; ++row) {
    delta += static_cast<double>(window.b.nll[row]) - static_cast<double>(window.a.nll[row]);
    if (!window.kld.empty()) kld += window.kld[row];
  }
  for (size_t bucket = 0; bucket_begin(bucket) < static_cast<int64_t>(n); ++bucket) {
    add_bucket(window, bucket, static_cast<size_t>(bucket_begin(bucket)),
               std::min(n, static_cast<size_t>(bucket_end(bucket))));
  }
  const double sum_a = nll_sum(window.a.nll);
  result_.nll_sum_a += sum_a;
  result_.nll_sum_b += nll_sum(window.b.nll);
  delta_sum_ += delta;
  kld_sum_ += kld;
  has_kld_ = has_kld_ && !window.kld.empty();
  window_kld_.push_back(ratio(kld, static_cast<int64_t>(n)));
  result_.window_sum_a.push_back(sum_a);
  result_.window_delta.push_back(ratio(delta, static_cast<int64_t>(n)));
  result_.n_scored += static_cast<int64_t>(n);
  ++result_.n_windows;
}

NllComparison NllComparer::finish() {
  NllComparison& r = result_;
  r.mean_a = ratio(r.nll_sum_a, r.n_scored);
  r.mean_b = ratio(r.nll_sum_b, r.n_scored);
  r.delta = ratio(delta_sum_, r.n_scored);
  r.delta_interval = interval_mean(r.window_delta);
  r.top1_agreement = ratio(static_cast<double>(n_agree_), r.n_scored);
  if (has_kld_ && r.n_windows > 0) {
    r.kld = ratio(kld_sum_, r.n_scored);
    r.window_kld = std::move(window_kld_);
    r.kld_interval = interval_mean(r.window_kld);
    r.kld_max = kld_max_;
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const BucketSums& sums = buckets_[i];
    NllBucket bucket{bucket_begin(i),
                     bucket_end(i),
                     sums.n,
                     ratio(sums.a, sums.n),
                     ratio(sums.b, sums.n),
                     ratio(sums.delta, sums.n),
                     std::nullopt,
                     ratio(static_cast<double>(sums.n_agree), sums.n)};
    if (r.kld) bucket.kld = ratio(sums.kld, sums.n);
    r.buckets.push_back(bucket);
  }
  return std::move(r);
}

std::pair<double, int64_t> NllComparison::worst_window() const {
  std::pair<double, int64_t> worst{0.0, 0};
  for (size_t i = 0; i < window_delta.size(); ++i) {
    const double size = std::fabs(window_delta[i]);
    if (std::isnan(size)) return {size, static_cast<int64_t>(i)};
    if (size > worst.first) worst = {size, static_cast<int64_t>(i)};
  }
  return worst;
}

Json NllComparison::to_json() const {
  Json json = Json::object();
  json.set("n_windows", n_windows);
  json.set("n_scored", n_scored);
  json.set("nll_sum_a", nll_sum_a);
  json.set("nll_sum_b", nll_sum_b);
  json.set("mean_nll_a", mean_a);
  json.set("mean_nll_b", mean_b);
  json.set("delta_nll", delta);
  json.set("delta_nll_windows", delta_interval.to_json());
  json.set("kld", json_of(kld));
  json.set("kld_windows", kld_interval ? kld_interval->to_json() : Json(nullptr));
  json.set("kld_max", json_of(kld_max));
  json.set("top1_agreement", top1_agreement);
  json.set("n_rows_different", n_rows_different);
  Json list = Json::array();
  for (const NllBucket& bucket : buckets) {
    Json item = Json::object();
    item.set("rows", bucket.name());
    item.set("n_scored", bucket.n_scored);
    item.set("mean_nll_a", bucket.mean_a);
    item.set("mean_nll_b", bucket.mean_b);
    item.set("delta_nll", bucket.delta);
    item.set("kld", json_of(bucket.kld));
    item.set("top1_agreement", bucket.top1_agreement);
    list.push(std::move(item));
  }
  json.set("buckets", std::move(list));
  json.set("window_nll_sum_a", json_of(window_sum_a));
  json.set("window_delta_nll", json_of(window_delta));
  json.set("window_kld", window_kld.empty() ? Json(nullptr) : json_of(window_kld));
  return json;
}

}  // namespace assay
