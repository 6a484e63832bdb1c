#include "runtime/ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "convert/core/dtype.h"
#include "runtime/math.h"
#include "runtime/ops/kv_write.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::bits_equal;
using test::Random;

CacheLayerSpec cache_layer(int n_kv_heads, int head_dim) {
  return {n_kv_heads, head_dim, std::nullopt};
}

std::vector<std::byte> to_cache(const std::vector<float>& x, KvType type) {
  std::vector<std::byte> out(x.size() * kv_type_bytes(type));
  EXPECT_EQ(round_to_cache(x.data(), static_cast<int64_t>(x.size()), type, out.data()), -1);
  return out;
}

float rounded(float x, KvType type) {
  if (type == KvType::kF32) return x;
  return type == KvType::kF16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
}

/// Softmax attention in fp64 over the rounded keys and values.
std::vector<double> exact_attention(const std::vector<float>& q, const std::vector<float>& k,
                                    const std::vector<float>& v, KvType type, int64_t first,
                                    int64_t last, double scale) {
  const size_t d = q.size();
  std::vector<double> scores;
  double max = -INFINITY;
  for (int64_t j = first; j <= last; ++j) {
    double score = 0.0;
    for (size_t i = 0; i < d; ++i) {
      score += double{q[i]} * rounded(k[static_cast<size_t>(j) * d + i], type);
    }
    scores.push_back(score * scale);
    max = std::max(max, scores.back());
  }
  double sum = 0.0;
  std::vector<double> out(d, 0.0);
  for (int64_t j = first; j <= last; ++j) {
    const double p = std::exp(scores[static_cast<size_t>(j - first)] - max);
    sum += p;
    for (size_t i = 0; i < d; ++i) {
      out[i] += p * rounded(v[static_cast<size_t>(j) * d + i], type);
    }
  }
  for (double& o : out) o /= sum;
  return out;
}

TEST(Attention, EqualsSoftmaxInFp64OverAwkwardRangesAndTheReferenceBitForBit) {
  Random random(11);
  const int64_t positions = 700;
  for (const int d : {1, 31, 64, 128}) {
    const auto n = static_cast<size_t>(positions * d);
    const std::vector<float> q = random.reals(static_cast<size_t>(d), 2.0f);
    const std::vector<float> k = random.reals(n, 2.0f), v = random.reals(n, 3.0f);
    for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kF32}) {
      const auto keys = to_cache(k, type), values = to_cache(v, type);
      for (const auto& [first, last] : std::vector<std::pair<int64_t, int64_t>>{{0, 0},
                                                                                {0, 30},
                                                                                {0, 127},
                                                                                {0, 128},
                                                                                {0, 255},
                                                                                {0, 699},
                                                                                {5, 5},
                                                                                {100, 131},
                                                                                {127, 128},
                                                                                {128, 255},
                                                                                {129, 600},
                                                                                {699, 699}}) {
        std::vector<float> out(static_cast<size_t>(d)), reference(static_cast<size_t>(d));

        ASSERT_TRUE(
            attend(q.data(), keys.data(), values.data(), type, first, last, d, 0.125f, out.data()));
        ASSERT_TRUE(attend_reference(q.data(), keys.data(), values.data(), type, first, last, d,
                                     0.125f, reference.data()));

        EXPECT_TRUE(bits_equal(out, reference)) << d << " " << first << " " << last;
        const auto exact = exact_attention(q, k, v, type, first, last, 0.125);
        for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(out[i], exact[i], 2e-6);
      }
    }
  }
}

TEST(Attention, OneKeyReturnsItsValueExactly) {
  const std::vector<float> q = {1.0f, -2.0f}, k = {0.5f, 3.0f}, v = {1.25f, -7.0f};
  std::vector<float> out(2);

  ASSERT_TRUE(attend(q.data(), k.data(), v.data(), KvType::kF32, 0, 0, 2, 1.0f, out.data()));

  EXPECT_TRUE(bits_equal(out, v));
}

