#include "runtime/ops/vector_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "convert/core/dtype.h"
#include "convert/core/isa.h"
#include "runtime/math.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/block_int16.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/kv_write.h"
#include "runtime/ops/nll.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/ops/rope.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::bits_equal;
using test::Random;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Each test runs with one instruction set forced and compares with the references.
class VectorKernelsOn : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > best_isa()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
    force_isa(GetParam());
  }
  void TearDown() override { force_isa(best_isa()); }
};

std::string isa_test_name(const testing::TestParamInfo<Isa>& info) {
  return std::string(isa_name(info.param));
}

INSTANTIATE_TEST_SUITE_P(Isas, VectorKernelsOn, testing::Values(Isa::kAvx2, Isa::kAvx512),
                         isa_test_name);

std::vector<int64_t> awkward_sizes() {
  std::vector<int64_t> sizes;
  for (int64_t n = 1; n <= 70; ++n) sizes.push_back(n);
  for (const int64_t n : {127, 128, 129, 255, 256, 257, 300, 511, 512, 513, 2048, 2051, 5000}) {
    sizes.push_back(n);
  }
  return sizes;
}

/// Numbers of very different size, so that any other order of additions shows.
std::vector<float> spread_numbers(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> x(n);
  for (float& value : x) value = std::ldexp(random.uniform(), static_cast<int>(random.below(40)));
  return x;
}

/// Zeros of both signs and products that underflow to −0.
std::vector<float> tiny_numbers(size_t n, uint64_t seed) {
  Random random(seed);
  constexpr float kChoices[] = {0.0f, -0.0f, 0x1p-100f, -0x1p-100f, -0x1p-149f, 0x1p-149f};
  std::vector<float> x(n);
  for (float& value : x) value = kChoices[random.below(6)];
  return x;
}

TEST_P(VectorKernelsOn, LaneSumsEqualReference) {
  for (const int64_t n : awkward_sizes()) {
    const auto size = static_cast<size_t>(n);
    for (const bool tiny : {false, true}) {
      const auto a = tiny ? tiny_numbers(size, 1) : spread_numbers(size, 1);
      const auto b = tiny ? tiny_numbers(size, 2) : spread_numbers(size, 2);

      EXPECT_TRUE(
          bits_equal(lane_dot(a.data(), b.data(), n), lane_dot_reference(a.data(), b.data(), n)))
          << n;
      EXPECT_TRUE(bits_equal(lane_sum(a.data(), n), lane_sum_reference(a.data(), n))) << n;
    }
  }
}

TEST_P(VectorKernelsOn, RmsNormEqualsReference) {
  for (const int64_t n : {1, 31, 33, 64, 300, 2048, 2560}) {
    const std::vector<float> x = spread_numbers(static_cast<size_t>(3 * n), 3);
    const std::vector<float> w = Random(4).reals(static_cast<size_t>(n), 1.5f);
    std::vector<float> actual(x.size()), expected(x.size());

    rms_norm(x.data(), w.data(), 1e-5f, 3, n, actual.data());
    rms_norm_reference(x.data(), w.data(), 1e-5f, 3, n, expected.data());

    EXPECT_TRUE(bits_equal(actual, expected)) << n;
  }
}

/// Numbers of all magnitudes around the branches of the functions.
std::vector<float> function_arguments(size_t n, uint64_t seed) {
  std::vector<float> x = Random(seed).reals(n, 4.0f);
  for (size_t i = 0; i < n; i += 7) x[i] = std::ldexp(x[i], static_cast<int>(i % 60) - 40);
  if (n > 3) x[3] = -0.0f;
  if (n > 5) x[5] = 0.625f;
  return x;
}

TEST_P(VectorKernelsOn, ActivationsAndGatesEqualReference) {
  for (const int64_t n : awkward_sizes()) {
    const auto size = static_cast<size_t>(n);
    const std::vector<float> x = function_arguments(size, 11);
    const std::vector<float> y = spread_numbers(size, 12);
    std::vector<float> actual(size), expected(size);

    geglu(x.data(), y.data(), n, actual.data());
    geglu_reference(x.data(), y.data(), n, expected.data());
    EXPECT_TRUE(bits_equal(actual, expected)) << "geglu " << n;

    actual = expected = x;
    softcap(actual.data(), 3.0f, n);
    softcap_reference(expected.data(), 3.0f, n);
    EXPECT_TRUE(bits_equal(actual, expected)) << "softcap " << n;

    actual = expected = x;
    vector_kernels().silu(actual.data(), n);
    silu_reference(expected.data(), n);
    EXPECT_TRUE(bits_equal(actual, expected)) << "silu " << n;

    actual = expected = y;
    sigmoid_gate(actual.data(), x.data(), n);
    sigmoid_gate_reference(expected.data(), x.data(), n);
    EXPECT_TRUE(bits_equal(actual, expected)) << "sigmoid_gate " << n;

    rms_norm(x.data(), nullptr, 1e-6f, 1, n, actual.data());
    rms_norm_reference(x.data(), nullptr, 1e-6f, 1, n, expected.data());
    EXPECT_TRUE(bits_equal(actual, expected)) << "rms_norm without weights " << n;
  }
}

