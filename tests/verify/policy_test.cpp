#include "verify/policy.h"

#include <gtest/gtest.h>

#include "convert/core/error.h"

namespace assay {
namespace {

Json noise() {
  return parse_json(R"json({
    "logits": [{"way": "fp32 sdpa", "prompt": "len0033", "max_abs": 1e-05},
               {"way": "fp64 eager, model.double()", "prompt": "len0033", "max_abs": 5e-06},
               {"way": "bf16 eager", "prompt": "len0033", "max_abs": 0.1}],
    "hidden": [{"way": "fp32 sdpa", "tensor": "logits", "max_abs": 2e-05},
               {"way": "fp32 sdpa", "tensor": "layer.0.output", "max_abs": 7.0}]})json",
                    "noise.json");
}

TEST(DeriveLogitTolerance, AddsFp32NoiseAndAShareOfTheBf16Noise) {
  EXPECT_NEAR(*derive_logit_tolerance(noise(), KvType::kF32), 4 * 2e-5 + 0.171 * 0.1, 1e-12);
  EXPECT_NEAR(*derive_logit_tolerance(noise(), KvType::kF16), 4 * 2e-5 + 0.296 * 0.1, 1e-12);
}

TEST(DeriveLogitTolerance, IsEmptyWithoutFigures) {
  EXPECT_FALSE(derive_logit_tolerance(Json(), KvType::kF16).has_value());
  EXPECT_FALSE(derive_logit_tolerance(parse_json("{\"logits\": []}", "x"), KvType::kF16));
}

TEST(ChoosePolicy, IsBitwiseForEqualFormats) {
  const Policy policy = choose_policy(PairKind::kSameFormats, {}, KvType::kF16, Json());

  EXPECT_TRUE(policy.bitwise);
}

TEST(ChoosePolicy, JudgesAQuantizedModelByTheUsersLimitsOnly) {
  const Policy none = choose_policy(PairKind::kQuantizedOriginal, {}, KvType::kF16, Json());
  const Policy limited =
      choose_policy(PairKind::kQuantizedOriginal, {.max_kld = 0.02}, KvType::kF16, Json());

  EXPECT_FALSE(none.bitwise);
  EXPECT_FALSE(none.max_kld || none.max_delta_nll || none.max_logit_difference);
  EXPECT_EQ(limited.max_kld, 0.02);
  EXPECT_EQ(limited.weights, Policy::Weights::kPlain);
}

TEST(ChoosePolicy, IsTighterOnTheMeanWithFp32KeysAndValues) {
  const Policy f16 = choose_policy(PairKind::kForeignReference, {}, KvType::kF16, noise());
  const Policy f32 = choose_policy(PairKind::kForeignReference, {}, KvType::kF32, noise());

  EXPECT_EQ(f16.max_window_nll_difference, 2e-4);
  EXPECT_EQ(f32.max_delta_nll, 2e-5);
  EXPECT_LT(*f32.max_logit_difference, *f16.max_logit_difference);
}

TEST(ChoosePolicy, GivesARepackTheRoomThatItsKeysAndValuesNeed) {
  const auto logits = [](KvType type) {
    return *choose_policy(PairKind::kSameWeightsOtherFormats, {}, type, Json())
                .max_logit_difference;
  };

  EXPECT_GT(logits(KvType::kF32), 0.0032 * 4);  // what repacks were seen to differ by
  EXPECT_GE(logits(KvType::kF16), 0.025 * 4);
  EXPECT_GE(logits(KvType::kBF16), 0.15 * 4);
}

// The limits that policy.cpp derives in words; a wider one would pass what it should not.
TEST(ChoosePolicy, HasTheStatedLimitsForEveryTypeOfKeysAndValues) {
  struct Limits {
    KvType type;
    double logits, window_nll, delta_nll, kld;
    double reference_window_nll, reference_delta_nll;
  };
  for (const Limits& wanted : {Limits{KvType::kF32, 0.02, 5e-4, 1e-4, 1e-5, 2e-4, 2e-5},
                               Limits{KvType::kF16, 0.1, 5e-4, 1e-4, 1e-5, 2e-4, 2e-4},
                               Limits{KvType::kBF16, 0.6, 4e-3, 8e-4, 1e-4, 2e-3, 1e-3}}) {
    const Policy repack =
        choose_policy(PairKind::kSameWeightsOtherFormats, {}, wanted.type, Json());
    const Policy reference = choose_policy(PairKind::kForeignReference, {}, wanted.type, noise());

    EXPECT_EQ(repack.max_logit_difference, wanted.logits);
    EXPECT_EQ(repack.max_window_nll_difference, wanted.window_nll);
    EXPECT_EQ(repack.max_delta_nll, wanted.delta_nll);
    EXPECT_EQ(repack.max_kld, wanted.kld);
    EXPECT_EQ(repack.weights, Policy::Weights::kAll);
    EXPECT_EQ(reference.max_window_nll_difference, wanted.reference_window_nll);
    EXPECT_EQ(reference.max_delta_nll, wanted.reference_delta_nll);
  }
}

TEST(ChoosePolicy, LetsTheUsersLimitsReplaceDerivedOnes) {
  const Policy policy = choose_policy(PairKind::kForeignReference, {.max_logit_difference = 1.0},
                                      KvType::kF16, noise());

  EXPECT_EQ(policy.max_logit_difference, 1.0);
}

TEST(ChoosePolicy, RefusesLimitsTogetherWithBitwise) {
  EXPECT_THROW(choose_policy(PairKind::kSameFormats, {.bitwise = true, .max_kld = 0.1},
                             KvType::kF16, Json()),
               UsageError);
}

TEST(ChoosePolicy, TakesLimitsAsToleranceWhereBitwiseWasOnlyTheDefault) {
  const Policy policy =
      choose_policy(PairKind::kSameFormats, {.max_kld = 0.1}, KvType::kF16, Json());

  EXPECT_FALSE(policy.bitwise);
  EXPECT_EQ(policy.weights, Policy::Weights::kNone);
}

}  // namespace
}  // namespace assay
