#include "convert/repack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "convert/core/error.h"
#include "convert/formats/packed_integer.h"
#include "convert/gguf_export.h"
#include "tests/support/random.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::make_tiny_model;
using test::TemporaryDirectory;
using test::TinyModel;
using test::TinyQuantization;
using testing::AllOf;
using testing::HasSubstr;

std::vector<float> decode(const CheckpointMatrix& matrix) {
  std::vector<float> out(static_cast<size_t>(matrix.view.rows * matrix.view.columns));
  for (int64_t r = 0; r < matrix.view.rows; ++r) {
    matrix.decode_row(r, std::span(out).subspan(static_cast<size_t>(r * matrix.view.columns),
                                                static_cast<size_t>(matrix.view.columns)));
  }
  return out;
}

int64_t count_different(const Checkpoint& a, const Checkpoint& b) {
  int64_t n = 0;
  for (const TensorEntry& entry : a.tensors()) {
    if (entry.shape.size() != 2) continue;
    const std::vector<float> left = decode(a.matrix(entry.role, entry.layer));
    const std::vector<float> right = decode(b.matrix(entry.role, entry.layer));
    for (size_t i = 0; i < left.size(); ++i) {
      const float x = left[i] + 0.0f;  // −0 = +0
      const float y = right[i] + 0.0f;
      n += std::memcmp(&x, &y, sizeof(x)) == 0 ? 0 : 1;
    }
  }
  return n;
}

/// Where the linears of one run end up.
std::string linear_type(const GgufExport& plan) {
  std::string type;
  for (const ExportTensor& tensor : plan.tensors()) {
    if (tensor.shape.size() != 2 || !tensor.name.starts_with("blk.")) continue;
    if (type.empty()) type = tensor.format->name();
    EXPECT_EQ(tensor.format->name(), type) << tensor.name;
  }
  return type;
}

std::shared_ptr<const Checkpoint> write_quantized(const TemporaryDirectory& folder,
                                                  const TinyQuantization& quantization,
                                                  bool gptq = false) {
  TinyModel model = make_tiny_model({.hidden_size = 128, .intermediate_size = 256});
  if (gptq) {
    test::quantize_as_gptq(model, quantization);
  } else {
    test::quantize_as_compressed_tensors(model, quantization);
  }
  return Checkpoint::open(model.write(folder.file("model")));
}

struct ExactMove {
  TinyQuantization quantization;
  bool gptq;
  const char* smallest;
};

class ExactRepack : public testing::TestWithParam<ExactMove> {};

TEST_P(ExactRepack, KeepsEveryValueBitForBit) {
  const TemporaryDirectory folder;
  const auto source = write_quantized(folder, GetParam().quantization, GetParam().gptq);

  GgufExport plan(source, {});
  const WrittenGguf written = plan.write(folder.file("model.gguf"));

  EXPECT_EQ(linear_type(plan), GetParam().smallest);
  EXPECT_EQ(written.bytes, plan.file_bytes());
  for (const ExportTensor& tensor : plan.tensors()) EXPECT_TRUE(tensor.exact()) << tensor.name;
  EXPECT_EQ(count_different(*source, *Checkpoint::open(folder.file("model.gguf"))), 0);
}

/// Scales of 7 bits times any zero point are f16 values, those of 11 bits are not.
INSTANTIATE_TEST_SUITE_P(
    Packings, ExactRepack,
    testing::Values(
        ExactMove{{.symmetric = true, .group_size = 128}, false, "Q4_0"},
        ExactMove{{.symmetric = true, .group_size = 32, .scale_dtype = DType::kF16}, true, "Q4_0"},
        ExactMove{{.symmetric = true, .group_size = -1}, false, "Q4_0"},
        ExactMove{{.symmetric = false, .group_size = 64, .scale_bits = 7}, false, "Q4_1"},
        ExactMove{{.symmetric = false, .group_size = 128, .scale_bits = 7}, true, "Q4_1"},
        ExactMove{
            {.symmetric = false, .group_size = 32, .scale_dtype = DType::kF16, .scale_bits = 11},
            false,
            "Q5_0"},
        ExactMove{{.bits = 3, .symmetric = true, .group_size = 64}, false, "Q4_0"},
        ExactMove{{.bits = 3, .symmetric = false, .group_size = 32}, false, "Q4_0"},
        ExactMove{{.bits = 8, .symmetric = true, .group_size = 128}, false, "Q8_0"},
        ExactMove{{.bits = 8, .symmetric = true, .group_size = 32}, true, "Q8_0"}),
    [](const auto& param_info) {
      const ExactMove& move = param_info.param;
      return "W" + std::to_string(move.quantization.bits) +
             (move.quantization.symmetric ? "" : "Asym") + "Group" +
             (move.quantization.group_size < 0 ? std::string("Row")
                                               : std::to_string(move.quantization.group_size)) +
             (move.gptq ? "Gptq" : "") + "To" + move.smallest;
    });