TEST_P(VectorKernelsOn, ExpEqualsScalarOnASampleOfAllFloats) {
  constexpr uint64_t kStep = 4099;  // a prime: all signs, exponents and mantissa ends occur
  std::vector<float> x, expected;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += kStep) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(value)) continue;
    x.push_back(value);
    expected.push_back(exp_canonical(value));
  }
  std::vector<float> actual(x.size());

  vector_kernels().exp(x.data(), static_cast<int64_t>(x.size()), actual.data());

  EXPECT_TRUE(bits_equal(actual, expected));
}

TEST_P(VectorKernelsOn, ExpEqualsScalarAroundItsLimits) {
  std::vector<float> x = {0.0f, -0.0f, 1.0f, -104.0f, 0x1.62e42ep+6f, kInfinity, -kInfinity};
  for (const float edge : {-104.0f, -103.97208f, -87.33655f, 0x1.62e42ep+6f, 0x1p-126f}) {
    float below = edge;
    float above = edge;
    for (int i = 0; i < 100; ++i) {
      x.push_back(below = std::nextafter(below, -kInfinity));
      x.push_back(above = std::nextafter(above, kInfinity));
    }
  }
  std::vector<float> expected, actual(x.size() + 1);
  for (const float value : x) expected.push_back(exp_canonical(value));

  vector_kernels().exp(x.data(), static_cast<int64_t>(x.size()), actual.data());

  EXPECT_TRUE(bits_equal(std::span(actual).first(x.size()), expected));
  vector_kernels().exp(&kNan, 1, actual.data());
  EXPECT_TRUE(std::isnan(actual[0]));
}

TEST_P(VectorKernelsOn, SwigluEqualsReferenceAlsoInPlace) {
  for (const int64_t n : {1, 7, 8, 15, 16, 17, 1000}) {
    const auto size = static_cast<size_t>(n);
    std::vector<float> gate = Random(5).reals(size, 120.0f);
    const std::vector<float> up = Random(6).reals(size, 3.0f);
    std::vector<float> expected(size), actual(size);

    swiglu_reference(gate.data(), up.data(), n, expected.data());
    swiglu(gate.data(), up.data(), n, actual.data());
    swiglu(gate.data(), up.data(), n, gate.data());

    EXPECT_TRUE(bits_equal(actual, expected)) << n;
    EXPECT_TRUE(bits_equal(gate, expected)) << n;
  }
}

TEST_P(VectorKernelsOn, AddAndRotateEqualScalarKernels) {
  for (const int64_t n : {1, 5, 8, 13, 16, 24, 32, 33, 64}) {
    const auto size = static_cast<size_t>(n);
    const std::vector<float> c = Random(7).reals(size, 1.0f), s = Random(8).reals(size, 1.0f);
    std::vector<float> a = Random(9).reals(2 * size, 4.0f), b = a;

    vector_kernels().rotate(a.data(), a.data() + n, c.data(), s.data(), n);
    vector_kernels_scalar().rotate(b.data(), b.data() + n, c.data(), s.data(), n);
    vector_kernels().add(a.data(), c.data(), n);
    vector_kernels_scalar().add(b.data(), c.data(), n);

    EXPECT_TRUE(bits_equal(a, b)) << n;
  }
}

TEST_P(VectorKernelsOn, FindsTheFirstNumberThatIsNotFinite) {
  for (const int64_t n : {1, 16, 17, 100}) {
    for (int64_t at = 0; at < n; ++at) {
      std::vector<float> x(static_cast<size_t>(n), std::numeric_limits<float>::max());
      EXPECT_EQ(find_not_finite(x.data(), n), -1);
      x[static_cast<size_t>(n - 1)] = kNan;
      x[static_cast<size_t>(at)] = at % 2 == 0 ? kNan : -kInfinity;

      EXPECT_EQ(find_not_finite(x.data(), n), at);
    }
  }
}

