#include "calibrate/measure_importance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "tests/calibrate/every_isa.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

TokenWindows windows_of(int64_t n, int64_t length) {
  TokenWindows windows;
  windows.n_windows = n;
  windows.window_length = length;
  for (int64_t i = 0; i < n * length; ++i) {
    windows.ids.push_back(static_cast<int32_t>((i * 37 + 11) % 8000));
  }
  return windows;
}

class MeasureImportance : public testing::Test {
 protected:
  ImportanceSource measure(const TokenWindows& windows, uint64_t memory = uint64_t{1} << 30) {
    return measure_importance(checkpoint_, windows,
                              {.activation_memory = memory, .spill_folder = folder_.path()});
  }
  const std::shared_ptr<const Checkpoint> checkpoint_ =
      Checkpoint::open(test::source_path("tests/data/llama-tiny"));
  const test::TemporaryDirectory folder_;
};

TEST_F(MeasureImportance, NamesEveryLinearOfTheLayersAsInGguf) {
  const ImportanceSource source = measure(windows_of(2, 16));

  ASSERT_EQ(source.weights.size(), 21u);
  for (const auto& [name, sums] : source.weights) {
    const bool down = name.find("ffn_down") != std::string::npos;
    EXPECT_EQ(sums.squares.size(), down ? 768u : 256u) << name;
    EXPECT_THAT(sums.n_tokens, testing::ElementsAre(32)) << name;
  }
  EXPECT_EQ(source.weights.at("blk.1.attn_q.weight").squares,
            source.weights.at("blk.1.attn_v.weight").squares);
  EXPECT_EQ(source.chunk_count, 2);
  EXPECT_EQ(source.chunk_size, 16);
}

/// The first linears read the norm of the embedding rows, which can be worked out by hand.
TEST_F(MeasureImportance, SumsSquaresOfWhatTheFirstLinearsRead) {
  const TokenWindows windows = windows_of(3, 11);
  const CheckpointMatrix embedding = checkpoint_->matrix(Role::kTokenEmbedding);
  const std::vector<float> norm = checkpoint_->vector(Role::kAttentionNorm, 0);
  std::vector<double> expected(256, 0.0);
  for (const int32_t id : windows.ids) {
    std::vector<float> row(256);
    embedding.decode_row(id, row);
    double mean = 0.0;
    for (const float x : row) mean += static_cast<double>(x) * static_cast<double>(x) / 256.0;
    for (size_t c = 0; c < 256; ++c) {
      const double y = static_cast<double>(row[c]) /
                       std::sqrt(mean + checkpoint_->spec().rms_norm_eps) *
                       static_cast<double>(norm[c]);
      expected[c] += y * y;
    }
  }

  const ImportanceSource source = measure(windows);

  const std::vector<float>& actual = source.weights.at("blk.0.attn_k.weight").squares;
  for (size_t c = 0; c < 256; ++c) {
    EXPECT_NEAR(static_cast<double>(actual[c]), expected[c], 1e-5 * expected[c]) << c;
  }
}

TEST_F(MeasureImportance, DoesNotDependOnThreadsMemoryOrInstructionSet) {
  const TokenWindows windows = windows_of(4, 24);
  const ImportanceSource expected = measure(windows);
  const auto expect_equal = [&](const ImportanceSource& actual) {
    for (const auto& [name, sums] : expected.weights) {
      EXPECT_EQ(actual.weights.at(name).squares, sums.squares) << name;
    }
  };

  test::with_every_isa([&] { expect_equal(measure(windows, /*memory=*/1000)); });
  set_n_threads(3);
  expect_equal(measure(windows));
  set_n_threads(0);
}

