// Importance matrices of llama-imatrix. Needs the folder that ASSAY_SHARED names, and skips
// without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "calibrate/measure_importance.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

struct Case {
  const char* model;
  const char* tokens;
};

class ListedImportance : public testing::TestWithParam<Case> {};

TEST_P(ListedImportance, IsThatOfLlamaImatrixWithinItsRounding) {
  const std::string model = GetParam().model;
  ASSAY_SHARED_OR_SKIP(matrix_path, "references/llama_cpp/" + model + ".imatrix.gguf");
  ASSAY_SHARED_OR_SKIP(token_path, std::string("references/llama_cpp/") + GetParam().tokens);
  ASSAY_SHARED_OR_SKIP(folder, "models/" + model);
  const ImportanceMatrix expected = ImportanceMatrix::open(matrix_path);
  const MappedFile file = MappedFile::open(token_path);
  TokenWindows windows;
  windows.n_windows = 128;
  windows.window_length = 1024;
  windows.ids.resize(file.size() / sizeof(int32_t));
  std::memcpy(windows.ids.data(), file.bytes().data(), file.size());
  ASSERT_EQ(static_cast<int64_t>(windows.ids.size()), windows.n_tokens());
  const test::TemporaryDirectory out;

  ImportanceSource source;
  try {
    source = measure_importance(Checkpoint::open(folder), windows, {.spill_folder = out.path()});
  } catch (const UnsupportedError& error) {
    GTEST_SKIP() << error.what();
  }
  source.dataset = "calib.txt";
  write_importance(out.file("m.gguf"), source);

  const ImportanceMatrix actual = ImportanceMatrix::open(out.file("m.gguf"));
  ASSERT_EQ(actual.entries().size(), expected.entries().size());
  double largest = 0.0;
  for (const auto& [name, importance] : expected.entries()) {
    const Importance* ours = actual.find(name);
    ASSERT_NE(ours, nullptr) << name;
    ASSERT_EQ(ours->values.size(), importance.values.size()) << name;
    for (size_t i = 0; i < importance.values.size(); ++i) {
      const double theirs = importance.values[i];
      const double difference = std::fabs(static_cast<double>(ours->values[i]) - theirs) / theirs;
      // llama.cpp sums 131,072 terms in fp32.
      EXPECT_LE(difference, 1e-3) << name << " " << i;
      largest = std::max(largest, difference);
    }
  }
  RecordProperty("largest_relative_difference", std::to_string(largest));
  EXPECT_EQ(actual.chunk_count(), expected.chunk_count());
}

INSTANTIATE_TEST_SUITE_P(Models, ListedImportance,
                         testing::Values(Case{"llama-tiny", "calib-llama.i32"},
                                         Case{"gemma4-tiny", "calib-gemma4.i32"},
                                         Case{"qwen3_5-tiny", "calib-qwen3_5.i32"}),
                         [](const auto& param_info) {
                           std::string name = param_info.param.model;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace assay