TEST_P(VectorKernelsOn, RoundingToTheCacheEqualsReference) {
  std::vector<float> x;
  Random random(10);
  for (int i = 0; i < 70'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random.bits()));
    if (std::fabs(value) < 65504.0f) x.push_back(value);
  }
  for (const float edge : {65504.0f, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 2049.0f, 0x1.01p0f}) {
    x.insert(x.end(), {edge, -edge});
  }
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kF32}) {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{20}, x.size()}) {
      std::vector<std::byte> actual(4 * n), expected(4 * n);

      EXPECT_EQ(round_to_cache(x.data(), static_cast<int64_t>(n), type, actual.data()), -1);
      EXPECT_EQ(round_to_cache_reference(x.data(), static_cast<int64_t>(n), type, expected.data()),
                -1);

      EXPECT_TRUE(bits_equal(std::span<const std::byte>(actual), expected)) << n;
    }
  }
}

TEST_P(VectorKernelsOn, RoundingToTheCacheFindsWhatIsNotFinite) {
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kF32}) {
    // 65520 is the first number that f16 rounds to infinity; the NaN of all ones wraps if bf16
    // rounding adds to it.
    const float all_ones = std::bit_cast<float>(0xffffffffu);
    for (const float bad : {kNan, all_ones, kInfinity, -kInfinity, 65520.0f}) {
      for (const size_t at : {size_t{0}, size_t{9}, size_t{39}}) {
        std::vector<float> x(40, 65519.0f);
        x[at] = bad;
        std::vector<std::byte> out(160);
        const bool fits = bad == 65520.0f && type != KvType::kF16;

        EXPECT_EQ(round_to_cache(x.data(), 40, type, out.data()),
                  fits ? -1 : static_cast<int64_t>(at));
      }
    }
  }
}

void expect_equal_blocks(const BlockInt16& actual, const BlockInt16& expected) {
  EXPECT_EQ(actual.rows, expected.rows);
  EXPECT_EQ(actual.columns, expected.columns);
  EXPECT_TRUE(bits_equal(std::span<const int8_t>(actual.high), expected.high));
  EXPECT_TRUE(bits_equal(std::span<const int8_t>(actual.low), expected.low));
  EXPECT_TRUE(bits_equal(std::span<const float>(actual.scales), expected.scales));
  EXPECT_TRUE(bits_equal(std::span<const int16_t>(actual.high_sums), expected.high_sums));
  EXPECT_TRUE(bits_equal(std::span<const int16_t>(actual.low_sums), expected.low_sums));
}

TEST_P(VectorKernelsOn, BlockInt16EqualsReference) {
  for (const int64_t columns : {1, 7, 16, 100, 128, 129, 300, 2048}) {
    for (const int exponent : {0, -150, -126, -86, 100, 113}) {
      std::vector<float> x = Random(11).reals(static_cast<size_t>(3 * columns), 1.0f);
      for (float& value : x) value = std::ldexp(value, exponent);
      x[0] = std::ldexp(32639.0f, exponent > 0 ? exponent - 13 : exponent);
      BlockInt16 actual, expected;

      EXPECT_EQ(quantize_block_int16(x.data(), 3, columns, columns, actual), -1);
      EXPECT_EQ(quantize_block_int16_reference(x.data(), 3, columns, columns, expected), -1);

      expect_equal_blocks(actual, expected);
    }
  }
}

TEST_P(VectorKernelsOn, BlockInt16FindsTheFirstBadValue) {
  const float limit = 32639.0f * 0x1p100f;
  for (const float bad : {kNan, kInfinity, std::nextafter(limit, kInfinity)}) {
    std::vector<float> x(600, limit);
    x[417] = bad;
    x[590] = bad;
    BlockInt16 block;

    EXPECT_EQ(quantize_block_int16(x.data(), 2, 300, 300, block), 417);
  }
}

TEST_P(VectorKernelsOn, ArgmaxAndNllEqualReference) {
  for (const size_t n : {size_t{1}, size_t{15}, size_t{33}, size_t{1000}, size_t{4099}}) {
    std::vector<float> logits = Random(12).reals(n, 30.0f);
    const LogSumExp actual = log_sum_exp(logits), expected = log_sum_exp_reference(logits);

    EXPECT_TRUE(bits_equal(actual.max, expected.max));
    EXPECT_TRUE(bits_equal(actual.log_sum, expected.log_sum));
    logits[n / 2] = logits[n - 1] = 31.0f;
    EXPECT_EQ(argmax(logits), static_cast<int32_t>(n / 2));
  }
}

struct Cache {
  std::vector<std::byte> keys, values;
};

Cache random_cache(int64_t positions, int head_dim, KvType type) {
  const auto n = static_cast<size_t>(positions * head_dim);
  const std::vector<float> k = Random(13).reals(n, 2.0f), v = Random(14).reals(n, 1.0f);
  Cache cache{std::vector<std::byte>(n * 4), std::vector<std::byte>(n * 4)};
  EXPECT_EQ(round_to_cache_reference(k.data(), static_cast<int64_t>(n), type, cache.keys.data()),
            -1);
  EXPECT_EQ(round_to_cache_reference(v.data(), static_cast<int64_t>(n), type, cache.values.data()),
            -1);
  return cache;
}

