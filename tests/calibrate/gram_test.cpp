#include "calibrate/gram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "tests/calibrate/every_isa.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::bits_equal;
using test::Random;
using test::with_every_isa;

// Values of a stream as block int16 per channel (arithmetic.md §9).
struct Quantized {
  std::vector<int> exponents;  // (n)
  std::vector<int64_t> q;      // (n_tokens, n)
};

Quantized quantize(const std::vector<float>& x, int64_t n_tokens, int64_t n) {
  Quantized out{std::vector<int>(static_cast<size_t>(n)), std::vector<int64_t>(x.size())};
  for (int64_t j = 0; j < n; ++j) {
    float most = 0.0f;
    for (int64_t t = 0; t < n_tokens; ++t) {
      most = std::max(most, std::fabs(x[static_cast<size_t>(t * n + j)]));
    }
    int exponent = -100;
    while (most > 32639.0f * std::ldexp(1.0f, exponent)) ++exponent;
    out.exponents[static_cast<size_t>(j)] = exponent;
    for (int64_t t = 0; t < n_tokens; ++t) {
      const auto i = static_cast<size_t>(t * n + j);
      out.q[i] = static_cast<int64_t>(std::nearbyint(x[i] / std::ldexp(1.0f, exponent)));
    }
  }
  return out;
}

// Word for word, in 64-bit integers.
std::vector<double> reference_cross(const std::vector<float>& x, int64_t n,
                                    const std::vector<float>& y, int64_t m, int64_t n_tokens) {
  const Quantized a = quantize(x, n_tokens, n);
  const Quantized b = quantize(y, n_tokens, m);
  std::vector<double> out(static_cast<size_t>(n * m));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      int64_t sum = 0;
      for (int64_t t = 0; t < n_tokens; ++t) {
        sum += a.q[static_cast<size_t>(t * n + i)] * b.q[static_cast<size_t>(t * m + j)];
      }
      out[static_cast<size_t>(i * m + j)] = static_cast<double>(sum) *
                                            std::ldexp(1.0, a.exponents[static_cast<size_t>(i)]) *
                                            std::ldexp(1.0, b.exponents[static_cast<size_t>(j)]);
    }
  }
  return out;
}

std::vector<double> reference_hessian(const std::vector<float>& x, int64_t n_tokens, int64_t n) {
  return reference_cross(x, n, x, n, n_tokens);
}

ChannelMaxima maxima_of(const std::vector<float>& x, int64_t n) {
  ChannelMaxima maxima(n);
  maxima.add(x.data(), static_cast<int64_t>(x.size()) / n);
  return maxima;
}

CrossProduct cross_of(const std::vector<float>& x, int64_t n, const std::vector<float>& y,
                      int64_t m, int64_t step) {
  const int64_t n_tokens = static_cast<int64_t>(x.size()) / n;
  PackedTokens columns(maxima_of(y, m).exponents());
  CrossGram gram(maxima_of(x, n).exponents(), columns);
  step = std::min(step, PackedTokens::kMostTokens);
  for (int64_t t = 0; t < n_tokens; t += step) {
    columns.pack(y.data() + t * m, std::min(step, n_tokens - t));
    gram.add(x.data() + t * n);
  }
  return gram.finish();
}

// The tokens in calls of `step`.
Hessian gram_of(const std::vector<float>& x, int64_t n, int64_t step) {
  const int64_t n_tokens = static_cast<int64_t>(x.size()) / n;
  ChannelMaxima maxima(n);
  for (int64_t t = 0; t < n_tokens; t += step) {
    maxima.add(x.data() + t * n, std::min(step, n_tokens - t));
  }
  Gram gram(maxima.exponents());
  for (int64_t t = 0; t < n_tokens; t += step) {
    gram.add(x.data() + t * n, std::min(step, n_tokens - t));
  }
  return gram.finish();
}

// bell: sums that fit 32 bits; flat: every product the largest there is, both signs; mixed: flat
// channels among bell ones, and outliers in a few tokens.
enum class Values { kBell, kFlat, kMixed };

std::vector<float> make_inputs(Values values, int64_t n_tokens, int64_t n) {
  std::vector<float> x = test::random_floats(static_cast<size_t>(n_tokens * n), 7);
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t j = 0; j < n; ++j) {
      float& value = x[static_cast<size_t>(t * n + j)];
      const bool flat = values == Values::kFlat || (values == Values::kMixed && j % 5 == 1);
      if (flat) value = (t + j) % 3 == 0 ? -32639.0f : 32639.0f;
      if (values == Values::kMixed && t % 70 == 3) value *= 100.0f;
      if (j % 7 == 6) value *= 0x1p-90f;
    }
  }
  return x;
}

class GramShapes : public testing::TestWithParam<std::tuple<int64_t, int64_t, Values>> {};

