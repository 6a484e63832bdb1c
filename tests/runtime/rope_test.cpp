#include "runtime/ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

RopeSpec plain(int rotary_dims, double theta) {
  RopeSpec spec;
  spec.rotary_dims = rotary_dims;
  spec.theta = theta;
  return spec;
}

RopeSpec llama3(int64_t original_context) {
  RopeSpec spec = plain(64, 500000.0);
  spec.kind = RopeSpec::Kind::kLlama3;
  spec.factor = 8.0;
  spec.low_freq_factor = 1.0;
  spec.high_freq_factor = 4.0;
  spec.original_context = original_context;
  return spec;
}

RopeSpec yarn() {
  RopeSpec spec = plain(128, 1e6);
  spec.kind = RopeSpec::Kind::kYarn;
  spec.factor = 4.0;
  spec.original_context = 32768;
  spec.attention_factor = 0.1 * std::log(4.0) + 1.0;
  return spec;
}

/// transformers' modeling_rope_utils.py in fp64 with libm.
double exact_inv_freq(const RopeSpec& spec, int i) {
  const double inv = std::pow(spec.theta, -2.0 * i / spec.rotary_dims);
  const auto L = static_cast<double>(spec.original_context);
  const double two_pi = 2.0 * std::numbers::pi;
  switch (spec.kind) {
    case RopeSpec::Kind::kDefault:
      return inv;
    case RopeSpec::Kind::kLinear:
      return inv / spec.factor;
    case RopeSpec::Kind::kProportional:
      return i < spec.n_rotated_pairs ? inv / spec.factor : 0.0;
    case RopeSpec::Kind::kLlama3: {
      const double wavelength = two_pi / inv;
      if (wavelength > L / spec.low_freq_factor) return inv / spec.factor;
      if (wavelength < L / spec.high_freq_factor) return inv;
      const double s =
          (L / wavelength - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor);
      return (1.0 - s) * inv / spec.factor + s * inv;
    }
    case RopeSpec::Kind::kYarn: {
      const auto dimension = [&](double n) {
        return spec.rotary_dims * std::log(L / (two_pi * n)) / (2.0 * std::log(spec.theta));
      };
      double low = dimension(spec.beta_fast), high = dimension(spec.beta_slow);
      if (spec.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
      }
      low = std::max(low, 0.0);
      high = std::min(high, spec.rotary_dims - 1.0);
      if (low == high) high += 0.001;  // as there, so that nothing is divided by 0
      const double ramp = std::min(1.0, std::max(0.0, (i - low) / (high - low)));
      return inv / spec.factor * ramp + inv * (1.0 - ramp);
    }
  }
  return 0.0;
}

std::vector<RopeSpec> all_kinds() {
  RopeSpec linear = plain(96, 10000.0);
  linear.kind = RopeSpec::Kind::kLinear;
  linear.factor = 2.5;
  RopeSpec smooth_yarn = yarn();
  smooth_yarn.truncate = false;
  RopeSpec short_yarn = yarn();  // its bounds lie before the first pair, and meet there
  short_yarn.original_context = 6;
  RopeSpec clamped_yarn = smooth_yarn;  // one bound before it
  clamped_yarn.original_context = 128;
  RopeSpec proportional = plain(256, 1e6);
  proportional.kind = RopeSpec::Kind::kProportional;
  proportional.n_rotated_pairs = 32;
  return {plain(64, 10000.0), plain(2, 500000.0), proportional, linear,
          llama3(512),        llama3(8192),       yarn(),       smooth_yarn,
          short_yarn,         clamped_yarn};
}

TEST(RopeTable, InverseFrequenciesFollowTheFormulaOfEveryKind) {
  for (const RopeSpec& spec : all_kinds()) {
    const RopeTable table = make_rope_table(spec, 1);

    ASSERT_EQ(table.inv_freq.size(), static_cast<size_t>(spec.rotary_dims / 2));
    for (int i = 0; i < spec.rotary_dims / 2; ++i) {
      const double exact = exact_inv_freq(spec, i);
      EXPECT_NEAR(table.inv_freq[static_cast<size_t>(i)], exact, 1e-6 * exact) << i;
    }
  }
}

