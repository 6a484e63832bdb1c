#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "convert/core/error.h"
#include "convert/core/isa.h"
#include "convert/core/sha256.h"
#include "convert/formats/codebook.h"
#include "convert/formats/format.h"
#include "convert/formats/iq4_values.h"
#include "convert/formats/packed_integer.h"
#include "convert/formats/q3_k.h"
#include "convert/formats/q4_k.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"
#include "tests/support/weight_matrix.h"

namespace assay {
namespace {

using test::bits_equal;
using test::decode_all;
using test::Random;
using test::random_weight_matrix;
using test::WeightMatrix;

// ---------------------------------------------------------------------------------------------
// Bytes of the reference quantizers.

/// The input of the golden rows below: 8 rows × 1,024 values, then 1,024 importance values.
struct ReferenceInput {
  std::vector<float> x;
  std::vector<float> importance;

  ReferenceInput() {
    uint32_t state = 12345;
    const auto next = [&state] {
      state = state * 1664525u + 1013904223u;
      return static_cast<int>(state >> 16);
    };
    for (int i = 0; i < 8 * 1024; ++i) {
      int sum = 0;
      for (int j = 0; j < 4; ++j) sum += next();
      x.push_back(static_cast<float>(sum - 131070) / 2097152.0f);
    }
    for (int i = 0; i < 1024; ++i) {
      importance.push_back(1.0f + static_cast<float>(next()) / 16384.0f);
    }
  }
};

TEST(ReferenceInput, IsThatOfThePublishedVectors) {
  const ReferenceInput input;

  EXPECT_EQ(sha256_hex(std::as_bytes(std::span(input.x))),
            "c457977e3ee8daf28059b5d8738d41a8caf209453d6bd9a90c6797c4634174d4");
  EXPECT_FLOAT_EQ(input.importance.front(), 4.14959717f);
  EXPECT_FLOAT_EQ(input.importance.back(), 1.03814697f);
}

struct QuantizerVector {
  const char* format;
  bool importance;
  const char* bytes_sha256;
  const char* values_sha256_prefix;
};

/// Rows as ggml-quants.c encodes them, compiled without contraction.
constexpr QuantizerVector kQuantizerVectors[] = {
    {"Q4_0", false, "70e04c544f6a4c73fd5324a6c223d32155d945b3816025a1c01ab18de3eee2f0",
     "4cdd75a153a9b795"},
    {"Q4_0", true, "8326e84f99578ba4aea94e409392812dd0f470e0726cba5d068b164f7b1ca30d",
     "31f80fc2742dd253"},
    {"Q4_1", false, "535864dc4f2470b6fb21c7a8a309790d758e1b5f4a2fc68842f8232a581a2d0d",
     "8c199f0ef20039c5"},
    {"Q4_1", true, "e6d471320ebe2ca5818696f2faee214fa2276a1af183dfddf1e28a179fcab344",
     "5d8448825588032a"},
    {"Q5_0", false, "d77993790dda6fc46f06cd9154f9b3cd055549d269b409467d785f54c007b5e1",
     "9504258112246c2c"},
    {"Q5_0", true, "4cc9942fea0ddfa8f55da5b7a6d26dc07708d12aaba36bbf4d05d46b90531310",
     "0e7aebe683f55224"},
    {"Q5_1", false, "595f8b25f3a6da8495ae0e3f7cb86ea49dd6c281a33820b54fdf081619f2d99c",
     "b1c57a1cc59e8ab3"},
    {"Q5_1", true, "78a5b74ea5888b0f6f95294b4624ee21ea6aa8fa54885910717b7b9797065e22",
     "02410d0da22dcb40"},
    {"Q8_0", false, "4715ed3d887037c06f1c80cf6edc7439afabf95d4af262294bdc9d9260ad433c",
     "7a80a03c136def98"},
    {"Q8_0", true, "4715ed3d887037c06f1c80cf6edc7439afabf95d4af262294bdc9d9260ad433c",
     "7a80a03c136def98"},
    {"Q2_K", false, "10bb4b0da7b98d621b73f47eaa0c2ca3262d058dd52854ca2990c6a8ea427223",
     "4fab991566e7ef2d"},
    {"Q2_K", true, "31b16d8bdebf453a9dfae53b996f6d7dd664c217b6251945a20bb534587d9212",
     "98072ff75abc7e5d"},
    {"Q3_K", false, "97fa006c3160aff9240d789e2d6707decc8d94e0b581c90dcd177127f799b539",
     "b2d8561ba719a27e"},
    {"Q3_K", true, "2179ec8ce5a7d7dca63b606d80dca3f18a64e9fe203ab1261c6d83690fb769fd",
     "4b5071de870001f6"},
    {"Q4_K", false, "7cc5a2612ece141c134bf86c26df660ef517b4fb7ebde824782f814b21fb8817",
     "4e4e512222e5b6dc"},
    {"Q4_K", true, "897441194a0c2b41dd5b20bc15eeada1915c204ebab219217a4f5006c08b3440",
     "e2fe5c579b033d49"},
    {"Q5_K", false, "1de7d73f7fef2bf720e7f0b584de54c4c6899a124913fce10b56fef7b2d673fd",
     "6bc25762e083d69d"},
    {"Q5_K", true, "ba519709799f270e0bcf7f00b60f5a3b1c8acccee1e3446b51ccd3ba6fafceac",
     "4df171749d83ee9c"},
    {"Q6_K", false, "17feb00c0a11e1dc8a15af23e81acffe778df2907756ffbea5e8da3bdb6c48c1",
     "0755af3000abc5cb"},
    {"Q6_K", true, "6d6d5c022d76c474b970d2c3871c0bcd1ae4a1fc346815fe4a66b5922b1dde6f",
     "7703ecdc310d3153"},
    {"IQ4_NL", false, "25886940cc73aaa9290d6fd21d145264f6d9ec4629cfb116bfcf00496020c5e7",
     "1aa73126401bbd0d"},
    {"IQ4_NL", true, "2b89347462ced3dfbd6ed632bc86b492458c896908f129ba606f5ed720021413",
     "0fd144824ff18ff6"},
    {"IQ4_XS", false, "d9bf046659dfc721a25a157e40b10ddfb90b98dbf4ddc6e9853f3bfa522e9740",
     "ba5825c8c8194c37"},
    {"IQ4_XS", true, "80334a644b6267c8c35d34f6ef21b75779512a81c01f54f1fcbfcad98941d067",
     "547ffb32cd3afc89"},
    {"IQ3_S", false, "7b36e5fe2c9402678f12c7b2e999473c14e10420467cbece5394527db2167ffb",
     "7c2fd01873b97923"},
    {"IQ3_S", true, "8c54169bd4d1aa7b05cba7f4a6f3ca698af66dc6f038139598a0b0c9e319a80b",
     "9885dfb4e31ac524"},
    {"IQ3_XXS", false, "651e821525b2ccf3b782614b2a65ba772c4e7a0e57259cb12e8134921c723871",
     "f3afcde99722d857"},
    {"IQ3_XXS", true, "0178545923aaac41f52a2e980566c5a3dd75c272f2cddbf51b82cd9f464e63d0",
     "63a31d2e76ef64e2"},
    {"IQ2_S", false, "db752d865448cb8a6b816ffe73ba12a0a0f0df3b45a0642d77086b123e6f03ad",
     "8d3d451a1691e41c"},
    {"IQ2_S", true, "57176d405328c9df974ded143a28115a91855e80e75299c89eaf2b7672371e12",
     "4ef534a8bcd642b2"},
    {"IQ2_XS", true, "b2eae769990ea56644dbaf8849e08763a4feb979bb3716c9796bf180f8c7a630",
     "b0c6df8f5bbaf048"},
    {"IQ2_XXS", true, "eec5f9f003ed10ecae5d146e56e05c4441f8753d4562768481a7c0fd7486339b",
     "bde65108e5480636"},
    {"IQ1_S", true, "423ffd614ba7ea0b052fa38d9578f81eea3846cd392e8ad15cb81bd785f1058d",
     "e2a6aeb893ead3d5"},
    {"IQ1_M", false, "902c053f637bbda76782c738a5090e53a23c437f44346cc44f1cbc46b42a25f2",
     "182fdd4a3fa33f1d"},
    {"IQ1_M", true, "71d03026361600b9ab59b90687bd4f611d0b232ac90567cbb95f78e4af8a1c79",
     "2480c845b643a9f3"},
    {"MXFP4", false, "80a3e0ad96730f945eb0c02c5531be415c39a74b3e524c238441c161897fe641",
     "bda69cdc9630b2e5"},
    {"MXFP4", true, "80a3e0ad96730f945eb0c02c5531be415c39a74b3e524c238441c161897fe641",
     "bda69cdc9630b2e5"},
    {"NVFP4", false, "654675418f6439a4bfee4483c5cc93638d879a967a60911a1ac664de0cbc268d",
     "524be1f5243b83b2"},
    {"NVFP4", true, "654675418f6439a4bfee4483c5cc93638d879a967a60911a1ac664de0cbc268d",
     "524be1f5243b83b2"},
    {"TQ1_0", false, "c9948d612a95f97051635afad99873a8ee2cf3ded4265718d4b68831db44e721",
     "5ba39b18575df22d"},
    {"TQ1_0", true, "c9948d612a95f97051635afad99873a8ee2cf3ded4265718d4b68831db44e721",
     "5ba39b18575df22d"},
    {"TQ2_0", false, "265cd06398f314b71f7da779c47280048ca3de831fe160f319ade392b1c4532d",
     "5ba39b18575df22d"},
    {"TQ2_0", true, "265cd06398f314b71f7da779c47280048ca3de831fe160f319ade392b1c4532d",
     "5ba39b18575df22d"},
    {"Q1_0", false, "fad2f86023e2533c535a633d427261c3d070f9c55cf74a22d7a37773d4207833",
     "2077593015da6d96"},
    {"Q1_0", true, "fad2f86023e2533c535a633d427261c3d070f9c55cf74a22d7a37773d4207833",
     "2077593015da6d96"},
    {"Q2_0", false, "754c1c21e051620a94d9272860d784507a5faec2ce1053d2b5bee268f0e7b9a6",
     "ec4fae88a3ebc986"},
    {"Q2_0", true, "754c1c21e051620a94d9272860d784507a5faec2ce1053d2b5bee268f0e7b9a6",
     "ec4fae88a3ebc986"},
};

/// Runs `body` with every instruction set of this machine that searches differ for.
template <class Body>
void with_every_isa(const Body& body) {
  const Isa before = active_isa();
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2}) {
    if (isa > best_isa()) continue;
    SCOPED_TRACE(std::string(isa_name(isa)));
    force_isa(isa);
    body();
  }
  force_isa(before);
}