TEST_P(GramShapes, EqualsPlainIntegerSums) {
  const auto [n_tokens, n, values] = GetParam();
  const std::vector<float> x = make_inputs(values, n_tokens, n);
  const std::vector<double> expected = reference_hessian(x, n_tokens, n);

  with_every_isa([&, n_tokens = n_tokens, n = n] {
    const Hessian actual = gram_of(x, n, n_tokens);

    EXPECT_EQ(actual.n_tokens, n_tokens);
    EXPECT_TRUE(bits_equal(actual.values, expected));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Awkward, GramShapes,
    testing::Combine(testing::Values(1, 2, 63, 64, 65, 257, 1100), testing::Values(1, 31, 33, 100),
                     testing::Values(Values::kBell, Values::kFlat, Values::kMixed)));

TEST_P(GramShapes, CrossEqualsPlainIntegerSums) {
  const auto [n_tokens, n, values] = GetParam();
  const int64_t m = 70;
  const std::vector<float> x = make_inputs(values, n_tokens, n);
  std::vector<float> y = make_inputs(Values::kMixed, n_tokens, m);
  for (float& value : y) value *= 0.3f;
  const std::vector<double> expected = reference_cross(x, n, y, m, n_tokens);

  with_every_isa([&, n_tokens = n_tokens, n = n] {
    const CrossProduct actual = cross_of(x, n, y, m, n_tokens);

    EXPECT_EQ(actual.n_rows, n);
    EXPECT_EQ(actual.n_columns, m);
    EXPECT_TRUE(bits_equal(actual.values, expected));
  });
}

TEST(CrossGram, OfAStreamWithItselfIsTheGram) {
  const std::vector<float> x = make_inputs(Values::kMixed, 300, 65);

  EXPECT_TRUE(bits_equal(cross_of(x, 65, x, 65, 300).values, gram_of(x, 65, 300).values));
}

TEST(CrossGram, DoesNotDependOnThreadsOrOnTheSplitIntoCalls) {
  const std::vector<float> x = make_inputs(Values::kMixed, 700, 96);
  const std::vector<float> y = make_inputs(Values::kBell, 700, 40);
  const CrossProduct expected = cross_of(x, 96, y, 40, 700);

  const int threads_before = n_threads();
  for (const int threads : {1, 4}) {
    set_n_threads(threads);
    for (const int64_t step : {threads == 1 ? 1 : 250, 300}) {
      EXPECT_TRUE(bits_equal(cross_of(x, 96, y, 40, step).values, expected.values));
    }
  }
  set_n_threads(threads_before);
}

TEST(Gram, DoesNotDependOnThreadsOrOnTheSplitIntoCalls) {
  const std::vector<float> x = make_inputs(Values::kMixed, 700, 96);
  const Hessian expected = gram_of(x, 96, 700);

  const int threads_before = n_threads();
  for (const int threads : {1, 2, 4}) {
    set_n_threads(threads);
    for (const int64_t step : {threads == 1 ? 1 : 250, 64, 300}) {
      EXPECT_TRUE(bits_equal(gram_of(x, 96, step).values, expected.values));
    }
  }
  set_n_threads(threads_before);
}

// A short sample beside a long one: there is no padding that could enter the sums.
TEST(Gram, Case_B42_SamplesOfDifferentLengthsAddUpWithoutPadding) {
  const std::vector<float> both = make_inputs(Values::kBell, 14, 40);
  ChannelMaxima maxima(40);
  maxima.add(both.data(), 14);

  Gram apart(maxima.exponents());
  apart.add(both.data() + 5 * 40, 9);
  apart.add(both.data(), 0);
  apart.add(both.data(), 5);

  EXPECT_TRUE(bits_equal(apart.finish().values, gram_of(both, 40, 14).values));
}

TEST(Gram, Case_B41_NoTokensAndASingleTokenGiveFiniteSums) {
  const std::vector<float> x = make_inputs(Values::kBell, 1, 40);
  ChannelMaxima maxima(40);
  maxima.add(x.data(), 1);

  Gram none(maxima.exponents()), one(maxima.exponents());
  none.add(x.data(), 0);
  one.add(x.data(), 1);

  EXPECT_THAT(none.finish().values, testing::Each(0.0));
  const Hessian single = one.finish();
  EXPECT_THAT(single.values,
              testing::Each(testing::Truly([](auto value) { return std::isfinite(value); })));
  EXPECT_GT(single.values[0], 0.0);
}

TEST(Gram, RefusesMoreTokensThanSumsAreExactFor) {
  const std::vector<int> exponents(1, 0);
  Gram gram(exponents);
  const std::vector<float> x(4096, 1.0f);
  gram.add(x.data(), 4096);

  EXPECT_THROW(gram.add(x.data(), kMaxGramTokens - 4095), UnsupportedError);
}

TEST(ChannelMaxima, FindsNanInfinityAndValuesOutOfRange) {
  const std::vector<float> bad = {std::numeric_limits<float>::quiet_NaN(),
                                  -std::numeric_limits<float>::infinity(), 0x1p116f};
  for (const float value : bad) {
    std::vector<float> x(12, 1.0f);
    x[7] = value;
    ChannelMaxima maxima(4);

    maxima.add(x.data(), 3);

    EXPECT_EQ(maxima.find_fault(), 3);
  }
}

TEST(ChannelMaxima, GivesTheSmallestExponentThatHoldsEveryValue) {
  const std::vector<float> x = {0.0f, 32639.0f, -32640.0f, 1.0f, -32638.0f, 0.0f};
  ChannelMaxima maxima(3);

  maxima.add(x.data(), 2);

  EXPECT_EQ(maxima.find_fault(), -1);
  EXPECT_EQ(maxima.maximum(0), 1.0f);
  EXPECT_EQ(maxima.exponents(), (std::vector<int>{-14, 0, 1}));
}

}  // namespace
}  // namespace assay
