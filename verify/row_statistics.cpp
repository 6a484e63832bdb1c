#include "verify/row_statistics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "convert/core/error.h"
#include "convert/core/math64.h"

namespace assay {
namespace {

constexpr size_t kLanes = 8;
constexpr double kRoundingShift = 6755399441055744.0;  // 1.5·2^52: adding it rounds to an integer

/// e^x for x ≤ 0, relative error below 4e-16 above −700 and e^−700 below it. Plain IEEE steps.
double exp_fp64(double x) {
  x = x < -700.0 ? -700.0 : x;
  const double shifted = x * 0x1.71547652b82fep+0 + kRoundingShift;
  const double n = shifted - kRoundingShift;
  const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;  // ln 2 in two parts
  double p = 1.0 / 6227020800.0;                                           // 1/13!
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const int64_t whole = std::bit_cast<int64_t>(shifted) - std::bit_cast<int64_t>(kRoundingShift);
  return p * std::bit_cast<double>((whole + 1023) << 52);
}

double sum_of(const std::array<double, kLanes>& lanes) {
  double sum = lanes[0];
  for (size_t lane = 1; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

/// Σ exp(l − maximum); with `b`, also Σ exp(l − maximum)·(l − b).
struct Sums {
  double z = 0.0;
  double weighted = 0.0;
};

Sums sums_of_row(std::span<const float> a, std::span<const float> b, double maximum) {
  std::array<double, kLanes> z{}, weighted{};
  const auto add = [&](size_t i, size_t lane) {
    const auto value = static_cast<double>(a[i]);
    const double e = exp_fp64(value - maximum);
    z[lane] += e;
    if (!b.empty()) weighted[lane] += e * (value - static_cast<double>(b[i]));
  };
  size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (size_t lane = 0; i < a.size(); ++i, ++lane) add(i, lane);
  return {sum_of(z), sum_of(weighted)};
}

}  // namespace

double log_sum_exp_fp64(std::span<const float> logits) {
  ASSAY_CHECK(!logits.empty());
  const auto maximum = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  return maximum + log64(sums_of_row(logits, {}, maximum).z);
}

double perplexity(double mean_nll) { return 1.0 / exp_fp64(-mean_nll); }

double kld_of_rows(std::span<const float> a, std::span<const float> b) {
  ASSAY_CHECK(!a.empty() && a.size() == b.size());
  const auto maximum = static_cast<double>(*std::max_element(a.begin(), a.end()));
  const Sums sums = sums_of_row(a, b, maximum);
  const double lse_a = maximum + log64(sums.z);
  return std::max(0.0, sums.weighted / sums.z - (lse_a - log_sum_exp_fp64(b)));
}

}  // namespace assay
