#include "runtime/ops/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/isa.h"
#include "convert/core/parallel.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"
#include "tests/support/weight_matrix.h"

namespace assay {
namespace {

using test::bits_equal;
using test::Random;

using ReadRow = std::function<void(int64_t, IntegerRow&)>;

/// A format that exists only in fold, code width and sub-block: linear() may look at nothing else.
class SyntheticFormat final : public WeightFormat {
 public:
  SyntheticFormat(Fold fold, int bits, int64_t sub_block = 0, int code_zero = 0)
      : fold_(fold), bits_(bits), sub_block_(sub_block), code_zero_(code_zero) {}

  std::string_view name() const override { return "synthetic"; }
  Fold fold() const override { return fold_; }
  int code_bits() const override { return bits_; }
  int64_t block_columns() const override { return 1; }
  int64_t block_bytes() const override { return 1; }
  int64_t sub_block() const override { return sub_block_; }
  int code_zero() const override { return code_zero_; }
  void read_integers(const WeightView&, int64_t, IntegerRow&) const override {}
  void decode_row(const WeightView&, int64_t, std::span<float>) const override {}
  std::optional<std::string> find_fault(const WeightView&, int64_t) const override { return {}; }

 private:
  Fold fold_;
  int bits_;
  int64_t sub_block_;
  int code_zero_;
};

/// The instruction sets of this CPU, each forced while the object lives.
std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= best_isa()) isas.push_back(isa);
  }
  return isas;
}

struct ForceIsa {
  explicit ForceIsa(Isa isa) { force_isa(isa); }
  ~ForceIsa() { force_isa(best_isa()); }
};

struct Problem {
  const WeightFormat* format;
  int64_t rows;
  int64_t columns;
  int64_t group_size;
  ReadRow read_row;
};

BlockInt16 activations(int64_t n_tokens, int64_t columns, uint64_t seed, float scale = 3.0f) {
  const std::vector<float> x = Random(seed).reals(static_cast<size_t>(n_tokens * columns), scale);
  BlockInt16 block;
  EXPECT_EQ(quantize_block_int16_reference(x.data(), n_tokens, columns, columns, block), -1);
  return block;
}

/// Every code ±32,639, in a pattern that neither plane sums nor signs hide.
BlockInt16 extreme_activations(int64_t n_tokens, int64_t columns, int pattern) {
  std::vector<float> x(static_cast<size_t>(n_tokens * columns));
  for (size_t i = 0; i < x.size(); ++i) {
    const bool negative = pattern == 0 ? false : pattern == 1 ? true : i % 3 == 0;
    // 32,639 = (127, 127); −32,640 + 1 = (−127, −127); 32,384 + 128 gives the low plane −128.
    x[i] = pattern == 3 ? -128.0f - 256.0f * static_cast<float>(i % 100)
                        : (negative ? -32639.0f : 32639.0f);
  }
  BlockInt16 block;
  EXPECT_EQ(quantize_block_int16_reference(x.data(), n_tokens, columns, columns, block), -1);
  return block;
}

std::vector<float> reference(const Problem& p, const BlockInt16& x, std::span<const float> bias) {
  std::vector<float> y(static_cast<size_t>(x.rows * p.rows));
  linear_reference(*p.format, p.rows, p.columns, p.group_size, p.read_row, x, bias, y.data(),
                   p.rows);
  return y;
}

std::vector<float> packed(const Problem& p, const PackedMatrix& matrix, const BlockInt16& x,
                          std::span<const float> bias) {
  std::vector<float> y(static_cast<size_t>(x.rows * p.rows), -1.0f);
  linear(matrix, x, bias, y.data(), p.rows);
  return y;
}

/// With a bias where rows + tokens is odd.
void expect_all_isas_equal_reference(const Problem& p, const BlockInt16& x) {
  const std::vector<float> numbers = Random(77).reals(static_cast<size_t>(p.rows), 2.0f);
  const bool with_bias = (p.rows + x.rows) % 2 == 1;
  const std::span<const float> bias = with_bias ? std::span(numbers) : std::span<const float>();
  const PackedMatrix matrix =
      PackedMatrix::pack(*p.format, p.rows, p.columns, p.group_size, p.read_row);
  const std::vector<float> expected = reference(p, x, bias);
  for (const Isa isa : available_isas()) {
    const ForceIsa forced(isa);

    EXPECT_TRUE(bits_equal(packed(p, matrix, x, bias), expected))
        << isa_name(isa) << ", rows " << p.rows << ", columns " << p.columns << ", group "
        << p.group_size << ", tokens " << x.rows << (with_bias ? ", bias" : "");
  }
}

