#include "convert/importance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/formats/format.h"
#include "convert/gguf.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

using test::TemporaryDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// One entry of the older file.
std::string legacy_entry(const std::string& name, int32_t n_calls,
                         const std::vector<float>& values) {
  std::string out;
  put(out, static_cast<int32_t>(name.size()));
  out += name;
  put(out, n_calls);
  put(out, static_cast<int32_t>(values.size()));
  for (const float value : values) put(out, value);
  return out;
}

std::string legacy_file() {
  std::string out;
  put(out, int32_t{2});
  out += legacy_entry("blk.0.attn_q.weight", 4, {4.0f, 8.0f, 0.0f});
  out += legacy_entry("blk.0.ffn_up.weight", 0, {1.0f, 2.0f});
  put(out, int32_t{7});
  put(out, int32_t{8});
  out += "calib.txt";
  out.pop_back();
  return out;
}

struct FileTensor {
  std::string name;
  std::vector<float> values;
};

std::string write_gguf_tensors(const TemporaryDirectory& folder,
                               const std::vector<FileTensor>& tensors,
                               const char* type = "imatrix") {
  GgufMetadata metadata;
  metadata.set("general.type", std::string(type));
  metadata.set("imatrix.chunk_count", uint32_t{5});
  metadata.set("imatrix.datasets", GgufArray{std::vector<std::string>{"a.txt", "b.txt"}});
  std::vector<GgufTensorSource> sources;
  for (const FileTensor& tensor : tensors) {
    sources.push_back({tensor.name,
                       {static_cast<int64_t>(tensor.values.size())},
                       find_format("F32"),
                       [&](const auto& sink) { sink(std::as_bytes(std::span(tensor.values))); }});
  }
  const std::string path = folder.file("matrix.gguf");
  write_gguf(path, metadata, sources);
  return path;
}

void expect_refused(const std::string& path, const std::string& part) {
  try {
    ImportanceMatrix::open(path);
    ADD_FAILURE() << "accepted; expected " << part;
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(ImportanceMatrix, DividesSumsByTheirCounts) {
  const TemporaryDirectory folder;

  const ImportanceMatrix matrix = ImportanceMatrix::open(
      write_gguf_tensors(folder, {{"blk.0.a.weight.in_sum2", {2.0f, 4.0f}},
                                  {"blk.0.a.weight.counts", {4.0f}},
                                  {"blk.0.e.weight.in_sum2", {3.0f, 6.0f, 5.0f, 7.0f}},
                                  {"blk.0.e.weight.counts", {3.0f, 0.0f}}}));

  ASSERT_EQ(matrix.entries().size(), 2u);
  EXPECT_THAT(matrix.find("blk.0.a.weight")->values, ElementsAre(0.5f, 1.0f));
  // The second expert saw no token.
  EXPECT_THAT(matrix.find("blk.0.e.weight")->values, ElementsAre(1.0f, 2.0f, 1.0f, 1.0f));
  EXPECT_EQ(matrix.find("blk.0.e.weight")->n_matrices, 2);
  EXPECT_EQ(matrix.chunk_count(), 5);
  EXPECT_THAT(matrix.datasets(), ElementsAre("a.txt", "b.txt"));
  EXPECT_EQ(matrix.find("none"), nullptr);
}

TEST(ImportanceMatrix, ReadsTheOlderFile) {
  const TemporaryDirectory folder;

  const ImportanceMatrix matrix = ImportanceMatrix::open(folder.write("m.dat", legacy_file()));

  EXPECT_THAT(matrix.find("blk.0.attn_q.weight")->values, ElementsAre(1.0f, 2.0f, 0.0f));
  EXPECT_THAT(matrix.find("blk.0.ffn_up.weight")->values, ElementsAre(1.0f, 2.0f));
  EXPECT_EQ(matrix.chunk_count(), 7);
  EXPECT_THAT(matrix.datasets(), ElementsAre("calib.tx"));
  EXPECT_EQ(matrix.file_name(), "m.dat");
}

TEST(ImportanceMatrix, RefusesEveryPrefixOfTheOlderFileThatCutsAnEntry) {
  const TemporaryDirectory folder;
  const std::string whole = legacy_file();
  const size_t entries_end = whole.size() - 8 - 8;

  for (size_t n = 0; n < whole.size(); ++n) {
    const std::string path = folder.write("m.dat", whole.substr(0, n));
    if (n == entries_end || n == entries_end + 4) {
      EXPECT_NO_THROW(ImportanceMatrix::open(path)) << n;  // what follows is optional
    } else {
      EXPECT_THROW(ImportanceMatrix::open(path), FormatError) << n;
    }
  }
}

TEST(ImportanceMatrix, RefusesCountsThatTheFileCannotHold) {
  const TemporaryDirectory folder;
  for (const int32_t count : {0, -1, 3, 1 << 30}) {
    std::string bytes = legacy_file();
    std::memcpy(bytes.data(), &count, 4);
    EXPECT_THROW(ImportanceMatrix::open(folder.write("m.dat", bytes)), FormatError) << count;
  }
  for (const int32_t values : {0, -1, 1 << 28}) {
    std::string bytes = legacy_file();
    std::memcpy(bytes.data() + 4 + 4 + 19 + 4, &values, 4);
    EXPECT_THROW(ImportanceMatrix::open(folder.write("m.dat", bytes)), FormatError) << values;
  }
}

TEST(ImportanceMatrix, RefusesNumbersThatAreNoImportance) {
  const TemporaryDirectory folder;
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1.0f}) {
    std::string bytes;
    put(bytes, int32_t{1});
    bytes += legacy_entry("blk.0.attn_q.weight", 1, {1.0f, value});
    expect_refused(folder.write("m.dat", bytes), "\"blk.0.attn_q.weight\": value 1 is");
  }
}