class ReferenceQuantizer : public testing::TestWithParam<QuantizerVector> {};

TEST_P(ReferenceQuantizer, GivesThePublishedBytes) {
  const ReferenceInput input;
  const WeightFormat& format = *find_format(GetParam().format);
  const std::span<const float> importance =
      GetParam().importance ? std::span<const float>(input.importance) : std::span<const float>();
  const auto row_bytes = static_cast<size_t>(format.row_bytes(1024));
  with_every_isa([&] {
    std::vector<std::byte> bytes(8 * row_bytes);

    for (size_t r = 0; r < 8; ++r) {
      format.encode_row(std::span(input.x).subspan(1024 * r, 1024), importance,
                        std::span(bytes).subspan(r * row_bytes, row_bytes));
    }
    const std::vector<float> values =
        decode_all({.format = &format, .rows = 8, .columns = 1024, .data = bytes});

    EXPECT_EQ(sha256_hex(bytes), GetParam().bytes_sha256);
    EXPECT_THAT(sha256_hex(std::as_bytes(std::span(values))),
                testing::StartsWith(GetParam().values_sha256_prefix));
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, ReferenceQuantizer, testing::ValuesIn(kQuantizerVectors),
                         [](const auto& param_info) {
                           return std::string(param_info.param.format) +
                                  (param_info.param.importance ? "WithImportance" : "");
                         });

TEST(ReferenceQuantizer, StoresZerosAsTheReferenceDoes) {
  const std::vector<float> zeros(256, 0.0f);
  const auto bytes_of = [&](const char* name) {
    const WeightFormat& format = *find_format(name);
    std::vector<std::byte> bytes(format.row_bytes(256));
    format.encode_row(zeros, {}, bytes);
    return bytes;
  };

  // ggml-quants.c: d = −0 where it is a negative extreme, codes in the middle where the grid has
  // one; every other type is all zero bytes.
  const auto starts_with = [](const std::vector<std::byte>& bytes) {
    std::string text;
    for (size_t i = 0; i < 9; ++i) {
      text += "0123456789abcdef"[std::to_integer<int>(bytes[i]) >> 4];
      text += "0123456789abcdef"[std::to_integer<int>(bytes[i]) & 15];
    }
    return text;
  };
  EXPECT_EQ(starts_with(bytes_of("Q4_0")), "008088888888888888");
  EXPECT_EQ(starts_with(bytes_of("Q5_0")), "0080ffffffff000000");
  EXPECT_EQ(starts_with(bytes_of("IQ4_NL")), "000088888888888888");
  EXPECT_EQ(starts_with(bytes_of("IQ4_XS")), "0080aaaa0000000088");
  EXPECT_EQ(starts_with(bytes_of("TQ1_0")), "808080808080808080");
  EXPECT_EQ(starts_with(bytes_of("TQ2_0")), "555555555555555555");
  for (const char* name : {"Q4_1", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ3_S",
                           "IQ3_XXS", "IQ2_S", "IQ1_M", "MXFP4", "NVFP4"}) {
    EXPECT_THAT(bytes_of(name), testing::Each(std::byte{0})) << name;
  }
}

/// Rows on which trials tie, overflow or have nothing to search: constant, sparse, huge, tiny, of
/// one sign, with negative zeros.
TEST(Encoder, GivesTheSameBytesWithEveryInstructionSet) {
  std::vector<std::vector<float>> rows;
  for (uint64_t seed = 1; seed <= 20; ++seed) rows.push_back(test::random_floats(512, seed));
  for (const float value : {0.0f, -0.0f, 1.0f, -1.0f, 3e37f, 1e-38f, 1e-44f}) {
    rows.emplace_back(512, value);
    rows.emplace_back(512, 0.0f)[300] = value;
    rows.push_back(test::random_floats(512, 5));
    for (size_t i = 0; i < 512; i += 3) rows.back()[i] = value;
  }
  rows.push_back(test::random_floats(512, 6));
  for (float& x : rows.back()) x = std::fabs(x);
  const std::vector<float> importance = [] {
    std::vector<float> values = test::random_floats(512, 9);
    for (float& x : values) x = x * x;
    return values;
  }();

  for (const WeightFormat* format : all_formats()) {
    if (!format->can_encode()) continue;
    for (const std::vector<float>& row : rows) {
      for (const bool weighted : {false, true}) {
        if (format->needs_importance() && !weighted) continue;
        std::vector<std::vector<std::byte>> results;
        with_every_isa([&] {
          results.emplace_back(format->row_bytes(512));
          format->encode_row(row, weighted ? importance : std::vector<float>{}, results.back());
        });

        ASSERT_EQ(results.front(), results.back())
            << format->name() << " row " << &row - rows.data() << (weighted ? " weighted" : "");
      }
    }
  }
}

TEST(Encoder, RefusesNanAndNamesTheColumn) {
  std::vector<float> row(256, 1.0f);
  row[77] = std::numeric_limits<float>::quiet_NaN();

  for (const WeightFormat* each : all_formats()) {
    const WeightFormat& format = *each;
    if (!format.can_encode() || format.block_columns() == 1) continue;
    const std::string_view name = format.name();
    std::vector<std::byte> out(format.row_bytes(256));
    try {
      format.encode_row(row, {}, out);
      ADD_FAILURE() << name << " accepted NaN";
    } catch (const NumericError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("column 77")) << name;
    }
  }
}

TEST(Encoder, RefusesToWorkWithoutAnImportanceThatItNeeds) {
  std::set<std::string_view> refusing;
  const std::vector<float> row(256, 1.0f);
  for (const WeightFormat* format : all_formats()) {
    if (!format->can_encode()) continue;
    std::vector<std::byte> out(format->row_bytes(256));
    try {
      format->encode_row(row, {}, out);
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("--imatrix")) << format->name();
      refusing.insert(format->name());
    }
  }

  EXPECT_THAT(refusing, testing::ElementsAre("IQ1_S", "IQ2_XS", "IQ2_XXS"));
}

