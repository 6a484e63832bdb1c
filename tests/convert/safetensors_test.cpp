#include "convert/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/core/sha256.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

using test::bits_equal;
using test::random_tensor;
using test::TemporaryDirectory;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string u64(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

std::string with_header(const std::string& header, const std::string& data) {
  return u64(header.size()) + header + data;
}

// {"<name>":{"dtype":…}} entry.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

// Opens a file of these bytes and expects the failure to name the file and contain `part`.
void expect_refused(const std::string& bytes, const std::string& part) {
  const TemporaryDirectory folder;
  const std::string path = folder.write("m.safetensors", bytes);
  EXPECT_THAT([&] { SafetensorsFile::open(path); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr(path + ": "), HasSubstr(part))));
}

TensorSource source(const std::string& name, const Tensor& tensor) {
  return source_of(name, tensor.view());
}

// Written by safetensors 0.8.0: a.é I64 [5], b F32 [[1, 2], [3, 4]], s F32 7, z F16 of shape
// [0, 3], u U8 [1, 2, 3].
const std::string kGolden = with_header(
    R"({"__metadata__":{"format":"pt"},"a.é":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},)"
    R"("s":{"dtype":"F32","shape":[],"data_offsets":[24,28]},)"
    R"("z":{"dtype":"F16","shape":[0,3],"data_offsets":[28,28]},)"
    R"("u":{"dtype":"U8","shape":[3],"data_offsets":[28,31]}}   )",
    std::string("\5\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40\0\0\xe0\x40\1\2\3",
                31));

template <class T>
Tensor tensor_of(DType dtype, Shape shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

TEST(SafetensorsWriter, GivesTheBytesOfTheReferenceWriter) {
  const TemporaryDirectory folder;
  const Tensor b = tensor_of<float>(DType::kF32, {2, 2}, {1, 2, 3, 4});
  const Tensor a = tensor_of<int64_t>(DType::kI64, {1}, {5});
  const Tensor z = tensor_of<uint16_t>(DType::kF16, {0, 3}, {});
  const Tensor s = tensor_of<float>(DType::kF32, {}, {7});
  const Tensor u = tensor_of<uint8_t>(DType::kU8, {3}, {1, 2, 3});

  const WrittenFile written = write_safetensors(
      folder.file("m.safetensors"),
      {source("b", b), source("a.é", a), source("z", z), source("s", s), source("u", u)});

  EXPECT_EQ(read_text_file(folder.file("m.safetensors")), kGolden);
  EXPECT_EQ(written.name, "m.safetensors");
  EXPECT_EQ(written.bytes, 351u);
  EXPECT_EQ(written.sha256, "5ff0ce236dbbf1eb0e57089712c15a6e817df1c05e227fabbd5c905c4fafe54e");
  ASSERT_EQ(written.tensor_sha256.size(), 5u);
  EXPECT_EQ(written.tensor_sha256[1], std::pair(std::string("b"), sha256_hex(b.bytes)));
}

TEST(SafetensorsReader, ReadsTheGoldenFile) {
  const TemporaryDirectory folder;

  const SafetensorsFile file = SafetensorsFile::open(folder.write("m.safetensors", kGolden));

  ASSERT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.metadata()[0], std::pair(std::string("format"), std::string("pt")));
  const Tensor b = tensor_of<float>(DType::kF32, {2, 2}, {1, 2, 3, 4});
  EXPECT_TRUE(bits_equal(file.find("b")->view, b.view()));
  EXPECT_EQ(file.find("s")->view.shape, Shape{});
  EXPECT_EQ(file.find("z")->view.shape, (Shape{0, 3}));
  EXPECT_EQ(file.find("u")->view.bytes.size(), 3u);
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(SafetensorsReader, ReadsAnUnalignedBuffer) {
  const TemporaryDirectory folder;
  const std::string bytes =
      with_header("{" + entry("t", "F32", "[1]", "[0,4]") + "}", std::string("\0\0\x80\x3f", 4));
  float value = 0;

  const SafetensorsFile file = SafetensorsFile::open(folder.write("m.safetensors", bytes));
  widen_to_f32(file.find("t")->view, std::span(&value, 1));

  EXPECT_EQ(value, 1.0f);
}

TEST(SafetensorsReader, RejectsEveryTruncatedPrefixAndOneExtraByte) {
  const TemporaryDirectory folder;
  for (size_t n = 0; n < kGolden.size(); ++n) {
    const std::string path = folder.write("m.safetensors", kGolden.substr(0, n));
    EXPECT_THAT([&] { SafetensorsFile::open(path); },
                ThrowsMessage<FormatError>(HasSubstr("m.safetensors: ")))
        << n;
  }
  expect_refused(kGolden + '\0', "the last 1 bytes belong to no tensor");
  expect_refused(
      kGolden.substr(0, kGolden.size() - 1),
      "\"u\": data ends at 31, the file's data has 30 bytes; the download is incomplete");
}

TEST(SafetensorsReader, Case_B01_ComparesTheHeaderLengthBeforeAnything) {
  expect_refused("\xfc\xff\xff\xff\xff\xff\xff\xff", "18446744073709551612 is above the limit");
  expect_refused(u64(1000000000000u) + "{}", "1000000000000 is above the limit");
  expect_refused("", "header length at byte 0 needs 8 bytes, the file ends at 0");
  expect_refused("1234567", "header length at byte 0 needs 8 bytes, the file ends at 7");
  expect_refused(u64(3) + "{}", "a header of 3 bytes begins at byte 8, the file ends at 10");
  expect_refused(u64(100000000) + "{}", "a header of 100000000 bytes");
  expect_refused(u64(0), "does not begin with '{'");
}

TEST(SafetensorsReader, Case_B03_ComparesOffsetsWithShapeAndFile) {
  const std::string four(4, '\0');
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return "{" + entry("t", "F32", shape, offsets) + "}";
  };
  expect_refused(with_header(one("[1000,1000]", "[0,4]"), four),
                 "\"t\": size of [1000, 1000] F32 is 4000000 bytes, data_offsets hold 4");
  expect_refused(with_header(one("[1]", "[4,0]"), four), "\"t\": data_offsets 4, 0 run backwards");
  expect_refused(with_header(one("[1]", "[0]"), four), "\"t\": data_offsets: expected two");
  expect_refused(with_header(one("[1]", "[0,4,8]"), four), "\"t\": data_offsets: expected two");
  expect_refused(with_header(one("[1]", "[0,4]"), four + four), "the last 4 bytes belong to no");
  expect_refused(with_header(one("[2]", "[0,8]"), four), "data ends at 8, the file's data has 4");
  const std::string both = "{" + entry("t", "F32", "[1]", "[0,4]") + ",";
  expect_refused(with_header(both + entry("u", "F32", "[1]", "[0,4]") + "}", four),
                 "\"u\": data begins at 0, expected 4 (overlap with \"t\")");
  expect_refused(with_header(both + entry("u", "F32", "[1]", "[8,12]") + "}", four + four + four),
                 "\"u\": data begins at 8, expected 4 (gap after \"t\")");
  expect_refused(with_header(one("[1]", "[4,8]"), four + four), "gap after the header");
  expect_refused(with_header(one("[4294967296,4294967296,4]", "[0,4]"), four), "overflows");
  EXPECT_EQ(with_header(one("[1000,1000]", "[0,4]"), four).size(), 74u);
}