TEST(ImportanceMatrix, RefusesSumsAndCountsThatDoNotFit) {
  const TemporaryDirectory folder;
  expect_refused(write_gguf_tensors(folder, {{"a.weight.in_sum2", {1.0f}}}), "no counts");
  expect_refused(write_gguf_tensors(folder, {{"a.weight.in_sum2", {1.0f, 2.0f, 3.0f}},
                                             {"a.weight.counts", {1.0f, 2.0f}}}),
                 "3 values for 2 counts");
  expect_refused(write_gguf_tensors(folder, {{"a.weight", {1.0f}}}), "no importance values");
  expect_refused(write_gguf_tensors(folder, {{"a.weight", {1.0f}}}, "model"), "general.type");
}

// Counts that come after their sums and are too short for a float were divided by.
TEST(ImportanceMatrix, RefusesTensorsOfAnotherTypeWhereverTheyStand) {
  const TemporaryDirectory folder;
  const auto good = MappedFile::open(
      write_gguf_tensors(folder, {{"a.weight.in_sum2", {1.0f}}, {"a.weight.counts", {1.0f}}}));
  for (const std::string name : {"a.weight.in_sum2", "a.weight.counts"}) {
    std::string bytes(reinterpret_cast<const char*>(good.bytes().data()), good.bytes().size());
    bytes.at(bytes.find(name) + name.size() + 12) = 1;  // after its one dimension: F16
    expect_refused(folder.write("f16.gguf", bytes), "\"" + name + "\": is not F32");
  }
}

TEST(ImportanceMatrix, ReadsAFileOfLlamaImatrix) {
  const ImportanceMatrix matrix =
      ImportanceMatrix::open(test::source_path("tests/data/llama-tiny.imatrix.gguf"));

  EXPECT_EQ(matrix.entries().size(), 21u);
  EXPECT_EQ(matrix.chunk_count(), 128);
  EXPECT_THAT(matrix.datasets(), ElementsAre("calib.txt"));
  EXPECT_EQ(matrix.find("blk.2.ffn_down.weight")->values.size(), 768u);
  // One input, three matrices.
  EXPECT_EQ(matrix.find("blk.1.attn_q.weight")->values, matrix.find("blk.1.attn_v.weight")->values);
}

TEST(WriteImportance, GivesTheKeysAndTensorsOfLlamaImatrixInItsOrder) {
  const TemporaryDirectory folder;
  const std::string path = folder.file("m.gguf");

  write_importance(path, {.dataset = "calib.txt",
                          .chunk_count = 2,
                          .chunk_size = 512,
                          .weights = {{"blk.0.ffn_up.weight", {{1.0f, 2.0f}, {1024}}},
                                      {"blk.0.attn_q.weight", {{3.0f}, {1024}}}}});

  const GgufFile file = GgufFile::open(path);
  std::vector<std::string> keys;
  for (const auto& item : file.metadata().items()) keys.push_back(item.first);
  EXPECT_THAT(keys, ElementsAre("general.type", "imatrix.datasets", "imatrix.chunk_count",
                                "imatrix.chunk_size"));
  std::vector<std::string> names;
  for (const GgufTensor& tensor : file.tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("blk.0.attn_q.weight.in_sum2", "blk.0.attn_q.weight.counts",
                                 "blk.0.ffn_up.weight.in_sum2", "blk.0.ffn_up.weight.counts"));
  const ImportanceMatrix matrix = ImportanceMatrix::open(path);
  EXPECT_THAT(matrix.find("blk.0.ffn_up.weight")->values,
              ElementsAre(1.0f / 1024.0f, 2.0f / 1024.0f));
}

TEST(WriteImportance, KeepsTheSumsOfEachExpertWithItsOwnCount) {
  const TemporaryDirectory folder;
  const std::string path = folder.file("m.gguf");

  write_importance(path, {.dataset = "calib.txt",
                          .weights = {{"blk.0.ffn_down_exps.weight",
                                       {{2.0f, 4.0f, 0.0f, 0.0f, 9.0f, 3.0f}, {2, 0, 3}}}}});

  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.find("blk.0.ffn_down_exps.weight.in_sum2")->shape, (Shape{3, 2}));
  EXPECT_EQ(file.find("blk.0.ffn_down_exps.weight.counts")->shape, (Shape{3, 1}));
  const ImportanceMatrix matrix = ImportanceMatrix::open(path);
  const Importance* importance = matrix.find("blk.0.ffn_down_exps.weight");
  EXPECT_EQ(importance->n_matrices, 3);
  // The second saw nothing: its columns count alike.
  EXPECT_THAT(importance->values, ElementsAre(1.0f, 2.0f, 1.0f, 1.0f, 3.0f, 1.0f));
}

}  // namespace
}  // namespace assay