TEST(Encoder, RefusesAnImportanceThatDoesNotFit) {
  const WeightFormat& format = *find_format("Q4_K");
  const std::vector<float> row(256, 1.0f);
  std::vector<std::byte> out(format.row_bytes(256));
  std::vector<float> importance(255, 1.0f);

  EXPECT_THROW(format.encode_row(row, importance, out), ShapeError);

  importance.push_back(-1.0f);
  EXPECT_THROW(format.encode_row(row, importance, out), NumericError);
}

/// Groups whose maximum is near zero, and importance matrices of zeros, gave NaN scales elsewhere.
TEST(Encoder, Case_B63_TinyValuesAndZeroImportanceGiveFiniteBlocks) {
  std::vector<std::vector<float>> rows;
  for (const float extreme : {0.0f, 1e-25f, 1e-30f, 1e-38f, 1e-41f, 1e-45f, 1e-15f, 1e-8f}) {
    rows.emplace_back(256, 0.0f)[100] = extreme;
    rows.emplace_back(256, 0.0f)[0] = -extreme;
    rows.emplace_back(256, extreme);
  }
  const std::vector<float> no_importance(256, 0.0f);

  for (const WeightFormat* format : all_formats()) {
    if (!format->can_encode()) continue;
    for (const std::vector<float>& row : rows) {
      for (const bool with_importance : {false, true}) {
        if (format->needs_importance() && !with_importance) continue;
        std::vector<std::byte> bytes(format->row_bytes(256));
        format->encode_row(row, with_importance ? no_importance : std::vector<float>{}, bytes);
        const WeightView view{.format = format, .rows = 1, .columns = 256, .data = bytes};

        EXPECT_EQ(format->find_fault(view, 0), std::nullopt) << format->name();
        const float extreme = *std::max_element(row.begin(), row.end());
        for (const float value : decode_all(view)) {
          ASSERT_TRUE(std::isfinite(value)) << format->name();
          ASSERT_LE(std::fabs(value), 1.2f * std::max(std::fabs(extreme), std::fabs(row[0])))
              << format->name();
        }
      }
    }
  }
}