TEST(RopeTable, Case_B52_LongPositionsOfEveryScalingAreRight) {
  for (const RopeSpec& spec : all_kinds()) {
    const RopeTable table = make_rope_table(spec, 10001);
    const double factor = spec.kind == RopeSpec::Kind::kYarn ? spec.attention_factor : 1.0;
    const int pairs = spec.rotary_dims / 2;

    for (const int position : {0, 1, 8191, 10000}) {
      for (int i = 0; i < pairs; ++i) {
        // The angle is an fp32 product by definition; its rounding is not an error of the table.
        const float angle = static_cast<float>(position) * table.inv_freq[static_cast<size_t>(i)];
        const auto at = static_cast<size_t>(position * pairs + i);
        EXPECT_NEAR(table.cos[at], factor * std::cos(double{angle}), 2e-7);
        EXPECT_NEAR(table.sin[at], factor * std::sin(double{angle}), 2e-7);
      }
    }
  }
}

TEST(RopeTable, Case_B52_Llama3FactorsChangeTheSlowPairsOnly) {
  const RopeTable scaled = make_rope_table(llama3(8192), 1);
  const RopeTable unscaled = make_rope_table(plain(64, 500000.0), 1);

  EXPECT_EQ(scaled.inv_freq.front(), unscaled.inv_freq.front());
  EXPECT_EQ(scaled.inv_freq.back(), unscaled.inv_freq.back() / 8.0f);
}

// Golden values: made by this program after the logits of llama-tiny, whose table it is, had been
// compared with the references. They change only if the arithmetic does.
TEST(RopeTable, HashesOfTheBundledModelsTableAreGolden) {
  EXPECT_EQ(rope_inv_freq_sha256(llama3(512)),
            "1a037c88218ea1fc46c247f01d609dd67509136788738e02909a0b8295a5ed55");
  EXPECT_EQ(rope_table_sha256(llama3(512)),
            "6d70b72954f87c5edae12ac7e10ce80158c27046c290066431e30b8411efd000");
}

TEST(RopeApply, RotatesPairsHalfAHeadApartAndLeavesTheRest) {
  RopeSpec spec = plain(4, 10000.0);
  const RopeTable table = make_rope_table(spec, 8);
  std::vector<float> x = test::Random(1).reals(2 * 6, 1.0f);  // 2 heads of 6, of which 4 rotate
  const std::vector<float> before = x;

  rope_apply(table, 7, x.data(), 2, 6);

  for (size_t head = 0; head < 2; ++head) {
    for (size_t i = 0; i < 2; ++i) {
      const float c = table.cos[7 * 2 + i], s = table.sin[7 * 2 + i];
      const float x1 = before[head * 6 + i], x2 = before[head * 6 + i + 2];
      EXPECT_TRUE(test::bits_equal(x[head * 6 + i], x1 * c - x2 * s));
      EXPECT_TRUE(test::bits_equal(x[head * 6 + i + 2], x2 * c + x1 * s));
    }
    EXPECT_EQ(x[head * 6 + 4], before[head * 6 + 4]);
    EXPECT_EQ(x[head * 6 + 5], before[head * 6 + 5]);
  }
}

TEST(RopeApply, PositionZeroChangesNothing) {
  const RopeTable table = make_rope_table(plain(64, 10000.0), 1);
  std::vector<float> x = test::Random(2).reals(64, 1.0f);
  const std::vector<float> before = x;

  rope_apply(table, 0, x.data(), 1, 64);

  EXPECT_TRUE(test::bits_equal(x, before));
}

}  // namespace
}  // namespace assay