TEST(ExactRepack, EveryFormatThatSaysExactKeepsEveryValue) {
  for (const bool symmetric : {true, false}) {
    for (const char* type : {"Q4_0", "Q4_1", "Q5_0", "Q8_0", "F32"}) {
      if (!symmetric && std::string(type) == "Q4_0") continue;
      const TemporaryDirectory folder;
      const auto source =
          write_quantized(folder, {.symmetric = symmetric, .group_size = 64, .scale_bits = 7});

      GgufExport plan(source, {.type = find_format(type)});
      plan.write(folder.file("model.gguf"));

      EXPECT_EQ(linear_type(plan), type);
      EXPECT_EQ(count_different(*source, *Checkpoint::open(folder.file("model.gguf"))), 0) << type;
    }
  }
}

TEST(Repack, MatricesThatAreNotQuantizedTakeTheOtherType) {
  const TemporaryDirectory folder;
  const auto source = write_quantized(folder, {.group_size = 64});

  GgufExport plan(source, {.other_type = find_format("F32")});
  plan.write(folder.file("model.gguf"));

  const auto gguf = Checkpoint::open(folder.file("model.gguf"));
  EXPECT_EQ(gguf->stored(Role::kTokenEmbedding).format->name(), "F32");
  EXPECT_EQ(gguf->stored(Role::kHead).format->name(), "F32");
  EXPECT_EQ(gguf->stored(Role::kQProj, 0).format->name(), "Q4_0");
  EXPECT_EQ(gguf->gguf()->metadata().integer("general.file_type"), 2);
  EXPECT_EQ(count_different(*source, *gguf), 0);
}

// ---------------------------------------------------------------------------------------------
// Losses