TEST(Encoder, Case_B63_ZeroImportanceCountsAllColumnsAlike) {
  const std::vector<float> row = test::random_floats(256, 3);
  const std::vector<float> zeros(256, 0.0f);
  const std::vector<float> ones(256, 1.0f);

  for (const WeightFormat* format : all_formats()) {
    if (!format->can_encode()) continue;
    std::vector<std::byte> with_zeros(format->row_bytes(256));
    std::vector<std::byte> with_ones(format->row_bytes(256));
    format->encode_row(row, zeros, with_zeros);
    format->encode_row(row, ones, with_ones);

    EXPECT_EQ(with_zeros, with_ones) << format->name();
  }
}

// ---------------------------------------------------------------------------------------------
// Properties of every format.

int64_t columns_for(const WeightFormat& format) { return format.block_columns() > 32 ? 512 : 160; }

/// The value that the fold of canonical-1 stands for (format.h).
float value_from_integers(const WeightFormat& format, const IntegerRow& row, int64_t group_size,
                          size_t k) {
  if (format.fold() == Fold::kFloat) return row.values[k];
  const size_t g = k / static_cast<size_t>(group_size);
  const auto code = static_cast<float>(row.codes[k]);
  switch (format.fold()) {
    case Fold::kGroup:
      return row.scales[g] * (code - static_cast<float>(row.zeros[g]));
    case Fold::kAffine:
      return row.scales[g] * code + row.mins[g];
    case Fold::kSuperBlock: {
      const size_t j = k / static_cast<size_t>(format.sub_block());
      const float value = row.scales[g] * static_cast<float>(row.sub_scales[j]) *
                          (code - static_cast<float>(format.code_zero()));
      const float minimum = row.mins[g] * static_cast<float>(row.sub_mins[j]);
      return value - minimum;
    }
    case Fold::kFloat:
      break;
  }
  return 0.0f;
}