TEST(Attention, TwoSegmentsMergeWithRoundedProducts) {
  // Head of one dimension, scores chosen freely: q = 1, scale = 1, score = key.
  const float q = 1.0f;
  std::vector<float> k(130, -80.0f), v(130, 0.0f);
  k[0] = 0.5f;
  v[0] = 3.0f;
  k[128] = 1.25f;
  v[128] = -2.0f;
  for (int j = 1; j < 130; ++j) {
    if (j != 128) k[static_cast<size_t>(j)] = -110.0f;  // exp gives +0
  }
  float out = 0.0f;

  ASSERT_TRUE(attend(&q, k.data(), v.data(), KvType::kF32, 0, 129, 1, 1.0f, &out));

  const float a = exp_canonical(0.5f - 1.25f);
  const float expected = (3.0f * a + -2.0f * 1.0f) / (1.0f * a + 1.0f * 1.0f);
  EXPECT_TRUE(bits_equal(out, expected));
}

TEST(Attention, Case_B71_ScoresBeyondHalfPrecisionStayFinite) {
  const int d = 128;
  const int64_t n = 300;
  const std::vector<float> q(d, 30.0f);
  const std::vector<float> k(static_cast<size_t>(n * d), 30.0f);
  const std::vector<float> v = Random(2).reals(static_cast<size_t>(n * d), 100.0f);
  const auto keys = to_cache(k, KvType::kF16), values = to_cache(v, KvType::kF16);
  std::vector<float> out(d);

  ASSERT_TRUE(
      attend(q.data(), keys.data(), values.data(), KvType::kF16, 0, n - 1, d, 1.0f, out.data()));

  const auto exact = exact_attention(q, k, v, KvType::kF16, 0, n - 1, 1.0);
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(out[i], exact[i], 1e-3);
}

TEST(Attention, Case_B71_ManyEqualKeysGiveTheirCommonValue) {
  const int64_t n = 65536;
  const std::vector<float> q(4, 1.0f);
  const std::vector<float> k(static_cast<size_t>(n * 4), 1.0f);
  const std::vector<float> v(static_cast<size_t>(n * 4), 100.0f);
  std::vector<float> out(4);

  ASSERT_TRUE(attend(q.data(), k.data(), v.data(), KvType::kF32, 0, n - 1, 4, 0.5f, out.data()));

  for (const float o : out) EXPECT_NEAR(o, 100.0f, 1e-3);
}

TEST(Attention, Case_B68_ScaleOfOneLeavesOneHotScoresAsTheyAre) {
  // One-hot q and k: the score is scale·q·k; two keys with scores s and 0 give weights e^s and 1.
  const std::vector<float> q = {2.0f, 0.0f}, k = {1.5f, 0.0f, 0.0f, 1.0f}, v = {1, 0, 0, 1};
  std::vector<float> unscaled(2), scaled(2);

  ASSERT_TRUE(attend(q.data(), k.data(), v.data(), KvType::kF32, 0, 1, 2, 1.0f, unscaled.data()));
  ASSERT_TRUE(attend(q.data(), k.data(), v.data(), KvType::kF32, 0, 1, 2, 0.5f, scaled.data()));

  EXPECT_NEAR(unscaled[0] / unscaled[1], std::exp(3.0), 1e-4);
  EXPECT_NEAR(scaled[0] / scaled[1], std::exp(1.5), 1e-5);
}

TEST(Attention, ReportsAScoreThatIsNotFinite) {
  const std::vector<float> q = {3e38f, 3e38f}, k = {3e38f, 3e38f}, v = {1, 1};
  std::vector<float> out(2);

  EXPECT_FALSE(attend(q.data(), k.data(), v.data(), KvType::kF32, 0, 0, 2, 1.0f, out.data()));
}