template <class E>
std::string error_of(const std::shared_ptr<const Checkpoint>& source,
                     const GgufExportOptions& options) {
  try {
    const GgufExport plan(source, options);
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

TEST(RepackLoss, IsRefusedWithTensorReasonAndExactTypes) {
  const TemporaryDirectory folder;
  const auto source = write_quantized(
      folder, {.symmetric = false, .group_size = 64, .scale_dtype = DType::kF16, .scale_bits = 11});

  const std::string q4_1 = error_of<UsageError>(source, {.type = find_format("Q4_1")});
  EXPECT_THAT(q4_1, AllOf(HasSubstr("14 quantized linears"), HasSubstr("--allow-requantize"),
                          HasSubstr("\"model.layers.0.self_attn.q_proj.weight\""),
                          HasSubstr("W4_ASYM group 64"), HasSubstr("scale times zero point"),
                          HasSubstr("exact: Q5_0, Q8_0, F32"), HasSubstr("and 4 more")));

  EXPECT_THAT(error_of<UsageError>(source, {.type = find_format("Q4_0")}),
              HasSubstr("of 4-bit codes; Q4_0 has 8 of 4"));
  EXPECT_THAT(error_of<UsageError>(source, {.type = find_format("Q6_K")}),
              HasSubstr("codes cannot be moved into Q6_K"));
  EXPECT_THAT(error_of<UsageError>(source, {.type = find_format("BF16")}),
              HasSubstr("values are no BF16 values"));
}

TEST(RepackLoss, AllowedLossIsCountedExactly) {
  for (const char* type : {"Q4_1", "Q4_0", "BF16", "F16"}) {
    const TemporaryDirectory folder;
    const auto source = write_quantized(
        folder,
        {.symmetric = false, .group_size = 64, .scale_dtype = DType::kF16, .scale_bits = 11});

    GgufExport plan(source, {.type = find_format(type), .allow_requantize = true});
    plan.write(folder.file("model.gguf"));

    int64_t counted = 0;
    for (const ExportTensor& tensor : plan.tensors()) counted += tensor.n_changed;
    EXPECT_GT(counted, 0) << type;
    EXPECT_EQ(counted, count_different(*source, *Checkpoint::open(folder.file("model.gguf"))))
        << type;
  }
}

TEST(RepackLoss, RoundsScalesRatherThanCodesWhereTheCodesFit) {
  const TemporaryDirectory folder;
  const auto source =
      write_quantized(folder, {.group_size = 64, .scale_dtype = DType::kF32, .scale_bits = 20});

  EXPECT_THAT(error_of<UnsupportedError>(source, {}), HasSubstr("is no f16 value"));

  GgufExport plan(source, {.allow_requantize = true});
  plan.write(folder.file("model.gguf"));

  EXPECT_EQ(linear_type(plan), "Q4_0");
  const auto gguf = Checkpoint::open(folder.file("model.gguf"));
  IntegerRow before;
  IntegerRow after;
  source->matrix(Role::kVProj, 1).read_integers(3, before);
  gguf->matrix(Role::kVProj, 1).read_integers(3, after);
  EXPECT_EQ(before.codes, after.codes);
  EXPECT_EQ(plan.tensors().front().method, ExportMethod::kCopy);
  EXPECT_EQ(plan.tensors().back().method, ExportMethod::kCopy);
}

TEST(RepackLoss, NothingIsWrittenWhenALossIsRefused) {
  const TemporaryDirectory folder;
  const auto source = write_quantized(folder, {.symmetric = false, .group_size = 64});

  EXPECT_THROW(GgufExport(source, {.type = find_format("Q4_0")}), UsageError);
  EXPECT_FALSE(std::filesystem::exists(folder.file("model.gguf")));
}

// ---------------------------------------------------------------------------------------------
// Obstacles

TEST(RepackObstacle, ScalesBeyondF16AreNamed) {
  const WeightFormat& q4_0 = *find_format("Q4_0");

  EXPECT_EQ(q4_0.repack_obstacle(4, 0x1p-24f, 8), std::nullopt);
  EXPECT_EQ(q4_0.repack_obstacle(4, 0.0f, 8), std::nullopt);
  const auto too_small = q4_0.repack_obstacle(4, 0x1p-25f, 8);
  ASSERT_TRUE(too_small.has_value());
  EXPECT_TRUE(too_small->only_rounding);
  const auto too_large = q4_0.repack_obstacle(4, 1e6f, 8);
  ASSERT_TRUE(too_large.has_value());
  EXPECT_FALSE(too_large->only_rounding);
  EXPECT_THAT(too_large->reason, HasSubstr("1000000 is no f16 value"));
}

TEST(RepackObstacle, EightBitCodesNeedTheMiddleZeroPoint) {
  const WeightFormat& q8_0 = *find_format("Q8_0");

  EXPECT_EQ(q8_0.repack_obstacle(8, 0.5f, 128), std::nullopt);
  EXPECT_TRUE(q8_0.repack_obstacle(8, 0.5f, 127).has_value());
  EXPECT_TRUE(q8_0.repack_obstacle(8, 0.5f, 129).has_value());
  EXPECT_EQ(q8_0.repack_obstacle(4, 0.5f, 0), std::nullopt);
  EXPECT_EQ(q8_0.repack_obstacle(4, 0.5f, 15), std::nullopt);
  EXPECT_TRUE(find_format("Q5_0")->repack_obstacle(8, 0.5f, 128).has_value());
}

/// Every code and zero point of every format that says it can hold them.
TEST(RepackObstacle, EveryCodeAndZeroPointMovesUnchanged) {
  for (const WeightFormat* target : all_formats()) {
    if (!target->can_repack()) continue;
    for (const int bits : {3, 4, 8}) {
      for (int zero = 0; zero < (1 << bits); ++zero) {
        const float scale = 0x1.5p-6f;
        if (target->repack_obstacle(bits, scale, zero)) continue;
        IntegerRow row;
        for (int code = 0; code < (1 << bits); ++code) {
          row.codes.push_back(static_cast<uint8_t>(code));
        }
        while (row.codes.size() % static_cast<size_t>(target->block_columns()) != 0) {
          row.codes.push_back(row.codes.back());
        }
        const auto n = static_cast<int64_t>(row.codes.size());
        row.scales = {scale};
        row.zeros = {zero};
        std::vector<std::byte> bytes(target->row_bytes(n));

        target->repack_row(row, n, bytes);

        std::vector<float> values(row.codes.size());
        target->decode_row({.format = target, .rows = 1, .columns = n, .data = bytes}, 0, values);
        for (size_t k = 0; k < values.size(); ++k) {
          EXPECT_EQ(values[k], scale * static_cast<float>(row.codes[k] - zero))
              << target->name() << " bits " << bits << " zero " << zero << " code " << k;
        }
      }
    }
  }
}

// Scales d·k and minima d·ratio·m of a super-block, in every group size that divides it.
TEST(Q4KRepack, MovesGroupsOnOneGridUnchanged) {
  const WeightFormat& q4_k = *find_format("Q4_K");
  for (const int64_t group_size : {32, 64, 128, 256, 512}) {
    for (const int ratio : {1, 4, 6, 7, 8, 12, 15}) {
      test::Random random(static_cast<uint64_t>(100 * ratio + group_size));
      IntegerRow row;
      for (int k = 0; k < 512; ++k) row.codes.push_back(static_cast<uint8_t>(random.below(16)));
      for (int64_t g = 0; g < 512 / group_size; ++g) {
        const auto zero = static_cast<int>(random.below(16));
        const int step = ratio / std::gcd(ratio, zero);
        const int last = zero == 0 ? 63 : std::min(63, 63 * ratio / zero);
        const auto n = static_cast<uint64_t>(last / step);
        row.scales.push_back(0x1.8p-12f *
                             static_cast<float>(step * (1 + static_cast<int>(random.below(n)))));
        row.zeros.push_back(zero);
      }
      const size_t n_together = static_cast<size_t>(std::max<int64_t>(1, 256 / group_size));
      for (size_t g = 0; g < row.scales.size(); g += n_together) {
        EXPECT_EQ(q4_k.block_obstacle(4, std::span(row.scales).subspan(g, n_together),
                                      std::span(row.zeros).subspan(g, n_together)),
                  std::nullopt);
      }
      std::vector<std::byte> bytes(q4_k.row_bytes(512));

      q4_k.repack_row(row, group_size, bytes);

      std::vector<float> values(512);
      q4_k.decode_row({.format = &q4_k, .rows = 1, .columns = 512, .data = bytes}, 0, values);
      for (size_t k = 0; k < 512; ++k) {
        const size_t g = k / static_cast<size_t>(group_size);
        ASSERT_EQ(values[k], row.scales[g] * static_cast<float>(row.codes[k] - row.zeros[g]))
            << group_size << " " << ratio << " " << k;
      }
    }
  }
}

TEST(Q4KRepack, TellsWhichNumbersLieOnNoGrid) {
  const WeightFormat& q4_k = *find_format("Q4_K");
  const auto reason = [&](std::vector<float> scales, std::vector<int32_t> zeros, int bits = 4) {
    const auto obstacle = q4_k.block_obstacle(bits, scales, zeros);
    return obstacle ? obstacle->reason : "none";
  };

  EXPECT_EQ(reason({63.0f, 1.0f}, {8, 8}), "none");
  EXPECT_EQ(reason({0.0f, 0.0f}, {3, 8}), "none");
  EXPECT_THAT(reason({64.0f, 1.0f}, {8, 8}), HasSubstr("the scales of its block"));
  EXPECT_THAT(reason({63.0f, 62.0f}, {7, 8}), HasSubstr("scales times zero points"));
  EXPECT_THAT(reason({0x1p-25f, 0x1p-25f}, {8, 8}), HasSubstr("the scales"));
  EXPECT_THAT(reason({1e6f, 1e6f}, {8, 8}), HasSubstr("the scales"));
  EXPECT_THAT(reason({1.0f, 1.0f}, {8, 8}, 8), HasSubstr("8-bit codes"));
}

TEST(BitsPerWeight, CountsScalesAndZeroPoints) {
  EXPECT_EQ(bits_per_weight(*find_format("Q4_0"), 32, std::nullopt), 4.5);
  EXPECT_EQ(bits_per_weight(*find_format("Q6_K"), 256, std::nullopt), 6.5625);
  EXPECT_EQ(bits_per_weight(*find_format("W4"), 128, DType::kBF16), 4.125);
  EXPECT_EQ(bits_per_weight(*find_format("W4_ASYM"), 128, DType::kBF16), 4.15625);
  EXPECT_EQ(bits_per_weight(*find_format("BF16"), 0, std::nullopt), 16.0);
}

}  // namespace
}  // namespace assay