TEST(EveryFormat, DecodesToTheValueOfItsIntegers) {
  for (const WeightFormat* format : all_formats()) {
    for (const int64_t group_size : {int64_t{32}, int64_t{64}, int64_t{128}, int64_t{0}}) {
      for (const DType scale_dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        const WeightMatrix matrix = random_weight_matrix(*format, 5, columns_for(*format),
                                                         group_size, /*seed=*/7, scale_dtype);
        std::vector<float> decoded(static_cast<size_t>(matrix.view.columns));
        std::vector<float> expected(decoded.size());
        IntegerRow integers;
        for (int64_t r = 0; r < matrix.view.rows; ++r) {
          format->decode_row(matrix.view, r, decoded);
          format->read_integers(matrix.view, r, integers);
          for (size_t k = 0; k < expected.size(); ++k) {
            // + 0: the minimum term turns −0 into +0.
            expected[k] = value_from_integers(*format, integers, matrix.view.group_size, k) + 0.0f;
            decoded[k] += 0.0f;
          }

          ASSERT_TRUE(bits_equal(decoded, expected))
              << format->name() << ", group " << group_size << ", row " << r;
        }
      }
    }
  }
}

/// Encoding keeps what the bits of the type can keep: the error of bell-shaped values, relative to
/// their size, of each type, with half as much again for the seed.
TEST(EveryFormat, EncodesWithTheErrorThatItsBitsAllow) {
  const std::map<std::string_view, double> expected = {
      {"F32", 0.0},      {"F16", 0.0003},   {"BF16", 0.002},  {"Q8_0", 0.0054}, {"Q6_K", 0.018},
      {"Q5_K", 0.036},   {"Q5_1", 0.040},   {"Q5_0", 0.043},  {"Q4_K", 0.072},  {"IQ4_XS", 0.077},
      {"IQ4_NL", 0.075}, {"Q4_1", 0.079},   {"Q4_0", 0.087},  {"NVFP4", 0.095}, {"MXFP4", 0.115},
      {"Q3_K", 0.15},    {"IQ3_S", 0.14},   {"IQ3_XXS", 0.2}, {"Q2_K", 0.28},   {"IQ2_S", 0.3},
      {"IQ2_XS", 0.34},  {"IQ2_XXS", 0.39}, {"IQ1_M", 0.5},   {"IQ1_S", 0.54},  {"Q1_0", 0.61},
      {"Q2_0", 0.7},     {"TQ1_0", 0.75},   {"TQ2_0", 0.75}};
  const std::vector<float> ones(1024, 1.0f);
  size_t n_compared = 0;
  for (const WeightFormat* format : all_formats()) {
    if (!format->can_encode()) continue;
    Random random(21);
    std::vector<float> row(1024);
    for (float& x : row) x = 0.05f * random.bell();
    std::vector<std::byte> bytes(format->row_bytes(1024));

    format->encode_row(row, format->needs_importance() ? ones : std::vector<float>{}, bytes);

    const std::vector<float> decoded =
        decode_all({.format = format, .rows = 1, .columns = 1024, .data = bytes});
    double error = 0.0;
    double size = 0.0;
    for (size_t i = 0; i < row.size(); ++i) {
      error += std::pow(static_cast<double>(decoded[i]) - static_cast<double>(row[i]), 2);
      size += std::pow(static_cast<double>(row[i]), 2);
    }
    ASSERT_TRUE(expected.contains(format->name())) << format->name();
    EXPECT_LE(std::sqrt(error / size), 1.5 * expected.at(format->name())) << format->name();
    ++n_compared;
  }
  EXPECT_EQ(n_compared, expected.size());
}

TEST(EveryFormat, FillsExactlyTheBuffersOfItsFold) {
  for (const WeightFormat* format : all_formats()) {
    const int64_t n = columns_for(*format);
    const WeightMatrix matrix = random_weight_matrix(*format, 2, n, 32, 1);
    IntegerRow row;
    for (auto* buffer : {&row.scales, &row.mins, &row.values}) buffer->assign(3, 1.0f);

    format->read_integers(matrix.view, 1, row);

    const Fold fold = format->fold();
    const auto n_groups = static_cast<size_t>(matrix.view.n_groups());
    const bool integers = fold != Fold::kFloat;
    const bool mins = fold == Fold::kAffine || fold == Fold::kSuperBlock;
    const size_t n_sub =
        fold == Fold::kSuperBlock ? static_cast<size_t>(n / format->sub_block()) : 0;
    EXPECT_EQ(row.codes.size(), integers ? static_cast<size_t>(n) : 0) << format->name();
    EXPECT_EQ(row.scales.size(), integers ? n_groups : 0) << format->name();
    EXPECT_EQ(row.mins.size(), mins ? n_groups : 0) << format->name();
    EXPECT_EQ(row.zeros.size(), fold == Fold::kGroup ? n_groups : 0) << format->name();
    EXPECT_EQ(row.sub_scales.size(), n_sub) << format->name();
    EXPECT_EQ(row.sub_mins.size(), n_sub) << format->name();
    EXPECT_EQ(row.values.size(), integers ? 0 : static_cast<size_t>(n)) << format->name();
    for (const uint8_t code : row.codes) {
      ASSERT_LT(code, 1 << std::min(8, format->code_bits())) << format->name();
    }
  }
}