Problem problem_of(const test::WeightMatrix& matrix) {
  const WeightView& view = matrix.view;
  const int64_t fixed = view.format->fixed_group();
  return {view.format, view.rows, view.columns, fixed > 0 ? fixed : view.group_size,
          [&view](int64_t row, IntegerRow& out) { view.format->read_integers(view, row, out); }};
}

// --- every format of the list ---

class LinearOfFormat : public testing::TestWithParam<const WeightFormat*> {};

TEST_P(LinearOfFormat, EqualsReferenceForEveryIsaAndShape) {
  const WeightFormat& format = *GetParam();
  const int64_t step = std::max<int64_t>(format.block_columns(), 16);
  int case_index = 0;
  for (const int64_t columns : {32, 96, 128, 160, 384, 512, 544, 768, 2048}) {
    if (columns % step != 0) continue;
    for (const int64_t rows : {1, 15, 16, 17, 33}) {
      for (const int64_t group_size : {32, 128, 0}) {
        const bool fixed = format.fixed_group() > 0 || format.fold() == Fold::kFloat;
        if (fixed && group_size != 128) continue;
        const int64_t n_tokens = std::vector<int64_t>{1, 7, 2, 9, 3, 5, 4, 33}[case_index++ % 8];
        const test::WeightMatrix weights = test::random_weight_matrix(
            format, rows, columns, group_size, 1, case_index % 2 == 0 ? DType::kF16 : DType::kBF16);

        expect_all_isas_equal_reference(problem_of(weights), activations(n_tokens, columns, 2));
      }
    }
  }
  EXPECT_GT(case_index, 0);
}

TEST_P(LinearOfFormat, GivesTheSameBitsForEveryBatchSize) {
  const WeightFormat& format = *GetParam();
  const test::WeightMatrix weights = test::random_weight_matrix(format, 35, 1024, 128, 3);
  const Problem p = problem_of(weights);
  const PackedMatrix matrix =
      PackedMatrix::pack(format, p.rows, p.columns, p.group_size, p.read_row);
  const int64_t most = 41;
  const std::vector<float> x = Random(4).reals(static_cast<size_t>(most * p.columns), 1.0f);
  BlockInt16 block;
  for (const Isa isa : available_isas()) {
    const ForceIsa forced(isa);
    ASSERT_EQ(quantize_block_int16(x.data(), most, p.columns, p.columns, block), -1);
    const std::vector<float> together = packed(p, matrix, block, {});
    for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 24, 33}) {
      ASSERT_EQ(quantize_block_int16(x.data(), n, p.columns, p.columns, block), -1);

      EXPECT_TRUE(bits_equal(packed(p, matrix, block, {}),
                             std::span(together).first(static_cast<size_t>(n * p.rows))))
          << isa_name(isa) << ", tokens " << n;
    }
  }
}

TEST_P(LinearOfFormat, TakesTheBytesThatWereEstimated) {
  const WeightFormat& format = *GetParam();
  const test::WeightMatrix weights =
      test::random_weight_matrix(format, 64, 1024, 128, 3, DType::kF16);
  const Problem p = problem_of(weights);

  const PackedMatrix matrix =
      PackedMatrix::pack(format, p.rows, p.columns, p.group_size, p.read_row);
  const uint64_t estimate = PackedMatrix::bytes_for(format, p.rows, p.columns, p.group_size);

  // Zero points per group are seen only in the data; they cost a byte each.
  EXPECT_GE(matrix.bytes(), estimate);
  EXPECT_LE(matrix.bytes(), estimate + 64 * 1024 / 128);
}

std::string name_of(const testing::TestParamInfo<const WeightFormat*>& info) {
  return std::string(info.param->name());
}

std::vector<const WeightFormat*> list_of_formats() {
  return {all_formats().begin(), all_formats().end()};
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearOfFormat, testing::ValuesIn(list_of_formats()), name_of);

// --- every fold and code width, extreme numbers ---

struct Synthetic {
  Fold fold;
  int bits;
  int64_t sub_block;
  int64_t group;
  bool with_mins;
};