TEST(SafetensorsReader, Case_B05_RejectsDuplicateNamesWithBothPlaces) {
  const std::string header =
      "{" + entry("t", "F32", "[1]", "[0,4]") + "," + entry("t", "F32", "[1]", "[4,8]") + "}";
  const std::string bytes = with_header(header, std::string(8, '\0'));

  EXPECT_EQ(bytes.size(), 123u);
  expect_refused(bytes, "byte 54: key \"t\" occurs twice in one object, first at byte 1");
  expect_refused(with_header(R"({"__metadata__":{},"__metadata__":{}})", ""), "occurs twice");
}

TEST(SafetensorsReader, RejectsHeadersThatBreakTheFormat) {
  const auto t = [](const std::string& value) { return with_header("{\"t\":" + value + "}", ""); };
  expect_refused(with_header("[]", ""), "does not begin with '{'");
  expect_refused(with_header(" {}", ""), "does not begin with '{'");
  expect_refused(with_header("{}\n", ""), "does not end with '}'");
  expect_refused(with_header("{} {}", ""), "byte 3: expected the end");
  expect_refused(with_header("{\"\xff\":1}", ""), "header: JSON, byte 2");
  expect_refused(with_header(R"({"__metadata__":{"a":1}})", ""), "the value of \"a\" is no string");
  expect_refused(with_header(R"({"__metadata__":[]})", ""), "__metadata__ is no object");
  expect_refused(t("1"), "\"t\": expected an object of dtype, shape and data_offsets");
  expect_refused(t(R"({"dtype":"U8","shape":[0]})"), "\"t\": expected an object of dtype");
  expect_refused(t(R"({"dtype":"U8","shape":[0],"data_offsets":[0,0],"strides":[1]})"),
                 "\"t\": expected an object of dtype");
  expect_refused(t(R"({"dtype":1,"shape":[0],"data_offsets":[0,0]})"), "dtype: expected a string");
  for (const std::string number : {"-1", "0.5", "9007199254740993", "18446744073709551615", "1e3",
                                   "null", "99999999999999999999999"}) {
    expect_refused(t("{\"dtype\":\"U8\",\"shape\":[" + number + "],\"data_offsets\":[0,0]}"),
                   "\"t\": shape: expected a whole number from 0 to 2^53");
    expect_refused(t("{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0," + number + "]}"),
                   "\"t\": data_offsets: expected a whole number");
  }
  expect_refused(t(R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,0]})"),
                 "at most 8");
  expect_refused(t(R"({"dtype":"U8","shape":[[[1]]],"data_offsets":[0,0]})"), "nested deeper");
  expect_refused(with_header("{" + entry("", "U8", "[0]", "[0,0]") + "}", ""), "empty name");
  expect_refused(with_header("{" + entry("a\\u0000b", "U8", "[0]", "[0,0]") + "}", ""),
                 "control characters: \"a\\u0000b\"");
  expect_refused(with_header("{" + entry("a\\u001b[31m", "U8", "[0]", "[0,0]") + "}", ""),
                 "control characters: \"a\\u001b[31m\"");
  expect_refused(with_header("{" + entry("t", "F4", "[3]", "[0,1]") + "}", "x"), "some bits");
}

