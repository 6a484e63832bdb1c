#include <gtest/gtest.h>

#include <cstring>

#include "convert/core/error.h"
#include "quantizer/layouts/layout.h"
#include "quantizer/layouts/packing.h"
#include "tests/support/random.h"

namespace assay {

extern const CheckpointLayout kCompressedTensorsLayout;
extern const CheckpointLayout kGptqLayout;

namespace {

std::vector<uint32_t> words_of(const std::vector<std::byte>& bytes) {
  std::vector<uint32_t> words(bytes.size() / 4);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

LayerResult result_with(std::vector<uint8_t> codes, std::vector<float> scales,
                        std::vector<uint8_t> zeros) {
  LayerResult result;
  result.codes = std::move(codes);
  result.scales = std::move(scales);
  result.zero_points = std::move(zeros);
  return result;
}

// Codes 0 … 7 along the packing axis: one word 0x76543210 in both layouts (compressed-tensors, GPTQ
// v1).
TEST(Layouts, Case_B37_CompressedTensorsPacksAlongTheRow) {
  const LinearShape linear{"m", 1, 8};
  const QuantizeOptions options{.group_size = 8, .symmetric = false};
  const LayerResult result = result_with({0, 1, 2, 3, 4, 5, 6, 7}, {0.5f}, {15});

  const auto bytes = kCompressedTensorsLayout.pack(linear, options, result);

  EXPECT_EQ(words_of(bytes[0]), std::vector<uint32_t>{0x76543210});
  EXPECT_EQ(words_of(bytes[3]), std::vector<uint32_t>{0x0000000f});
}

TEST(Layouts, Case_B37_CompressedTensorsPacksZeroPointsDownTheRows) {
  const LinearShape linear{"m", 10, 8};
  const QuantizeOptions options{.group_size = 8, .symmetric = false};
  const LayerResult result = result_with(std::vector<uint8_t>(80, 3), std::vector<float>(10, 1.0f),
                                         {0, 7, 8, 15, 1, 2, 3, 4, 5, 6});

  const auto specs = kCompressedTensorsLayout.tensors(linear, options);
  const auto bytes = kCompressedTensorsLayout.pack(linear, options, result);

  EXPECT_EQ(specs[3].shape, (Shape{2, 1}));
  EXPECT_EQ(words_of(bytes[3]), (std::vector<uint32_t>{0x4321f870, 0x00000065}));
}

TEST(Layouts, Case_B37_GptqStoresZeroPointsMinusOne) {
  const LinearShape linear{"m", 8, 8};
  const QuantizeOptions options{.group_size = 4, .symmetric = true, .scale_dtype = DType::kF16};
  std::vector<uint8_t> codes(64);
  for (size_t i = 0; i < 64; ++i) codes[i] = static_cast<uint8_t>(i % 8);
  const LayerResult result =
      result_with(codes, std::vector<float>(16, 1.0f), std::vector<uint8_t>(16, 8));

  const auto bytes = kGptqLayout.pack(linear, options, result);

  EXPECT_EQ(words_of(bytes[0]), std::vector<uint32_t>(8, 0x76543210));
  EXPECT_EQ(words_of(bytes[1]), std::vector<uint32_t>(2, 0x77777777));
  EXPECT_EQ(words_of(bytes[3]), (std::vector<uint32_t>{0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST(Layouts, EightBitsTakeFourCodesPerWord) {
  const LinearShape linear{"m", 4, 4};
  const QuantizeOptions options{
      .bits = 8, .group_size = 4, .symmetric = true, .scale_dtype = DType::kF16};
  const LayerResult result = result_with({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255},
                                         std::vector<float>(4, 1.0f), std::vector<uint8_t>(4, 128));

  EXPECT_EQ(words_of(kCompressedTensorsLayout.pack(linear, options, result)[0]),
            (std::vector<uint32_t>{0x04030201, 0x08070605, 0x0c0b0a09, 0xff0f0e0d}));
  EXPECT_EQ(words_of(kGptqLayout.pack(linear, options, result)[0]),
            (std::vector<uint32_t>{0x04030201, 0x08070605, 0x0c0b0a09, 0xff0f0e0d}));
  EXPECT_EQ(words_of(kGptqLayout.pack(linear, options, result)[1]),
            std::vector<uint32_t>{0x7f7f7f7f});
}

// 32 codes of 3 bits fill three words: 0, 1, … 7 four times are 24 bits 0xfac688 four times.
TEST(Layouts, ThreeBitsLieAcrossWords) {
  const LinearShape linear{"m", 32, 32};
  const QuantizeOptions options{
      .bits = 3, .group_size = 32, .symmetric = true, .scale_dtype = DType::kF16};
  std::vector<uint8_t> codes(32 * 32);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i % 8);
  const LayerResult result =
      result_with(codes, std::vector<float>(32, 1.0f), std::vector<uint8_t>(32, 4));

  const auto compressed = words_of(kCompressedTensorsLayout.pack(linear, options, result)[0]);
  const auto gptq = kGptqLayout.pack(linear, options, result);

  const uint32_t row[3] = {0x88fac688, 0xc688fac6, 0xfac688fa};
  ASSERT_EQ(compressed.size(), 96u);
  for (size_t i = 0; i < 96; ++i) {
    EXPECT_EQ(compressed[i], row[i % 3]);          // (rows, 3)
    EXPECT_EQ(words_of(gptq[0])[i], row[i / 32]);  // (3, rows)
  }
  // Zero points 4 − 1 in 96 bits: 3 is 0b011.
  EXPECT_EQ(words_of(gptq[1]), (std::vector<uint32_t>{0xdb6db6db, 0xb6db6db6, 0x6db6db6d}));
}

TEST(Layouts, GptqRefusesZeroPointsAndTellsWhatToDo) {
  EXPECT_THROW(kGptqLayout.check({.symmetric = false}), UsageError);
  EXPECT_NO_THROW(kGptqLayout.check({.symmetric = true}));
}

TEST(Layouts, BytesFitTheTensorsThatAreAnnounced) {
  const LinearShape linear{"m", 32, 64};
  for (const CheckpointLayout& layout : all_layouts()) {
    for (const int bits : {3, 4, 8}) {
      const QuantizeOptions options{
          .bits = bits, .group_size = 16, .symmetric = true, .scale_dtype = DType::kF16};
      const auto middle = static_cast<uint8_t>(1 << (bits - 1));
      const LayerResult result =
          result_with(std::vector<uint8_t>(32 * 64, 1), std::vector<float>(128, 1.0f),
                      std::vector<uint8_t>(128, middle));
      const auto specs = layout.tensors(linear, options);
      const auto bytes = layout.pack(linear, options, result);

      ASSERT_EQ(bytes.size(), specs.size());
      for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(bytes[i].size(), specs[i].bytes());
    }
  }
}

TEST(Layouts, UnknownNamesListTheKnownOnes) {
  EXPECT_THROW(find_layout("awq"), UsageError);
  for (const CheckpointLayout& layout : all_layouts()) {
    EXPECT_EQ(find_layout(layout.name).name, layout.name);
  }
}

}  // namespace
}  // namespace assay