class LinearOfFold : public testing::TestWithParam<Synthetic> {
 protected:
  static constexpr int64_t kRows = 18;
  static constexpr int64_t kColumns = 768;

  SyntheticFormat format() const {
    const Synthetic s = GetParam();
    const int zero = s.fold == Fold::kSuperBlock && !s.with_mins ? 1 << (s.bits - 1) : 0;
    return {s.fold, s.bits, s.sub_block, zero};
  }

  /// Rows from a rule: code(row, column), scale of group g, sub-scale of sub-block j.
  template <typename Code, typename Scale, typename Sub>
  ReadRow rows(const Code& code, const Scale& scale, const Sub& sub) const {
    const Synthetic s = GetParam();
    return [=](int64_t row, IntegerRow& out) {
      out.codes.resize(kColumns);
      for (int64_t k = 0; k < kColumns; ++k) {
        out.codes[static_cast<size_t>(k)] =
            static_cast<uint8_t>(code(row, k) & ((1 << s.bits) - 1));
      }
      const int64_t n_groups = (kColumns + s.group - 1) / s.group;
      out.scales.resize(static_cast<size_t>(n_groups));
      out.mins.clear();
      out.zeros.clear();
      for (int64_t g = 0; g < n_groups; ++g) {
        out.scales[static_cast<size_t>(g)] = scale(row, g);
        if (s.fold == Fold::kGroup) {
          out.zeros.push_back(s.with_mins ? static_cast<int32_t>((row * 5 + g) % (1 << s.bits))
                                          : 1 << (s.bits - 1));
        }
        if (s.fold != Fold::kGroup && s.with_mins) out.mins.push_back(-scale(row, g + 1));
      }
      if (s.fold != Fold::kSuperBlock) return;
      out.sub_scales.resize(static_cast<size_t>(kColumns / s.sub_block));
      out.sub_mins.assign(out.sub_scales.size(), 0);
      for (size_t j = 0; j < out.sub_scales.size(); ++j) {
        out.sub_scales[j] = static_cast<int16_t>(sub(row, static_cast<int64_t>(j)));
        if (s.with_mins) {
          out.sub_mins[j] = static_cast<int16_t>(sub(row + 1, static_cast<int64_t>(j)));
        }
      }
    };
  }

  void expect_equal(const ReadRow& read_row, const BlockInt16& x) const {
    const SyntheticFormat f = format();
    expect_all_isas_equal_reference({&f, kRows, kColumns, GetParam().group, read_row}, x);
  }
};

TEST_P(LinearOfFold, IsExactWithTheLargestCodes) {
  const ReadRow read_row = rows([](int64_t row, int64_t) { return row % 2 == 0 ? 255 : 0; },
                                [](int64_t, int64_t) { return 0.0123f; },
                                [](int64_t row, int64_t) { return row % 3 == 0 ? -128 : 127; });
  for (const int pattern : {0, 1, 2, 3}) {
    expect_equal(read_row, extreme_activations(5, kColumns, pattern));
  }
}

TEST_P(LinearOfFold, AgreesOnRandomRows) {
  const Random random(5);
  const ReadRow read_row = rows(
      [random](int64_t row, int64_t k) {
        return static_cast<int>(random.below_at(256, static_cast<uint64_t>(row * 4096 + k)));
      },
      [random](int64_t row, int64_t g) {
        return random.uniform_at(static_cast<uint64_t>(row * 64 + g)) * 0.01f;
      },
      [random](int64_t row, int64_t j) {
        return static_cast<int>(random.below_at(256, static_cast<uint64_t>(row * 99 + j))) - 128;
      });
  for (const int64_t n_tokens : {1, 2, 3, 4, 6, 8}) {
    expect_equal(read_row, activations(n_tokens, kColumns, 6));
  }
}

TEST_P(LinearOfFold, KeepsSubnormalScalesAndZeroGroups) {
  const ReadRow read_row =
      rows([](int64_t row, int64_t k) { return static_cast<int>(row + k * 3); },
           [](int64_t row, int64_t g) {
             constexpr float kScales[] = {0.0f, 0x1p-149f, -0x1.8p-140f, 0x1p-20f, -0.0f, 0x1p-24f};
             return kScales[(row + g) % 6];
           },
           [](int64_t, int64_t j) { return static_cast<int>(j % 7) - 3; });
  std::vector<float> x = Random(7).reals(3 * kColumns, 1.0f);
  std::fill(x.begin() + 128, x.begin() + 384, 0.0f);         // whole groups of zeros
  std::fill(x.begin() + 1000, x.begin() + 1500, 0x1p-130f);  // scale 2^-100
  BlockInt16 block;
  ASSERT_EQ(quantize_block_int16_reference(x.data(), 3, kColumns, kColumns, block), -1);

  expect_equal(read_row, block);
}