TEST_P(VectorKernelsOn, AttentionEqualsReference) {
  struct Case {
    int head_dim;
    KvType type;
    std::vector<std::pair<int64_t, int64_t>> visible;  // first, last of each query
  };
  const std::vector<Case> cases = {
      {64, KvType::kF16, {{0, 0}}},
      {64, KvType::kF16, {{0, 5}, {0, 6}, {0, 7}, {0, 8}, {0, 9}}},
      {64, KvType::kF16, {{0, 127}, {0, 128}, {0, 129}, {0, 130}, {0, 300}, {0, 301}}},
      {128, KvType::kBF16, {{0, 260}, {0, 260}, {0, 260}, {0, 260}, {0, 261}}},
      {128, KvType::kF32, {{100, 163}, {101, 164}, {127, 190}, {128, 191}, {129, 192}}},
      {20, KvType::kF16, {{0, 40}, {3, 200}, {130, 140}, {0, 10}, {250, 299}}},
      {80, KvType::kBF16, {{0, 299}, {299, 299}, {128, 255}, {127, 256}}},
      {256, KvType::kF16, {{0, 150}, {0, 151}, {0, 152}}},
      {320, KvType::kF32, {{0, 150}, {90, 151}, {0, 152}, {0, 153}}},
      {8, KvType::kF16, {{0, 33}, {1, 34}}},
  };
  for (const Case& c : cases) {
    const Cache cache = random_cache(302, c.head_dim, c.type);
    const auto d = static_cast<size_t>(c.head_dim);
    const std::vector<float> q = Random(15).reals(c.visible.size() * d, 3.0f);
    std::vector<float> actual(q.size()), single(q.size()), expected(q.size());
    std::vector<AttentionQuery> queries;
    for (size_t i = 0; i < c.visible.size(); ++i) {
      const auto [first, last] = c.visible[i];
      queries.push_back({&q[i * d], &actual[i * d], first, last});
      EXPECT_TRUE(attend(&q[i * d], cache.keys.data(), cache.values.data(), c.type, first, last,
                         c.head_dim, 0.125f, &single[i * d]));
      EXPECT_TRUE(attend_reference(&q[i * d], cache.keys.data(), cache.values.data(), c.type, first,
                                   last, c.head_dim, 0.125f, &expected[i * d]));
    }

    EXPECT_EQ(
        attend_many(queries, cache.keys.data(), cache.values.data(), c.type, c.head_dim, 0.125f),
        -1);

    EXPECT_TRUE(bits_equal(actual, expected)) << "head_dim " << c.head_dim;
    EXPECT_TRUE(bits_equal(single, expected)) << "head_dim " << c.head_dim;
  }
}

TEST_P(VectorKernelsOn, AttentionReportsTheFirstQueryWithABadScore) {
  const Cache cache = random_cache(200, 64, KvType::kF16);
  std::vector<float> q = Random(16).reals(7 * 64, 1.0f), out(q.size());
  q[5 * 64 + 3] = kInfinity;
  q[4 * 64 + 60] = 0x1p127f;
  q[4 * 64 + 28] = 0x1p127f;
  std::vector<AttentionQuery> queries;
  for (size_t i = 0; i < 7; ++i) queries.push_back({&q[i * 64], &out[i * 64], 0, 190});

  EXPECT_EQ(attend_many(queries, cache.keys.data(), cache.values.data(), KvType::kF16, 64, 8.0f),
            4);
}

TEST_P(VectorKernelsOn, AttentionIgnoresWhatLiesOutsideTheWindow) {
  Cache cache = random_cache(200, 64, KvType::kF16);
  const std::vector<float> q = Random(17).reals(64, 1.0f);
  std::vector<float> before(64), after(64);
  ASSERT_TRUE(attend(q.data(), cache.keys.data(), cache.values.data(), KvType::kF16, 40, 150, 64,
                     1.0f, before.data()));
  for (const size_t position : {size_t{39}, size_t{151}}) {  // NaN just outside
    std::fill_n(cache.keys.begin() + static_cast<int64_t>(position * 128), 128, std::byte{0xff});
    std::fill_n(cache.values.begin() + static_cast<int64_t>(position * 128), 128, std::byte{0xff});
  }

  ASSERT_TRUE(attend(q.data(), cache.keys.data(), cache.values.data(), KvType::kF16, 40, 150, 64,
                     1.0f, after.data()));

  EXPECT_TRUE(bits_equal(after, before));
}

}  // namespace
}  // namespace assay