TEST(KvWrite, ReportsTheFirstValueThatOverflowsTheCacheType) {
  KvCache cache({cache_layer(2, 4)}, KvType::kF16, 1, 3);
  std::vector<float> k(8, 1.0f), v(8, 2.0f);
  EXPECT_EQ(kv_write(k.data(), v.data(), 2, 4, 0, 0, 1, cache), -1);
  v[5] = 65520.0f;  // rounds to infinity in f16

  EXPECT_EQ(kv_write(k.data(), v.data(), 2, 4, 0, 0, 1, cache), 8 + 5);

  k[6] = NAN;
  EXPECT_EQ(kv_write(k.data(), v.data(), 2, 4, 0, 0, 1, cache), 6);
}

TEST(KvCache, AWindowKeepsWholeSegmentsAndNeverMoreThanTheContext) {
  CacheLayerSpec layer = cache_layer(2, 4);
  EXPECT_EQ(KvCache::rows(layer, 1000, 32), 1000);  // no window
  layer.sliding_window = 100;
  EXPECT_EQ(KvCache::rows(layer, 1000, 0), 1000);
  EXPECT_EQ(KvCache::rows(layer, 1000, 1), 128);
  EXPECT_EQ(KvCache::rows(layer, 1000, 29), 128);
  EXPECT_EQ(KvCache::rows(layer, 1000, 30), 256);
  EXPECT_EQ(KvCache::rows(layer, 200, 150), 200);
  layer.sliding_window = 5000;
  EXPECT_EQ(KvCache::rows(layer, 1000, 1), 1000);

  layer.sliding_window = 100;
  const std::vector<CacheLayerSpec> layers = {layer, cache_layer(1, 8)};
  const KvCache cache(layers, KvType::kF16, 3, 1000, {}, 16);
  EXPECT_EQ(cache.bytes(), KvCache::bytes(layers, KvType::kF16, 3, 1000, 16));
  EXPECT_EQ(cache.bytes(), 2u * 2 * 3 * (2 * 4 * 128 + 8 * 1000));
  EXPECT_FALSE(cache.can_rewind());
}

TEST(KvCache, KeepsHeadsPositionsAndSequencesApart) {
  const std::vector<CacheLayerSpec> layers = {cache_layer(2, 3), cache_layer(1, 5)};
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kF32}) {
    KvCache cache(layers, type, 2, 4);
    EXPECT_EQ(KvCache::bytes(layers, type, 2, 4), 2 * 2 * 4 * (2 * 3 + 5) * kv_type_bytes(type));
    float next = 1.0f;
    for (int layer = 0; layer < 2; ++layer) {
      const auto [heads, d, window] = layers[static_cast<size_t>(layer)];
      for (int sequence = 0; sequence < 2; ++sequence) {
        for (int64_t position = 0; position < 4; ++position) {
          std::vector<float> k, v;
          for (int i = 0; i < heads * d; ++i) k.push_back(next++);
          for (int i = 0; i < heads * d; ++i) v.push_back(next++);
          ASSERT_EQ(kv_write(k.data(), v.data(), heads, d, layer, sequence, position, cache), -1);
        }
      }
    }

    next = 1.0f;
    for (int layer = 0; layer < 2; ++layer) {
      const auto [heads, d, window] = layers[static_cast<size_t>(layer)];
      for (int sequence = 0; sequence < 2; ++sequence) {
        for (int64_t position = 0; position < 4; ++position) {
          for (const bool value : {false, true}) {
            for (int head = 0; head < heads; ++head) {
              const std::byte* rows =
                  value ? cache.values(layer, sequence, head) : cache.keys(layer, sequence, head);
              const auto expected = to_cache({next, next + 1, next + 2}, type);
              EXPECT_EQ(
                  0, std::memcmp(rows + static_cast<uint64_t>(position * d) * kv_type_bytes(type),
                                 expected.data(), expected.size()));
              next += static_cast<float>(d);
            }
          }
        }
      }
    }
  }
}

TEST(KvType, NamesGoBothWays) {
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kF32}) {
    EXPECT_EQ(kv_type_from_name(kv_type_name(type)), type);
  }
  EXPECT_EQ(kv_type_from_name("f64"), std::nullopt);
}

}  // namespace
}  // namespace assay