TEST_P(LinearOfFold, RejectsAnInfiniteProductOfScales) {
  const ReadRow read_row = rows([](int64_t, int64_t) { return 1; },
                                [](int64_t row, int64_t) { return row == 17 ? 0x1p100f : 1.0f; },
                                [](int64_t, int64_t) { return 1; });
  const SyntheticFormat f = format();
  const PackedMatrix matrix = PackedMatrix::pack(f, kRows, kColumns, GetParam().group, read_row);
  std::vector<float> x(2 * kColumns, 1.0f);
  x[kColumns + 5] = 0x1p60f;  // scale 2^46, times 2^100
  BlockInt16 block;
  ASSERT_EQ(quantize_block_int16_reference(x.data(), 2, kColumns, kColumns, block), -1);
  std::vector<float> y(2 * kRows);
  for (const Isa isa : available_isas()) {
    const ForceIsa forced(isa);

    try {
      linear(matrix, block, {}, y.data(), kRows);
      ADD_FAILURE() << "not rejected on " << isa_name(isa);
    } catch (const InfiniteProduct& e) {
      EXPECT_EQ(e.token, 1);
      EXPECT_EQ(e.row, 17);
    }
  }
}

TEST_P(LinearOfFold, DoesNotMistakeAnOverflowingSumForAnInfiniteProduct) {
  const ReadRow read_row =
      rows([](int64_t, int64_t) { return 255; }, [](int64_t, int64_t) { return 0x1p100f; },
           [](int64_t, int64_t) { return 127; });
  expect_equal(read_row, [] {
    const std::vector<float> x(kColumns, 0x1.fp41f);  // scale 2^27
    BlockInt16 block;
    EXPECT_EQ(quantize_block_int16_reference(x.data(), 1, kColumns, kColumns, block), -1);
    return block;
  }());
}

INSTANTIATE_TEST_SUITE_P(
    Folds, LinearOfFold,
    testing::Values(
        Synthetic{Fold::kGroup, 4, 0, 16, false}, Synthetic{Fold::kGroup, 4, 0, 32, false},
        Synthetic{Fold::kGroup, 4, 0, 64, true}, Synthetic{Fold::kGroup, 4, 0, 128, true},
        Synthetic{Fold::kGroup, 4, 0, 256, false}, Synthetic{Fold::kGroup, 4, 0, 384, true},
        Synthetic{Fold::kGroup, 4, 0, 96, true}, Synthetic{Fold::kGroup, 4, 0, 768, false},
        Synthetic{Fold::kGroup, 6, 0, 32, false}, Synthetic{Fold::kGroup, 6, 0, 128, true},
        Synthetic{Fold::kGroup, 8, 0, 32, false}, Synthetic{Fold::kGroup, 8, 0, 128, true},
        Synthetic{Fold::kAffine, 4, 0, 32, true}, Synthetic{Fold::kAffine, 6, 0, 32, true},
        Synthetic{Fold::kAffine, 8, 0, 128, true}, Synthetic{Fold::kSuperBlock, 4, 32, 256, true},
        Synthetic{Fold::kSuperBlock, 4, 16, 256, true},
        Synthetic{Fold::kSuperBlock, 4, 16, 256, false},
        Synthetic{Fold::kSuperBlock, 4, 128, 256, true},
        Synthetic{Fold::kSuperBlock, 6, 16, 256, false},
        Synthetic{Fold::kSuperBlock, 6, 32, 256, true},
        Synthetic{Fold::kSuperBlock, 8, 32, 256, true},
        Synthetic{Fold::kSuperBlock, 8, 16, 256, false}));

// --- 16- and 32-bit weights ---

