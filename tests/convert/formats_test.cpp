#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>

#include "convert/core/error.h"
#include "convert/core/sha256.h"
#include "convert/formats/format.h"
#include "convert/formats/packed_integer.h"
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

/// The input of formats.md §11: 8 rows × 1,024 values, then 1,024 importance values.
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

/// Rows of formats.md §11 (ggml without contraction).
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
    {"Q4_K", false, "7cc5a2612ece141c134bf86c26df660ef517b4fb7ebde824782f814b21fb8817",
     "4e4e512222e5b6dc"},
    {"Q4_K", true, "897441194a0c2b41dd5b20bc15eeada1915c204ebab219217a4f5006c08b3440",
     "e2fe5c579b033d49"},
    {"Q6_K", false, "17feb00c0a11e1dc8a15af23e81acffe778df2907756ffbea5e8da3bdb6c48c1",
     "0755af3000abc5cb"},
    {"Q6_K", true, "6d6d5c022d76c474b970d2c3871c0bcd1ae4a1fc346815fe4a66b5922b1dde6f",
     "7703ecdc310d3153"},
};

class ReferenceQuantizer : public testing::TestWithParam<QuantizerVector> {};

TEST_P(ReferenceQuantizer, GivesThePublishedBytes) {
  const ReferenceInput input;
  const WeightFormat& format = *find_format(GetParam().format);
  const std::span<const float> importance =
      GetParam().importance ? std::span<const float>(input.importance) : std::span<const float>();
  const auto row_bytes = static_cast<size_t>(format.row_bytes(1024));
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

  // Q4_0: d = 0/−8 = −0, codes 8; every other type is all zero bytes (formats.md §6.2).
  const std::vector<std::byte> q4_0 = bytes_of("Q4_0");
  EXPECT_EQ(q4_0[0], std::byte{0x00});
  EXPECT_EQ(q4_0[1], std::byte{0x80});
  EXPECT_EQ(q4_0[2], std::byte{0x88});
  for (const char* name : {"Q4_1", "Q8_0", "Q4_K", "Q6_K"}) {
    EXPECT_THAT(bytes_of(name), testing::Each(std::byte{0})) << name;
  }
}

TEST(Encoder, RefusesNanAndNamesTheColumn) {
  std::vector<float> row(256, 1.0f);
  row[77] = std::numeric_limits<float>::quiet_NaN();

  for (const char* name : {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"}) {
    const WeightFormat& format = *find_format(name);
    std::vector<std::byte> out(format.row_bytes(256));
    try {
      format.encode_row(row, {}, out);
      ADD_FAILURE() << name << " accepted NaN";
    } catch (const NumericError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("column 77")) << name;
    }
  }
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

int64_t columns_for(const WeightFormat& format) {
  return format.block_columns() == 256 ? 512 : 160;
}

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
  EXPECT_EQ(integer_format(4, true).name(), "W4");
  EXPECT_EQ(integer_format(4, false).name(), "W4_ASYM");
  EXPECT_EQ(integer_format(8, true).name(), "W8");
  EXPECT_EQ(integer_format(8, false).name(), "W8_ASYM");
}

TEST(IntegerFormat, PacksTheLowestColumnIntoTheLowestBits) {
  const std::vector<uint8_t> codes = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<std::byte> words(4);

  pack_codes(4, codes, words);

  uint32_t word = 0;
  std::memcpy(&word, words.data(), 4);
  EXPECT_EQ(word, 0x76543210u);
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
  for (const char* name : {"Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"}) {
    const WeightFormat& format = *find_format(name);
    WeightMatrix matrix = random_weight_matrix(format, 2, 512, 0, 9);
    const auto n = static_cast<size_t>(format.block_bytes());
    const size_t at = matrix.data.size() - n + (std::string(name) == "Q6_K" ? 208 : 0);
    matrix.data[at + 1] = std::byte{0x7c};

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
