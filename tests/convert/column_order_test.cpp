#include "convert/formats/column_order.h"

#include <gtest/gtest.h>

#include "convert/checkpoint/plain_tensor.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

constexpr int64_t kColumns = 512;

/// A row of random numbers in `format`, its blocks of 128 columns to be read in another order.
class MovedColumns : public testing::TestWithParam<const char*> {
 protected:
  MovedColumns() : format_(*find_format(GetParam())) {
    test::Random random(11);
    std::vector<float> values(kColumns);
    for (float& value : values) value = random.bell();
    bytes_.resize(format_.row_bytes(kColumns));
    format_.encode_row(values, {}, bytes_);
  }
  CheckpointMatrix matrix(ColumnOrder order) const {
    return PlainTensor("w", format_, {1, kColumns}, bytes_, {}, std::move(order)).load();
  }

  const WeightFormat& format_;
  std::vector<std::byte> bytes_;
};

INSTANTIATE_TEST_SUITE_P(Formats, MovedColumns,
                         testing::Values("F32", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"),
                         [](const auto& format) { return std::string(format.param); });

TEST_P(MovedColumns, KeepTheirValues) {
  const ColumnOrder order{.block = 128, .source = {2, 0, 3, 1}};
  std::vector<float> stored(kColumns), moved(kColumns);
  matrix({}).decode_row(0, stored);

  matrix(order).decode_row(0, moved);

  for (int64_t c = 0; c < kColumns; ++c) {
    const int64_t source = order.source[static_cast<size_t>(c / 128)] * 128 + c % 128;
    EXPECT_EQ(moved[static_cast<size_t>(c)], stored[static_cast<size_t>(source)]) << c;
  }
}

TEST_P(MovedColumns, KeepCodesAndScalesTogether) {
  const ColumnOrder order{.block = 128, .source = {2, 0, 3, 1}};
  const CheckpointMatrix plain = matrix({});
  const CheckpointMatrix other = matrix(order);
  IntegerRow stored, moved;
  plain.read_integers(0, stored);

  other.read_integers(0, moved);

  if (format_.fold() == Fold::kFloat) {
    EXPECT_EQ(moved.values[0], stored.values[2 * 128]);
    return;
  }
  const int64_t from = plain.group_size();
  const int64_t to = other.group_size();
  EXPECT_EQ(128 % to, 0);
  ASSERT_EQ(moved.scales.size(), static_cast<size_t>(kColumns / to));
  for (int64_t c = 0; c < kColumns; ++c) {
    const int64_t source = order.source[static_cast<size_t>(c / 128)] * 128 + c % 128;
    EXPECT_EQ(moved.codes[static_cast<size_t>(c)], stored.codes[static_cast<size_t>(source)]);
    EXPECT_EQ(moved.scales[static_cast<size_t>(c / to)],
              stored.scales[static_cast<size_t>(source / from)]);
    if (format_.fold() == Fold::kSuperBlock) {
      const int64_t sub = format_.sub_block();
      EXPECT_EQ(moved.sub_scales[static_cast<size_t>(c / sub)],
                stored.sub_scales[static_cast<size_t>(source / sub)]);
    }
  }
}

}  // namespace
}  // namespace assay