TEST(SafetensorsReader, NamesTheTensorWhoseTypeIsNotSupported) {
  const TemporaryDirectory folder;
  for (const std::string dtype : {"F4", "F6_E2M3", "F6_E3M2", "F2_NEW"}) {
    const std::string header =
        "{" + entry("t.weight", dtype, "[8]", dtype == "F4" ? "[0,4]" : "[0,6]");
    const std::string path = folder.write(
        "m.safetensors", with_header(header + "}", std::string(dtype == "F4" ? 4 : 6, 'x')));

    EXPECT_THAT([&] { SafetensorsFile::open(path); },
                ThrowsMessage<UnsupportedError>(path + ": \"t.weight\": type \"" + dtype +
                                                "\" is not supported"));
  }
}

TEST(SafetensorsWriter, RoundTripsEveryType) {
  const TemporaryDirectory folder;
  std::vector<TensorSource> sources;
  std::vector<Tensor> tensors;
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    tensors.push_back(random_tensor(static_cast<DType>(i), {3, i}, static_cast<uint64_t>(i)));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    sources.push_back(source("t" + std::to_string(i), tensors[i]));
  }

  write_safetensors(folder.file("m.safetensors"), sources);

  const SafetensorsFile file = SafetensorsFile::open(folder.file("m.safetensors"));
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(bits_equal(file.find("t" + std::to_string(i))->view, tensors[i].view())) << i;
  }
}

TEST(SafetensorsWriter, HashesPiecesOfAnySizeInOnePass) {
  const TemporaryDirectory folder;
  const Tensor big = random_tensor(DType::kU8, {5'000'003}, 1);
  for (const size_t piece : {size_t{1000}, size_t{65536}, size_t{3'000'000}}) {
    const TensorSource in_pieces{"big", big.dtype, big.shape, [&](const auto& sink) {
                                   const std::span<const std::byte> all(big.bytes);
                                   for (size_t i = 0; i < all.size(); i += piece) {
                                     sink(all.subspan(i, std::min(piece, all.size() - i)));
                                   }
                                 }};

    const WrittenFile written = write_safetensors(folder.file("m.safetensors"), {in_pieces});

    EXPECT_EQ(written.sha256, sha256_of_file(folder.file("m.safetensors")));
    EXPECT_EQ(written.tensor_sha256[0].second, sha256_hex(big.bytes));
    EXPECT_TRUE(bits_equal(SafetensorsFile::open(folder.file("m.safetensors")).find("big")->view,
                           big.view()));
  }
}