TEST(EveryFormat, ReadsDataAtAnyAlignment) {
  for (const WeightFormat* format : all_formats()) {
    const WeightMatrix matrix = random_weight_matrix(*format, 3, columns_for(*format), 32, 2);
    const std::vector<float> expected = decode_all(matrix.view);
    for (const size_t shift : {1, 2, 3, 5}) {
      std::vector<std::byte> data(matrix.data.size() + shift);
      std::copy(matrix.data.begin(), matrix.data.end(), data.begin() + shift);
      std::vector<std::byte> scales(matrix.scales.bytes.size() + shift);
      std::copy(matrix.scales.bytes.begin(), matrix.scales.bytes.end(), scales.begin() + shift);
      WeightView view = matrix.view;
      view.data = std::span(data).subspan(shift);
      view.scales.bytes = std::span(scales).subspan(shift);

      EXPECT_TRUE(bits_equal(decode_all(view), expected)) << format->name();
      EXPECT_EQ(format->find_fault(view, 2), std::nullopt) << format->name();
    }
  }
}

TEST(EveryFormat, KeepsWhatItHasDecodedWhenEncodedAgainIfItIsScalar) {
  for (const WeightFormat* format : all_formats()) {
    if (format->fold() != Fold::kFloat) continue;
    const WeightMatrix matrix = random_weight_matrix(*format, 1, 64, 0, 5);
    std::vector<std::byte> again(matrix.data.size());

    format->encode_row(decode_all(matrix.view), {}, again);

    EXPECT_EQ(again, matrix.data) << format->name();
  }
}

TEST(EveryFormat, IsFoundByNameAndGgufType) {
  std::set<std::string> names;
  for (const WeightFormat* format : all_formats()) {
    std::string lower(format->name());
    for (char& c : lower) c = static_cast<char>(std::tolower(c));

    EXPECT_TRUE(names.insert(lower).second) << format->name();
    EXPECT_EQ(find_format(lower), format);
    if (format->gguf_type().has_value()) {
      EXPECT_EQ(find_gguf_format(*format->gguf_type()), format);
    }
  }
  EXPECT_EQ(find_format("Q9_9"), nullptr);
  EXPECT_EQ(find_gguf_format(4), nullptr);
}

TEST(EveryFormat, RefusesRowsThatCutABlock) {
  for (const WeightFormat* format : all_formats()) {
    if (format->block_columns() > 1) {
      EXPECT_THROW(format->row_bytes(format->block_columns() + 1), ShapeError) << format->name();
    }
    EXPECT_THROW(format->row_bytes(0), ShapeError) << format->name();
    EXPECT_EQ(format->row_bytes(512) * 8,
              static_cast<uint64_t>(512 / format->block_columns() * format->block_bytes() * 8));
  }
}

TEST(ScalarFormat, IsChosenByDtype) {
  EXPECT_EQ(scalar_format(DType::kF32).name(), "F32");
  EXPECT_EQ(scalar_format(DType::kF16).name(), "F16");
  EXPECT_EQ(scalar_format(DType::kBF16).name(), "BF16");
  EXPECT_THROW(scalar_format(DType::kI32), UnsupportedError);
}

TEST(ScalarFormat, WidensEveryF16LikeTheScalarConversion) {
  std::vector<uint16_t> bits(0x10000);
  std::vector<float> expected(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<uint16_t>(i);
    expected[i] = f16_to_f32(bits[i]);
  }
  const WeightView view{.format = &scalar_format(DType::kF16),
                        .rows = 1,
                        .columns = 0x10000,
                        .data = std::as_bytes(std::span(bits))};

  EXPECT_TRUE(bits_equal(decode_all(view), expected));
}

TEST(IntegerFormat, IsChosenByBitsAndSymmetry) {
  EXPECT_EQ(integer_format(3, true).name(), "W3");
  EXPECT_EQ(integer_format(3, false).name(), "W3_ASYM");
  EXPECT_EQ(integer_format(4, true).name(), "W4");
  EXPECT_EQ(integer_format(4, false).name(), "W4_ASYM");
  EXPECT_EQ(integer_format(8, true).name(), "W8");
  EXPECT_EQ(integer_format(8, false).name(), "W8_ASYM");
  EXPECT_EQ(find_integer_format(5, true), nullptr);
  EXPECT_EQ(integer_bits_text("and"), "3, 4 and 8");
}

TEST(IntegerFormat, PacksTheLowestColumnIntoTheLowestBits) {
  const std::vector<uint8_t> codes = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<std::byte> words(4);

  pack_codes(4, codes, words);

  uint32_t word = 0;
  std::memcpy(&word, words.data(), 4);
  EXPECT_EQ(word, 0x76543210u);
}

// Codes 0, 1, … 7, 0, 1, …: code 10 lies in words 0 and 1, code 21 in words 1 and 2.
TEST(IntegerFormat, LaysCodesOfThreeBitsAcrossWords) {
  std::vector<uint8_t> codes(32);
  for (size_t k = 0; k < codes.size(); ++k) codes[k] = static_cast<uint8_t>(k % 8);
  std::vector<std::byte> words(12);

  pack_codes(3, codes, words);

  uint32_t found[3];
  std::memcpy(found, words.data(), sizeof(found));
  EXPECT_EQ(found[0], 0x88fac688u);
  EXPECT_EQ(found[1], 0xc688fac6u);
  EXPECT_EQ(found[2], 0xfac688fau);
  const float scale = 0.5f;
  const WeightView view{.format = &integer_format(3, true),
                        .rows = 1,
                        .columns = 32,
                        .group_size = 32,
                        .data = words,
                        .scales = {DType::kF32, {1, 1}, std::as_bytes(std::span(&scale, 1))}};
  const std::vector<float> values = decode_all(view);
  for (size_t k = 0; k < codes.size(); ++k) {
    EXPECT_EQ(values[k], 0.5f * static_cast<float>(codes[k] - 4));
    EXPECT_EQ(packed_code(words.data(), 1, 3, static_cast<int64_t>(k)), codes[k]);
  }
}

