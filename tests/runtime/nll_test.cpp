#include "runtime/ops/nll.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/ops/elementwise.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::bits_equal;
using test::Random;

TEST(Argmax, LowestIdWinsATie) {
  const std::vector<float> logits = {-1.0f, 3.0f, 0.0f, 3.0f, -0.0f};

  EXPECT_EQ(argmax(logits), 1);
  EXPECT_EQ(argmax(std::vector<float>{-0.0f, 0.0f}), 0);
  EXPECT_EQ(argmax(std::vector<float>{-3.0f}), 0);
}

TEST(Nll, EqualsLogSoftmaxInFp64) {
  Random random(1);
  for (const size_t n : {1u, 2u, 31u, 257u, 8192u}) {
    const std::vector<float> logits = random.reals(n, 20.0f);
    double sum = 0.0;
    for (const float l : logits) sum += std::exp(double{l});
    for (size_t t = 0; t < n; t += 1 + n / 7) {
      const double exact = std::log(sum) - logits[t];

      EXPECT_NEAR(nll(logits, static_cast<int32_t>(t)), exact, 1e-5);
    }
  }
}

TEST(Nll, OfACertainTokenIsZero) {
  std::vector<float> logits(100, -200.0f);
  logits[17] = 5.0f;

  EXPECT_TRUE(bits_equal(nll(logits, 17), 0.0f));
}

TEST(Nll, UsesTheSameSumAsTheReference) {
  const std::vector<float> logits = Random(2).reals(8192, 15.0f);

  const auto [max, log_sum] = log_sum_exp(logits);
  const auto reference = log_sum_exp_reference(logits);

  EXPECT_TRUE(bits_equal(max, reference.max));
  EXPECT_TRUE(bits_equal(log_sum, reference.log_sum));
}

TEST(SwiGlu, EqualsTheFormulaAndTheReferenceBitForBit) {
  Random random(3);
  for (const int64_t n : {1, 31, 32, 33, 768}) {
    std::vector<float> gate = random.reals(static_cast<size_t>(n), 30.0f);
    const std::vector<float> up = random.reals(static_cast<size_t>(n), 3.0f);
    gate[0] = -120.0f;
    std::vector<float> out(gate.size()), reference(gate.size());

    swiglu(gate.data(), up.data(), n, out.data());
    swiglu_reference(gate.data(), up.data(), n, reference.data());

    EXPECT_TRUE(bits_equal(out, reference));
    for (size_t i = 0; i < out.size(); ++i) {
      const double exact = gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i];
      EXPECT_NEAR(out[i], exact, 1e-6 * std::max(1.0, std::fabs(exact)));
    }
  }
}

TEST(FindNotFinite, ReportsTheFirstIndex) {
  std::vector<float> x(50, 1.0f);
  EXPECT_EQ(find_not_finite(x.data(), 50), -1);
  x[33] = NAN;
  x[40] = INFINITY;

  EXPECT_EQ(find_not_finite(x.data(), 50), 33);
}

}  // namespace
}  // namespace assay