TEST(LinearOfFloats, IsExactWithTheLargestPlanes) {
  const SyntheticFormat format(Fold::kFloat, 32);
  const ReadRow read_row = [](int64_t row, IntegerRow& out) {
    out.values.resize(768);
    for (size_t k = 0; k < out.values.size(); ++k) {
      const bool negative = row % 3 == 1 || (row % 3 == 2 && k % 2 == 0);
      out.values[k] = negative ? -32639.0f : 32639.0f;
      if (row % 5 == 4) out.values[k] = -128.0f - 256.0f * static_cast<float>(k % 127);
    }
  };
  for (const int pattern : {0, 1, 2, 3}) {
    expect_all_isas_equal_reference({&format, 18, 768, 128, read_row},
                                    extreme_activations(5, 768, pattern));
  }
}

TEST(LinearOfFloats, RejectsAWeightThatIsNotFinite) {
  const SyntheticFormat format(Fold::kFloat, 32);
  const ReadRow read_row = [](int64_t row, IntegerRow& out) {
    out.values.assign(64, 1.0f);
    if (row == 3) out.values[40] = std::numeric_limits<float>::infinity();
  };

  EXPECT_THROW(
      try { PackedMatrix::pack(format, 5, 64, 128, read_row); } catch (const NumericError& e) {
        EXPECT_THAT(e.what(), testing::HasSubstr("row 3, column 40"));
        throw;
      },
      NumericError);
}

// --- packing ---

TEST(PackedMatrix, RejectsAScaleThatIsNotFinite) {
  const SyntheticFormat format(Fold::kGroup, 4);
  const ReadRow read_row = [](int64_t row, IntegerRow& out) {
    out.codes.assign(64, 1);
    out.zeros.assign(2, 8);
    out.scales.assign(2, row == 20 ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
  };

  EXPECT_THROW(
      try { PackedMatrix::pack(format, 40, 64, 32, read_row); } catch (const NumericError& e) {
        EXPECT_THAT(e.what(), testing::HasSubstr("row 20"));
        throw;
      },
      NumericError);
}

TEST(PackedMatrix, WidensItsScalesWhenALaterRowNeedsIt) {
  const SyntheticFormat format(Fold::kGroup, 4);
  // Row 0 fits f16 and bf16, row 100 only f16, row 200 only bf16, row 300 neither; zero points
  // begin to differ in row 250.
  const auto rows_up_to = [](int64_t n) {
    return Problem{nullptr, n, 64, 32, [](int64_t row, IntegerRow& out) {
                     out.codes.assign(64, static_cast<uint8_t>(row % 16));
                     out.zeros.assign(2, row == 250 ? 7 : 8);
                     const float scale = row == 100   ? 0x1.ffcp-3f
                                         : row == 200 ? 0x1p-60f
                                         : row == 300 ? 0x1.fffffep-60f
                                                      : 0.5f;
                     out.scales.assign(2, scale);
                   }};
  };
  for (const int64_t n : {90, 150, 240, 270, 310}) {
    Problem p = rows_up_to(n);
    p.format = &format;

    expect_all_isas_equal_reference(p, activations(3, 64, 8));
  }
}

TEST(PackedMatrix, LeavesOtherColumnsOfTheOutputAlone) {
  const SyntheticFormat format(Fold::kGroup, 4);
  const ReadRow read_row = [](int64_t, IntegerRow& out) {
    out.codes.assign(64, 9);
    out.zeros.assign(1, 8);
    out.scales.assign(1, 1.0f);
  };
  const PackedMatrix matrix = PackedMatrix::pack(format, 5, 64, 64, read_row);
  const BlockInt16 x = activations(7, 64, 9);
  for (const Isa isa : available_isas()) {
    const ForceIsa forced(isa);
    std::vector<float> y(7 * 8, 123.0f);

    linear(matrix, x, {}, y.data(), 8);

    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i] == 123.0f, i % 8 >= 5) << i;
  }
}

TEST(PackedMatrix, GivesTheSameBitsForEveryNumberOfThreads) {
  const test::WeightMatrix weights =
      test::random_weight_matrix(*find_format("Q4_K"), 300, 512, 0, 10);
  const Problem p = problem_of(weights);
  const BlockInt16 x = activations(20, 512, 11);
  const std::vector<float> expected = reference(p, x, {});
  for (const int threads : {1, 2, 5}) {
    set_n_threads(threads);
    const PackedMatrix matrix =
        PackedMatrix::pack(*p.format, p.rows, p.columns, p.group_size, p.read_row);

    EXPECT_TRUE(bits_equal(packed(p, matrix, x, {}), expected)) << threads << " threads";
  }
  set_n_threads(0);
}

}  // namespace
}  // namespace assay