TEST(SafetensorsWriter, RefusesWhatItsReaderWouldRefuse) {
  const TemporaryDirectory folder;
  const std::string path = folder.file("m.safetensors");
  const Tensor t = random_tensor(DType::kF32, {2}, 1);
  TensorSource longer = source("t", t), shorter = source("t", t);
  longer.shape = {1};
  shorter.shape = {3};

  EXPECT_THAT(
      [&] {
        write_safetensors(path, {source("t", t), source("t", t)});
      },
      ThrowsMessage<FormatError>(HasSubstr("two tensors are named \"t\"")));
  EXPECT_THROW(write_safetensors(path, {source("", t)}), FormatError);
  EXPECT_THROW(write_safetensors(path, {source("__metadata__", t)}), FormatError);
  EXPECT_THAT([&] { write_safetensors(path, {longer}); },
              ThrowsMessage<ShapeError>(HasSubstr("gave 8 bytes, [1] F32 has 4")));
  EXPECT_THAT([&] { write_safetensors(path, {shorter}); },
              ThrowsMessage<ShapeError>(HasSubstr("gave 8 bytes, [3] F32 has 12")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// ---- models of several files ----

class ShardedModel : public testing::Test {
 protected:
  ShardedModel() {
    for (int layer = 0; layer < 3; ++layer) {
      for (const char* part : {"a", "b"}) {
        names_.push_back("model.layers." + std::to_string(layer) + "." + part);
      }
    }
    names_.push_back("model.norm.weight");
    for (size_t i = 0; i < names_.size(); ++i) {
      tensors_.push_back(random_tensor(DType::kF32, {10}, i));
    }
  }

  std::vector<WrittenFile> write(uint64_t max_shard_bytes) const {
    std::vector<TensorSource> sources;
    for (size_t i = names_.size(); i-- > 0;) sources.push_back(source(names_[i], tensors_[i]));
    return write_safetensors_model(folder_.path(), sources, max_shard_bytes);
  }

  void expect_refused(const std::string& part) const {
    EXPECT_THAT([&] { SafetensorsModel::open(folder_.path()); },
                ThrowsMessage<FormatError>(AllOf(HasSubstr(folder_.path()), HasSubstr(part))));
  }

  Json index() const { return read_json_file(folder_.file("model.safetensors.index.json")); }
  void write_index(const Json& index) const {
    folder_.write("model.safetensors.index.json", index.dump());
  }
  void map_to(const std::string& tensor, const std::string& file) const {
    Json changed = index();
    Json weight_map = changed.at("weight_map");
    changed.set("weight_map", weight_map.set(tensor, file));
    write_index(changed);
  }

  TemporaryDirectory folder_;
  std::vector<std::string> names_;
  std::vector<Tensor> tensors_;
};

TEST_F(ShardedModel, RoundTripsWithLayersKeptTogether) {
  const std::vector<WrittenFile> written = write(100);

  ASSERT_EQ(written.size(), 5u);
  EXPECT_EQ(written[1].name, "model-00002-of-00004.safetensors");
  EXPECT_EQ(written[4].name, "model.safetensors.index.json");
  EXPECT_EQ(written[4].sha256, sha256_of_file(folder_.file("model.safetensors.index.json")));
  EXPECT_EQ(index().at("metadata").at("total_size").as_integer(), 280);
  EXPECT_EQ(index().at("weight_map").at("model.layers.1.b").as_string(), written[1].name);
  const SafetensorsModel model = SafetensorsModel::open(folder_.path());
  EXPECT_EQ(model.names(), names_);
  EXPECT_EQ(model.shards().size(), 4u);
  for (size_t i = 0; i < names_.size(); ++i) {
    EXPECT_TRUE(bits_equal(model.find(names_[i])->view, tensors_[i].view()));
  }
}

TEST_F(ShardedModel, IsOneFileWithoutIndexIfItFits) {
  const std::vector<WrittenFile> written = write(280);

  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written[0].name, "model.safetensors");
  EXPECT_EQ(SafetensorsModel::open(folder_.path()).names(), names_);
}

TEST_F(ShardedModel, GivesATensorLargerThanAShardItsOwn) {
  EXPECT_EQ(write(39).size(), names_.size() + 1);
  EXPECT_EQ(SafetensorsModel::open(folder_.path()).names(), names_);
}

TEST_F(ShardedModel, Case_B06_RefusesFileNamesThatLeaveTheFolder) {
  write(100);
  const TemporaryDirectory outside;
  std::filesystem::copy(folder_.file("model-00004-of-00004.safetensors"), outside.file("x"));
  // Damaged, so that opening any file before all names are judged would be noticed.
  folder_.write("model-00001-of-00004.safetensors", "damaged");
  for (const std::string& name :
       {"../" + std::filesystem::path(outside.path()).filename().string() + "/x", outside.file("x"),
        std::string("a\\b"), std::string("a\0b", 3), std::string(".."), std::string()}) {
    map_to("model.norm.weight", name);
    expect_refused("is not a plain name of a file in the same folder");
  }
  std::filesystem::create_symlink(outside.file("x"), folder_.file("link.safetensors"));
  map_to("model.norm.weight", "link.safetensors");
  expect_refused("is a link to " + std::filesystem::canonical(outside.file("x")).string());
}

TEST_F(ShardedModel, FollowsTheLinksOfAHuggingFaceCache) {
  write(100);
  const TemporaryDirectory cache;
  const std::string snapshot = cache.file("models--x--y/snapshots/0123");
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(cache.file("models--x--y/blobs"));
  for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
    const std::string name = file.path().filename();
    std::filesystem::copy(file.path(), cache.file("models--x--y/blobs/" + name + "-hash"));
    std::filesystem::create_symlink("../../blobs/" + name + "-hash", snapshot + "/" + name);
  }

  EXPECT_EQ(SafetensorsModel::open(snapshot).names(), names_);
}

TEST_F(ShardedModel, Case_B05_RefusesATensorInTwoFiles) {
  write(100);
  const Tensor t = random_tensor(DType::kF32, {10}, 1);
  write_safetensors(folder_.file("model-00004-of-00004.safetensors"),
                    {source("model.norm.weight", t), source("model.layers.0.a", t)});

  expect_refused(
      "\"model.layers.0.a\" lies in two files, \"model-00001-of-00004.safetensors\" and "
      "\"model-00004-of-00004.safetensors\"");
}

TEST_F(ShardedModel, Case_B49_RefusesAMissingFile) {
  write(100);
  std::filesystem::remove(folder_.file("model-00002-of-00004.safetensors"));

  expect_refused("names \"model-00002-of-00004.safetensors\", which is not there");
}

TEST_F(ShardedModel, Case_B49_RefusesATruncatedFile) {
  write(100);
  const std::string path = folder_.file("model-00002-of-00004.safetensors");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);

  expect_refused("\"model.layers.1.b\": data ends at 80, the file's data has 79 bytes");
}

