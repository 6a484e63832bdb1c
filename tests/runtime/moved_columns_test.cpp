// Linear layers whose columns were moved block by block.
#include <gtest/gtest.h>

#include <vector>

#include "convert/checkpoint/plain_tensor.h"
#include "runtime/ops/linear.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

constexpr int64_t kRows = 20;
constexpr int64_t kColumns = 512;

class MovedColumnsLinear : public testing::TestWithParam<const char*> {
 protected:
  MovedColumnsLinear() : format_(*find_format(GetParam())) {
    test::Random random(5);
    std::vector<float> row(kColumns);
    for (int64_t r = 0; r < kRows; ++r) {
      for (float& value : row) value = random.bell();
      std::vector<std::byte> bytes(format_.row_bytes(kColumns));
      format_.encode_row(row, {}, bytes);
      bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    x_.resize(3 * kColumns);
    for (float& value : x_) value = random.bell();
  }

  std::vector<float> product(ColumnOrder order) const {
    const CheckpointMatrix matrix =
        PlainTensor("w", format_, {kRows, kColumns}, bytes_, {}, std::move(order)).load();
    const PackedMatrix packed =
        PackedMatrix::pack(format_, kRows, kColumns, matrix.group_size(),
                           [&](int64_t row, IntegerRow& out) { matrix.read_integers(row, out); });
    BlockInt16 block;
    EXPECT_EQ(quantize_block_int16(x_.data(), 3, kColumns, kColumns, block), -1);
    std::vector<float> out(3 * kRows);
    linear(packed, block, {}, out.data(), kRows);
    return out;
  }

  const WeightFormat& format_;
  std::vector<std::byte> bytes_;
  std::vector<float> x_;
};

INSTANTIATE_TEST_SUITE_P(Formats, MovedColumnsLinear,
                         testing::Values("BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K"),
                         [](const auto& format) { return std::string(format.param); });

// Each to its own place: scales that count for 256 columns are split, and no bit may change.
TEST_P(MovedColumnsLinear, GiveTheSameBitsWhereScalesAreSplit) {
  EXPECT_TRUE(test::bits_equal(product({.block = 128, .source = {0, 1, 2, 3}}), product({})));
}

TEST_P(MovedColumnsLinear, GiveOtherProductsInAnotherOrder) {
  EXPECT_FALSE(test::bits_equal(product({.block = 128, .source = {1, 0, 3, 2}}), product({})));
}

}  // namespace
}  // namespace assay
