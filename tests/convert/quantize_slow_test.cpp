// Every setting of the listings of llama-quantize, byte for byte. Needs the folder that
// ASSAY_SHARED names, and skips without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "convert/core/error.h"
#include "convert/gguf_export.h"
#include "convert/gguf_quantize.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

using test::TemporaryDirectory;

class ListedQuantization : public testing::TestWithParam<const char*> {
 protected:
  /// The model as a BF16 file; skips where its family cannot be written yet.
  std::shared_ptr<const GgufFile> bf16_file(const std::string& folder) {
    GgufExport plan(Checkpoint::open(folder), {.type = find_format("BF16")});
    plan.write(folder_.file("bf16.gguf"));
    return std::make_shared<const GgufFile>(GgufFile::open(folder_.file("bf16.gguf")));
  }

  const TemporaryDirectory folder_;
};

TEST_P(ListedQuantization, GivesTypesKeysAndBytesOfEverySetting) {
  const std::string model = GetParam();
  ASSAY_SHARED_OR_SKIP(listing_path, "references/llama_cpp/" + model + ".json");
  ASSAY_SHARED_OR_SKIP(matrix_path, "references/llama_cpp/" + model + ".imatrix.gguf");
  ASSAY_SHARED_OR_SKIP(folder, "models/" + model);
  const Json listing = read_json_file(listing_path);
  const auto importance =
      std::make_shared<const ImportanceMatrix>(ImportanceMatrix::open(matrix_path));
  std::shared_ptr<const GgufFile> source;
  try {
    source = bf16_file(folder);
  } catch (const UnsupportedError& error) {
    GTEST_SKIP() << error.what();
  }
  std::map<std::string, std::string> unchanged;
  for (const Json& tensor : listing.at("gguf").at("BF16").at("tensors").as_array()) {
    unchanged[tensor.at("name").as_string()] = tensor.at("sha256").as_string();
  }

  // Names in the metadata may be shorter or longer than the listed ones.
  const bool same_size = listing.at("gguf").at("BF16").at("file_bytes").as_integer() ==
                         static_cast<int64_t>(std::filesystem::file_size(source->path()));

  int n_settings = 0;
  int n_tensors = 0;
  for (const auto& [setting, expected] : listing.at("quantized").as_object()) {
    SCOPED_TRACE(setting);
    GgufQuantizeOptions options;
    options.mix.mix = find_mix(setting.substr(0, setting.find('+')));
    options.mix.pure = setting.ends_with("+pure");
    if (setting.ends_with("+imatrix")) options.importance = importance;
    GgufQuantize plan(source, options);
    ++n_settings;
    if (expected.find("refused") != nullptr) {
      EXPECT_THROW(plan.write(folder_.file("q.gguf")), UsageError);
      continue;
    }
    const WrittenGguf written = plan.write(folder_.file("q.gguf"));

    const Json::Array& order = listing.at("tensor_order_after_quantize").as_array();
    ASSERT_EQ(plan.tensors().size(), order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      const ExportTensor& tensor = plan.tensors()[i];
      ASSERT_EQ(tensor.name, order[i].as_string());
      const Json* changed = expected.at("tensors").find(tensor.name);
      EXPECT_EQ(written.tensor_sha256[i].second,
                changed == nullptr ? unchanged.at(tensor.name) : changed->as_array()[1].as_string())
          << tensor.name;
      if (changed != nullptr) {
        EXPECT_EQ(tensor.format->name(), changed->as_array()[0].as_string()) << tensor.name;
      }
      ++n_tensors;
    }
    if (const Json* bytes = expected.find("file_bytes"); bytes != nullptr && same_size) {
      EXPECT_EQ(written.bytes, static_cast<uint64_t>(bytes->as_integer()));
    }
    EXPECT_EQ(plan.metadata().integer("general.file_type"),
              expected.at("kv").at("general.file_type").as_integer());
  }
  EXPECT_EQ(n_settings, 42);
  RecordProperty("settings", n_settings);
  RecordProperty("tensors", n_tensors);
}

INSTANTIATE_TEST_SUITE_P(Models, ListedQuantization,
                         testing::Values("llama-tiny", "gemma4-tiny", "qwen3_5-tiny"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace assay