TEST_F(ShardedModel, Case_B49_RefusesATensorThatNoFileHolds) {
  write(100);
  map_to("lm_head.weight", "model-00001-of-00004.safetensors");

  expect_refused("no file holds \"lm_head.weight\"");
}

TEST_F(ShardedModel, Case_B49_RefusesATensorThatTheIndexLacks) {
  write(100);
  const Tensor t = random_tensor(DType::kF32, {10}, 1);
  write_safetensors(folder_.file("model-00004-of-00004.safetensors"),
                    {source("model.norm.weight", t), source("extra", t)});

  expect_refused("the index lacks \"extra\" (in \"model-00004-of-00004.safetensors\")");
}

TEST_F(ShardedModel, RefusesATensorInAnotherFileThanTheIndexSays) {
  write(100);
  map_to("model.layers.1.b", "model-00004-of-00004.safetensors");

  expect_refused("the index names \"model-00004-of-00004.safetensors\", the tensor lies in");
}

TEST_F(ShardedModel, RefusesAnIndexOfTheWrongShape) {
  for (const std::string text :
       {"{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})", "[]", "",
        R"({"weight_map":{"a":"x","a":"y"}})"}) {
    folder_.write("model.safetensors.index.json", text);
    expect_refused("index.json: ");
  }
}

TEST_F(ShardedModel, RefusesAFolderWithTwoModelsOrNone) {
  EXPECT_THAT([&] { SafetensorsModel::open(folder_.path()); },
              ThrowsMessage<FileError>(HasSubstr("holds neither")));
  write(100);
  write(1000);
  expect_refused("which does not name it; remove the one");
}

TEST(SafetensorsReference, OpensTheSharedModels) {
  ASSAY_SHARED_OR_SKIP(folder, "models/llama-small");

  const SafetensorsModel model = SafetensorsModel::open(folder);

  EXPECT_EQ(model.shards().size(), 4u);
  EXPECT_NE(model.find("model.embed_tokens.weight"), nullptr);
}

TEST(SafetensorsReference, RewritesTheSharedModelWithTheSameData) {
  ASSAY_SHARED_OR_SKIP(path, "models/llama-tiny/model.safetensors");
  const TemporaryDirectory folder;
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::vector<TensorSource> sources;
  for (const SafetensorsEntry& e : file.tensors()) sources.push_back(source_of(e.name, e.view));

  const WrittenFile written = write_safetensors(folder.file("m.safetensors"), sources);

  EXPECT_EQ(written.sha256, sha256_of_file(path));
}

}  // namespace
}  // namespace assay
