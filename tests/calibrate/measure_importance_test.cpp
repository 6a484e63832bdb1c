#include "calibrate/measure_importance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "tests/calibrate/every_isa.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"

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
    EXPECT_EQ(sums.n_tokens, 32) << name;
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