TEST(IntegerFormat, FillsTheTailOfTheLastWordWithZeros) {
  const std::vector<uint8_t> codes = {15, 15, 15};
  std::vector<std::byte> words(4, std::byte{0xff});

  pack_codes(4, codes, words);

  uint32_t word = 0;
  std::memcpy(&word, words.data(), 4);
  EXPECT_EQ(word, 0x00000fffu);
}

TEST(IntegerFormat, Case_B37_RefusesToPackACodeThatWouldLeakIntoItsNeighbour) {
  const std::vector<uint8_t> codes = {16};
  std::vector<std::byte> words(4);

  EXPECT_THROW(pack_codes(4, codes, words), std::logic_error);
}

TEST(IntegerFormat, Case_B37_EveryZeroPointGivesScaleTimesDifference) {
  std::vector<uint8_t> codes(32);
  for (size_t k = 0; k < codes.size(); ++k) codes[k] = static_cast<uint8_t>(k % 16);
  std::vector<std::byte> words(16);
  pack_codes(4, codes, words);
  const float scale = 0.25f;

  for (const uint8_t zero : std::vector<uint8_t>{0, 7, 8, 15}) {
    WeightView view{.format = &integer_format(4, false),
                    .rows = 1,
                    .columns = 32,
                    .group_size = 32,
                    .data = words,
                    .scales = {DType::kF32, {1, 1}, std::as_bytes(std::span(&scale, 1))},
                    .zero_points = std::span(&zero, 1)};
    const std::vector<float> values = decode_all(view);
    for (size_t k = 0; k < codes.size(); ++k) {
      EXPECT_EQ(values[k], 0.25f * static_cast<float>(codes[k] - zero));
    }
  }
}

// ---------------------------------------------------------------------------------------------
// Faults of numbers.

TEST(FindFault, Case_B14_NamesABlockScaleThatIsNotFinite) {
  const WeightFormat& format = *find_format("Q4_K");
  for (const auto& [offset, bits] : std::vector<std::pair<size_t, uint16_t>>{
           {0, 0x7c00}, {0, 0xfe00}, {2, 0x7e01}, {2, 0xfc00}}) {
    WeightMatrix matrix = random_weight_matrix(format, 1, 512, 0, 9);
    std::memcpy(matrix.data.data() + 144 + offset, &bits, 2);

    const std::optional<std::string> fault = format.find_fault(matrix.view, 0);

    ASSERT_TRUE(fault.has_value());
    EXPECT_THAT(*fault, testing::HasSubstr("columns 256 to 511"));
    EXPECT_THAT(*fault, testing::HasSubstr(offset == 0 ? "scale d " : "dmin"));
  }
}

TEST(FindFault, Case_B14_SeesEveryScaleOfEveryBlockFormat) {
  for (const WeightFormat* each : all_formats()) {
    const WeightFormat& format = *each;
    const std::string name(format.name());
    // W4A16 scales lie elsewhere, plain numbers have none, and NVFP4 scales are always finite.
    if (format.block_columns() == 1 || !format.can_encode() || name == "NVFP4") continue;
    WeightMatrix matrix = random_weight_matrix(format, 2, 512, 0, 9);
    const std::map<std::string, size_t> scale_at = {
        {"Q2_K", 80}, {"Q3_K", 108}, {"Q6_K", 208}, {"TQ1_0", 52}, {"TQ2_0", 64}};
    std::byte* block =
        matrix.data.data() + matrix.data.size() - static_cast<size_t>(format.block_bytes());
    if (name == "MXFP4") {
      block[0] = std::byte{0xff};
    } else if (name == "IQ1_M") {  // an f16 in four nibbles
      const uint16_t scales[4] = {0, 0, 0xc000, 0x7000};
      std::memcpy(block + 48, scales, sizeof(scales));
    } else {
      block[(scale_at.contains(name) ? scale_at.at(name) : 0) + 1] = std::byte{0x7c};
    }

    EXPECT_FALSE(format.find_fault(matrix.view, 0).has_value()) << name;
    EXPECT_TRUE(format.find_fault(matrix.view, 1).has_value()) << name;
  }
}

TEST(FindFault, Case_B14_RefusesNanAndNegativeGroupScalesButNotZero) {
  for (const WeightFormat* format : {&integer_format(4, true), &integer_format(8, false)}) {
    for (const auto& [value, is_fault] :
         std::vector<std::pair<float, bool>>{{std::numeric_limits<float>::quiet_NaN(), true},
                                             {std::numeric_limits<float>::infinity(), true},
                                             {-0.01f, true},
                                             {0.0f, false}}) {
      WeightMatrix matrix = random_weight_matrix(*format, 2, 128, 32, 4, DType::kF32);
      std::memcpy(matrix.scales.bytes.data() + 4 * 6, &value, 4);

      const std::optional<std::string> fault = format->find_fault(matrix.view, 1);

      EXPECT_EQ(fault.has_value(), is_fault) << format->name() << " " << value;
      EXPECT_THAT(fault.value_or("group 2"), testing::HasSubstr("group 2"));
    }
  }
}