/// Each token goes to two of six experts.
// Files quantize them, unlike `assay quantize`; a router stays as it is.
TEST_F(MeasureImportance, HasLinearsThatQuantizeLeavesIn16Bits) {
  TokenWindows windows = windows_of(1, 16);
  for (int32_t& id : windows.ids) id %= 256;
  const auto names_of = [&](const std::string& family) {
    const auto checkpoint = Checkpoint::open(test::source_path("tests/data/families/" + family));
    const ImportanceSource source =
        measure_importance(checkpoint, windows, {.spill_folder = folder_.path()});
    std::vector<std::string> names;
    for (const auto& [name, sums] : source.weights) names.push_back(name);
    return names;
  };
  EXPECT_THAT(names_of("qwen3_5"),
              testing::IsSupersetOf({"blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight"}));
  EXPECT_THAT(names_of("qwen3_moe"), testing::Not(testing::Contains("blk.0.ffn_gate_inp.weight")));
}

TEST_F(MeasureImportance, CountsTheTokensOfEachExpert) {
  TokenWindows windows = windows_of(3, 40);
  for (int32_t& id : windows.ids) id %= 256;
  const auto checkpoint = Checkpoint::open(test::source_path("tests/data/families/qwen3_moe"));

  const ImportanceSource source =
      measure_importance(checkpoint, windows, {.spill_folder = folder_.path()});

  for (const std::string layer : {"blk.0.", "blk.1."}) {
    const ImportanceSums& up = source.weights.at(layer + "ffn_up_exps.weight");
    const ImportanceSums& down = source.weights.at(layer + "ffn_down_exps.weight");
    ASSERT_EQ(up.n_tokens.size(), 6u);
    EXPECT_EQ(std::accumulate(up.n_tokens.begin(), up.n_tokens.end(), int64_t{0}), 240);
    EXPECT_EQ(down.n_tokens, up.n_tokens);
    EXPECT_EQ(source.weights.at(layer + "ffn_gate_exps.weight").squares, up.squares);
    EXPECT_EQ(up.squares.size(), 6u * 64u);
    EXPECT_EQ(down.squares.size(), 6u * 64u);
  }
}

/// Where every token goes to all experts, each reads what one linear would.
TEST_F(MeasureImportance, OfExpertsThatSeeEveryTokenIsTheSame) {
  TokenWindows windows = windows_of(3, 40);
  for (int32_t& id : windows.ids) id %= 256;
  test::TinyModel model = test::read_model(test::family_model_path("qwen3_moe"));
  model.config.set("num_experts_per_tok", 6);

  const ImportanceSource source =
      measure_importance(Checkpoint::open(model.write(folder_.file("all"))), windows,
                         {.spill_folder = folder_.path()});

  const ImportanceSums& up = source.weights.at("blk.1.ffn_up_exps.weight");
  EXPECT_THAT(up.n_tokens, testing::ElementsAre(120, 120, 120, 120, 120, 120));
  for (size_t i = 0; i < up.squares.size(); ++i) {
    EXPECT_GT(up.squares[i], 0.0f) << i;
    EXPECT_EQ(up.squares[i], up.squares[i % 64]) << i;
  }
  const ImportanceSums& down = source.weights.at("blk.1.ffn_down_exps.weight");
  EXPECT_NE(down.squares.front(), down.squares[64]);
}

TEST_F(MeasureImportance, OfStackedGateAndUpIsTheirCommonInput) {
  TokenWindows windows = windows_of(2, 40);
  for (int32_t& id : windows.ids) id %= 256;
  const auto checkpoint = Checkpoint::open(test::source_path("tests/data/families/gemma4_moe"));

  const ImportanceSource source =
      measure_importance(checkpoint, windows, {.spill_folder = folder_.path()});

  const ImportanceSums& sums = source.weights.at("blk.1.ffn_gate_up_exps.weight");
  EXPECT_EQ(sums.squares.size(), 6u * 64u);
  EXPECT_EQ(std::accumulate(sums.n_tokens.begin(), sums.n_tokens.end(), int64_t{0}), 160);
}

TEST_F(MeasureImportance, StopsWhereProgressThrows) {
  EXPECT_THROW(measure_importance(checkpoint_, windows_of(1, 8),
                                  {.spill_folder = folder_.path(),
                                   .progress =
                                       [](double share, const std::string&) {
                                         if (share > 0.3) throw StoppedError("enough");
                                       }}),
               StoppedError);
}

}  // namespace
}  // namespace assay