TEST(FindFault, Case_B14_NamesAValueThatIsNotFinite) {
  for (const WeightFormat* format : all_formats()) {
    if (format->fold() != Fold::kFloat) continue;
    std::vector<float> row(64, 1.0f);
    row[63] = -std::numeric_limits<float>::infinity();
    std::vector<std::byte> bytes(format->row_bytes(64));
    format->encode_row(row, {}, bytes);

    const std::optional<std::string> fault =
        format->find_fault({.format = format, .rows = 1, .columns = 64, .data = bytes}, 0);

    ASSERT_TRUE(fault.has_value()) << format->name();
    EXPECT_THAT(*fault, testing::HasSubstr("column 63"));
  }
}

// ---------------------------------------------------------------------------------------------
// Codebooks of the IQ types.

template <class Values>
std::string hash_of(const Values& values) {
  return sha256_hex(std::as_bytes(std::span(values)));
}

/// SHA-256 of ggml's lists of code words and decoding tables (ggml-common.h).
TEST(Codebook, WordsAndValuesAreThoseOfThePublishedHashes) {
  EXPECT_EQ(hash_of(iq2_xxs_codebook().words()),
            "915952ebc4af8ddba8113583ca1316fc818843f7b825bbf1a25ae1c39bf0e16d");
  EXPECT_EQ(hash_of(iq2_xs_codebook().words()),
            "f66435966ca8d64e9e4a6e3c91e64afcf9015e700ec85962f527283ebae207b9");
  EXPECT_EQ(hash_of(iq2_s_codebook().words()),
            "e6e75e121b65e8afa5c1f92b71463cfbe217b83893f438acde22fd5db06a43f7");
  EXPECT_EQ(hash_of(iq3_xxs_codebook().words()),
            "c9678803c61b2210fbd8cbbb3f965a835409cd7d88a04d086d236261bd221d11");
  EXPECT_EQ(hash_of(iq3_s_codebook().words()),
            "353274c58dd7d8dc5ee960dc8fc54ff9164eaf2b49206b841cd49415cf393f81");
  EXPECT_EQ(hash_of(iq1_codebook().words()),
            "e9ffebfc997ad6023063a667c0bf4eedd8ebf7f56b3da399cbc7d1b1f7ea52c6");
  EXPECT_EQ(hash_of(kIq2XxsValues),
            "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54");
  EXPECT_EQ(hash_of(kIq2XsValues),
            "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de");
  EXPECT_EQ(hash_of(kIq2SValues),
            "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88");
  EXPECT_EQ(hash_of(kIq3XxsValues),
            "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d");
  EXPECT_EQ(hash_of(kIq3SValues),
            "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f");
  EXPECT_EQ(hash_of(kIq1Values),
            "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a");
}

TEST(Codebook, NeighboursOfAMissingWordAreTheNearestRings) {
  const Codebook& book = iq3_xxs_codebook();
  uint32_t word = 0;
  while (book.find(word) >= 0) ++word;

  std::map<int, std::vector<int>> rings;  // distance → positions
  for (int e = 0; e < 256; ++e) {
    int distance = 0;
    for (int k = 0; k < 4; ++k) {
      const int difference = 2 * (book.levels(e)[k] - static_cast<int>((word >> (3 * k)) & 7));
      distance += difference * difference;
    }
    rings[distance].push_back(e);
  }
  std::vector<int> expected = rings.begin()->second;
  const std::vector<int>& second = std::next(rings.begin())->second;
  expected.insert(expected.end(), second.begin(), second.end());

  EXPECT_THAT(book.neighbours(word), testing::ElementsAreArray(expected));
}

TEST(Iq4, MiddlesDecideLikeTheDistancesToBothNeighbours) {
  for (int i = 0; i < 15; ++i) {
    for (const float middle : {kIq4Middles[i], std::nextafter(kIq4Middles[i], -200.0f),
                               std::nextafter(kIq4Middles[i], 200.0f)}) {
      const float below = middle - static_cast<float>(kIq4Values[i]);
      const float above = static_cast<float>(kIq4Values[i + 1]) - middle;
      EXPECT_EQ(nearest_iq4(middle), below < above ? i : i + 1) << middle;
    }
  }
  EXPECT_EQ(nearest_iq4(-1e30f), 0);
  EXPECT_EQ(nearest_iq4(1e30f), 15);
}

TEST(Q3K, ScaleSurvivesPacking) {
  for (int value = 0; value < 64; ++value) {
    uint8_t packed[12] = {};
    for (int j = 0; j < 16; ++j) q3_k_set_scale(packed, j, value ^ j);

    for (int j = 0; j < 16; ++j) EXPECT_EQ(q3_k_scale(packed, j), value ^ j);
  }
}

TEST(Q4K, ScaleAndMinimumSurvivePacking) {
  for (int value = 0; value < 64; ++value) {
    uint8_t packed[12] = {};
    for (int j = 0; j < 8; ++j) {
      q4_k_set_scale_min(packed, j,
                         {static_cast<uint8_t>(value ^ j), static_cast<uint8_t>(63 - value)});
    }
    for (int j = 0; j < 8; ++j) {
      const SubScale sub = q4_k_scale_min(packed, j);
      EXPECT_EQ(sub.scale, value ^ j);
      EXPECT_EQ(sub.min, 63 - value);
    }
  }
}

}  // namespace
}  // namespace assay
