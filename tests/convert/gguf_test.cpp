#include "convert/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/core/sha256.h"
#include "convert/formats/format.h"
#include "convert/gguf_types.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

using test::bits_equal;
using test::random_tensor;
using test::TemporaryDirectory;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr uint32_t kF32 = 0, kI8 = 24, kQ5K = 13, kQ8K = 15;

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string header(uint64_t n_tensors, uint64_t n_keys, uint32_t version = 3) {
  return "GGUF" + raw(version) + raw(n_tensors) + raw(n_keys);
}
std::string text(const std::string& value) { return raw(uint64_t{value.size()}) + value; }
std::string info(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                 uint64_t offset) {
  std::string out = text(name) + raw(static_cast<uint32_t>(dims.size()));
  for (const uint64_t dim : dims) out += raw(dim);
  return out + raw(type) + raw(offset);
}
std::string padded(std::string bytes, size_t alignment = 32) {
  bytes.append((alignment - bytes.size() % alignment) % alignment, '\0');
  return bytes;
}
std::string zeros(size_t n) { return std::string(n, '\0'); }

template <class E = FormatError>
void expect_refused(const std::string& bytes, const std::string& part) {
  const TemporaryDirectory folder;
  const std::string path = folder.write("m.gguf", bytes);
  EXPECT_THAT([&] { GgufFile::open(path); },
              ThrowsMessage<E>(AllOf(HasSubstr(path + ": "), HasSubstr(part))));
}

// A file of one key without tensors.
std::string with_value(const std::string& key, uint32_t type, const std::string& value) {
  return header(0, 1) + text(key) + raw(type) + value;
}

GgufTensorSource source(const std::string& name, const Tensor& tensor) {
  return {name, tensor.shape, &scalar_format(tensor.dtype),
          [&tensor](const auto& sink) { sink(tensor.bytes); }};
}

template <class T>
Tensor tensor_of(DType dtype, Shape shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

// The file that gguf-py 0.19.0 wrote for the same content.
struct Golden {
  Golden() {
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", uint32_t{2});
    metadata.set("llama.eps", 1e-5f);
    metadata.set("a.flag", true);
    metadata.set("general.name", "tést");
    metadata.set("tokenizer.ggml.tokens", GgufArray{std::vector<std::string>{"a", "bc", ""}});
    metadata.set("tokenizer.ggml.token_type", GgufArray{std::vector<int32_t>{1, 3, -1}});
    metadata.set("u.big", uint64_t{1} << 40);
    metadata.set("i.big", int64_t{-5});
    metadata.set("x.u8", uint8_t{200});
    metadata.set("x.i16", int16_t{-2});
    metadata.set("x.f64", 0.1);
  }
  GgufMetadata metadata;
  Tensor t = tensor_of<float>(DType::kF32, {2, 3}, {0, 1, 2, 3, 4, 5});
  Tensor n = tensor_of<uint16_t>(DType::kF16, {5}, {0, 0x3c00, 0x4000, 0x4200, 0x4400});
  std::string sha256 = "b998718adf0769eb64f13e38d9b7d291942b18334a98b31745bad1d8e01333ae";

  std::string write(const TemporaryDirectory& folder) const {
    write_gguf(folder.file("golden.gguf"), metadata,
               {source("t.weight", t), source("n.weight", n)});
    return read_text_file(folder.file("golden.gguf"));
  }
};

TEST(GgufWriter, GivesTheBytesOfTheReferenceWriter) {
  const TemporaryDirectory folder;
  const Golden golden;

  const WrittenGguf written =
      write_gguf(folder.file("m.gguf"), golden.metadata,
                 {source("t.weight", golden.t), source("n.weight", golden.n)});

  EXPECT_EQ(written.bytes, 608u);
  EXPECT_EQ(sha256_of_file(folder.file("m.gguf")), golden.sha256);
  EXPECT_EQ(written.tensor_sha256[1],
            std::pair(std::string("n.weight"), sha256_hex(golden.n.bytes)));
  const std::string bytes = read_text_file(folder.file("m.gguf"));
  const auto hash_of = [](std::string_view text) {
    return sha256_hex(std::as_bytes(std::span(text)));
  };
  const std::string header = hash_of(bytes.substr(0, 544));  // the two tensors take 32 bytes each
  EXPECT_EQ(written.header_sha256, header);
  EXPECT_EQ(written.contents_sha256(),
            hash_of(header + "  (header)\n" + sha256_hex(golden.t.bytes) + "  t.weight\n" +
                    sha256_hex(golden.n.bytes) + "  n.weight\n"));
}

/// `tensor` as rows that lie in memory, `order` of them.
GgufTensorSource stored(const std::string& name, const Tensor& tensor, std::vector<int64_t> order) {
  GgufTensorSource out{name, tensor.shape, &scalar_format(tensor.dtype), {}, {}};
  const size_t row_bytes = tensor.bytes.size() / static_cast<size_t>(tensor.shape.front());
  out.stored = {.n = tensor.shape.front(), .row = [&tensor, order, row_bytes](int64_t row) {
                  const auto source = static_cast<size_t>(order[static_cast<size_t>(row)]);
                  return std::span(tensor.bytes).subspan(source * row_bytes, row_bytes);
                }};
  return out;
}

// Rows in memory are hashed and written by all threads; rows in order, rows of another
// order, small tensors made in advance and large ones made as they are written all lie beside each
// other.
TEST(GgufWriter, WritesStoredRowsAsItDoesMadeOnesWithTheSameHashesForEveryNumberOfThreads) {
  const TemporaryDirectory folder;
  const Tensor big = random_tensor(DType::kF32, {700, 500}, 1);
  const Tensor small = random_tensor(DType::kF32, {7}, 2);
  std::vector<int64_t> in_order(700), reversed(700);
  std::iota(in_order.begin(), in_order.end(), 0);
  std::copy(in_order.rbegin(), in_order.rend(), reversed.begin());
  Tensor turned = big;
  for (size_t row = 0; row < 700; ++row) {
    std::copy_n(big.bytes.begin() + static_cast<std::ptrdiff_t>((699 - row) * 2000), 2000,
                turned.bytes.begin() + static_cast<std::ptrdiff_t>(row * 2000));
  }
  GgufMetadata metadata;
  metadata.set("general.architecture", "llama");
  const WrittenGguf expected =
      write_gguf(folder.file("made.gguf"), metadata,
                 {source("a", big), source("b", small), source("c", turned), source("d", big)});

  for (const int n : {1, 2, 5}) {
    set_n_threads(n);
    std::vector<uint64_t> told;
    const WrittenGguf written = write_gguf(folder.file("stored.gguf"), metadata,
                                           {stored("a", big, in_order), source("b", small),
                                            stored("c", big, reversed), source("d", big)},
                                           [&](size_t, uint64_t done) { told.push_back(done); });

    EXPECT_EQ(read_text_file(folder.file("stored.gguf")), read_text_file(folder.file("made.gguf")));
    EXPECT_EQ(written.tensor_sha256, expected.tensor_sha256);
    EXPECT_EQ(written.header_sha256, expected.header_sha256);
    EXPECT_EQ(told, std::vector<uint64_t>{0});  // the next time would be after 4 MiB
  }
  set_n_threads(0);
  EXPECT_EQ(expected.tensor_sha256[2].second, sha256_hex(turned.bytes));
}

TEST(GgufWriter, CanBeStoppedInsideOfATensor) {
  const TemporaryDirectory folder;
  const Tensor big = random_tensor(DType::kF32, {1500, 1000}, 1);
  std::vector<int64_t> order(1500);
  std::iota(order.begin(), order.end(), 0);

  for (const int n : {1, 3}) {
    set_n_threads(n);
    EXPECT_THAT(
        [&] {
          write_gguf(folder.file("m.gguf"), {}, {stored("big", big, order)},
                     [](size_t, uint64_t done) {
                       if (done > 0) throw StoppedError("stop");
                     });
        },
        ThrowsMessage<StoppedError>("stop"));
  }
  set_n_threads(0);
  EXPECT_FALSE(file_exists(folder.file("m.gguf")));
}

TEST(GgufWriter, LeavesNoFileWhereARowMustNotBeWritten) {
  const TemporaryDirectory folder;
  const Tensor tensor = random_tensor(DType::kF32, {40, 8}, 1);
  std::vector<int64_t> order(40);
  std::iota(order.begin(), order.end(), 0);
  GgufTensorSource bad = stored("bad", tensor, order);
  bad.stored->check = [](int64_t row) {
    if (row >= 30) throw NumericError("row " + std::to_string(row));
  };

  for (const int n : {1, 3}) {
    set_n_threads(n);
    EXPECT_THAT(
        [&] {
          write_gguf(folder.file("m.gguf"), {}, {stored("good", tensor, order), bad});
        },
        ThrowsMessage<NumericError>("row 30"));
  }
  set_n_threads(0);
  EXPECT_FALSE(file_exists(folder.file("m.gguf")));
  EXPECT_FALSE(file_exists(folder.file("m.gguf.partial")));
}

TEST(GgufReader, ReadsWhatTheWriterWrote) {
  const TemporaryDirectory folder;
  const Golden golden;
  golden.write(folder);

  const GgufFile file = GgufFile::open(folder.file("golden.gguf"));

  EXPECT_EQ(file.metadata().items(), golden.metadata.items());
  EXPECT_EQ(file.data_start() % 32, 0u);
  ASSERT_EQ(file.tensors().size(), 2u);
  const GgufTensor* t = file.find("t.weight");
  EXPECT_EQ(t->shape, (Shape{2, 3}));
  EXPECT_EQ(t->format->name(), "F32");
  EXPECT_TRUE(bits_equal(t->bytes, golden.t.bytes));
  EXPECT_TRUE(bits_equal(file.find("n.weight")->bytes, golden.n.bytes));
  EXPECT_EQ(file.find("x"), nullptr);
}

TEST(GgufReader, ReadsVersion2AndOtherAlignments) {
  const TemporaryDirectory folder;
  const std::string key = text("general.alignment") + raw(uint32_t{4}) + raw(uint32_t{64});
  const std::string bytes =
      padded(header(2, 1, 2) + key + info("a", {2}, kF32, 0) + info("b", {3}, kF32, 64), 64) +
      padded(raw(1.0f) + raw(2.0f), 64) + padded(raw(3.0f) + raw(4.0f) + raw(5.0f), 64);

  const GgufFile file = GgufFile::open(folder.write("m.gguf", bytes));

  EXPECT_TRUE(
      bits_equal(file.find("b")->bytes, tensor_of<float>(DType::kF32, {3}, {3, 4, 5}).bytes));
}

TEST(GgufReader, RejectsEveryTruncatedPrefixAndOneExtraByte) {
  const TemporaryDirectory folder;
  const std::string bytes = Golden().write(folder);
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::string path = folder.write("m.gguf", bytes.substr(0, n));
    EXPECT_THAT([&] { GgufFile::open(path); }, ThrowsMessage<FormatError>(HasSubstr("m.gguf: ")))
        << n;
  }
  expect_refused(bytes + '\0', "the last 1 bytes belong to no tensor");
}

TEST(GgufReader, RejectsOtherFilesAndVersions) {
  expect_refused("GGML" + zeros(40), "does not begin with \"GGUF\"");
  expect_refused<UnsupportedError>(header(0, 0, 1), "GGUF version 1, expected 2 or 3");
  expect_refused<UnsupportedError>(header(0, 0, 4), "GGUF version 4");
  expect_refused<UnsupportedError>(header(0, 0, 0x03000000), "big-endian");
  expect_refused(header(0, uint64_t{1} << 63), "cannot hold 9223372036854775808 keys");
  expect_refused(header(UINT64_MAX, 0), "cannot hold 18446744073709551615 tensors");
  expect_refused(header(1, 0) + zeros(31), "cannot hold 1 tensors");
}

TEST(GgufReader, Case_B05_RejectsDuplicateTensorsAndKeysWithBothPlaces) {
  const std::string tensors =
      padded(header(2, 0) + info("t", {4}, kF32, 0) + info("t", {4}, kF32, 32)) + zeros(64);
  EXPECT_EQ(tensors.size(), 160u);
  expect_refused(tensors, "tensor \"t\": has two entries, at bytes 24 and 57");
  const std::string key = text("a.b") + raw(uint32_t{0}) + "x";
  expect_refused(header(0, 2) + key + key,
                 "the key \"a.b\" at byte 40 occurs twice, first at byte 24");
}

TEST(GgufReader, Case_B07_ChecksProductsAndSums) {
  const std::string i8 = header(1, 0) + info("t", {0x7fffffffffffffff, 2}, kI8, 0);
  EXPECT_EQ(i8.size(), 65u);
  expect_refused(i8, "\"t\": size of [2, 9223372036854775807] overflows");
  expect_refused(header(1, 0) + info("t", {uint64_t{1} << 32, uint64_t{1} << 32}, kF32, 0),
                 "overflows");
  const uint64_t huge = uint64_t{1} << 60;
  expect_refused(header(2, 0) + info("t", {huge}, kF32, 0) + info("u", {huge}, kF32, 4 * huge),
                 "\"t\": F32 data of 4611686018427387904 bytes at offset 0");
  expect_refused(padded(header(1, 0) + info("t", {4}, 9999, 0)) + zeros(32),
                 "\"t\": tensor type 9999 does not exist");
  for (const uint32_t removed : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u}) {
    expect_refused(padded(header(1, 0) + info("t", {256}, removed, 0)) + zeros(1024),
                   "was removed");
  }
}

TEST(GgufReader, Case_B08_BoundsTheNumberOfDimensions) {
  const std::string nine = header(1, 0) + info("t", std::vector<uint64_t>(9, 1), kF32, 0);
  EXPECT_EQ(nine.size(), 121u);
  expect_refused(nine, "\"t\": 9 dimensions, expected 1 to 4");
  expect_refused(header(1, 0) + text("t") + raw(UINT32_MAX) + zeros(20), "4294967295 dimensions");
  expect_refused(padded(header(1, 0) + info("t", {}, kF32, 0)) + zeros(32), "\"t\": 0 dimensions");
}

TEST(GgufReader, Case_B09_ChecksAlignmentAndDimensionsBeforeUse) {
  const auto alignment = [](uint32_t type, const std::string& value) {
    return with_value("general.alignment", type, value);
  };
  EXPECT_EQ(alignment(4, raw(uint32_t{0})).size(), 57u);
  for (const uint32_t value : {0u, 3u, 4u, 48u, 1u << 30, 1u << 17}) {
    expect_refused(alignment(4, raw(value)), "\"general.alignment\": " + std::to_string(value) +
                                                 " is no power of two from 8 to 65536");
  }
  expect_refused(alignment(5, raw(int32_t{32})), "is not of type u32");
  const std::string zero = header(1, 0) + info("t", {4, 0}, kF32, 0);
  EXPECT_EQ(zero.size(), 65u);
  expect_refused(zero, "\"t\": dimension 1 is 0");
  expect_refused(header(1, 0) + info("t", {UINT64_MAX}, kF32, 0), "\"t\": dimension 0 is -1");
}

TEST(GgufReader, Case_B11_ChecksOffsetsAgainstTheFile) {
  const auto file = [](uint64_t offset) {
    return padded(header(1, 0) + info("t", {4}, kF32, offset)) + zeros(32);
  };
  EXPECT_EQ(header(1, 0).size() + info("t", {4}, kF32, 0).size(), 57u);
  for (const uint64_t offset : {uint64_t{1} << 40, UINT64_MAX - 31, uint64_t{4}, uint64_t{32}}) {
    expect_refused(file(offset), "\"t\": F32 data of 16 bytes at offset " + std::to_string(offset) +
                                     ", expected offset 0 (the file has 96 bytes)");
  }
  const std::string good = file(0);
  expect_refused(
      good.substr(0, good.size() - 1),
      "\"t\": F32 data of 16 bytes at offset 0 with padding ends at byte 32 of the data, "
      "the file has 31; the download is incomplete");
  expect_refused(
      padded(header(2, 0) + info("t", {4}, kF32, 0) + info("u", {4}, kF32, 16)) + zeros(64),
      "\"u\": F32 data of 16 bytes at offset 16, expected offset 32");
}

TEST(GgufReader, RejectsMetadataThatBreaksTheFormat) {
  expect_refused(with_value("", 0, "x"), "is empty, has control characters");
  expect_refused(with_value("a\nb", 0, "x"), "is empty, has control characters");
  expect_refused(with_value("a\xff", 0, "x"), "is not valid UTF-8");
  expect_refused(header(0, 1) + text(std::string(65536, 'k')) + raw(uint32_t{0}) + "x",
                 "has 65536 bytes, the limit is 65535");
  expect_refused(with_value("k", 13, zeros(20)), "\"k\": unknown value type 13");
  expect_refused(with_value("k", 7, "\2"), "\"k\": a boolean is stored as 2");
  expect_refused(with_value("k", 8, raw(UINT64_MAX)), "18446744073709551615 bytes, the limit is");
  expect_refused(with_value("k", 8, raw(uint64_t{9}) + "12345678"), "needs 9 bytes");
  const auto array = [](uint32_t type, uint64_t n, const std::string& values) {
    return with_value("k", 9, raw(type) + raw(n) + values);
  };
  expect_refused(array(9, 1, zeros(40)), "\"k\": arrays of arrays");
  expect_refused(array(13, 1, zeros(40)), "\"k\": unknown element type 13");
  expect_refused(array(7, 2, "\1\2"), "\"k\": a boolean is stored as 2");
  expect_refused(array(0, uint64_t{1} << 31, ""), "an array of 2147483648 elements");
  expect_refused(array(4, 3, zeros(11)), "has 3 elements, the file ends at");
  expect_refused(array(8, 2, text("a") + raw(uint32_t{0})), "has 2 elements");
  expect_refused(array(8, 1, raw(uint64_t{5}) + "abcd"), "needs 5 bytes");
}

TEST(GgufReader, ChecksTheListsOfTheTokenizer) {
  const auto tokens = [](const std::string& more) {
    return header(0, 2) + text("tokenizer.ggml.tokens") + raw(uint32_t{9}) + raw(uint32_t{8}) +
           raw(uint64_t{1}) + text("a") + more;
  };
  const auto list = [](const std::string& key, uint32_t type, const std::string& values) {
    return text("tokenizer.ggml." + key) + raw(uint32_t{9}) + raw(type) +
           raw(uint64_t{values.size() / 4}) + values;
  };
  expect_refused(tokens(list("token_type", 5, zeros(8))), "token_type has 2 entries");
  expect_refused(tokens(list("scores", 6, zeros(8))), "scores has 2 entries");
  expect_refused(tokens(list("token_type", 4, zeros(4))), "expected an array of i32");
  expect_refused(tokens(list("merges", 4, zeros(4))), "expected an array of strings");
  expect_refused(with_value("tokenizer.ggml.tokens", 0, "x"), "expected an array of strings");
}

TEST(GgufReader, RejectsTensorsThatBreakTheFormat) {
  expect_refused(header(1, 0) + info("", {4}, kF32, 0) + zeros(64), "empty name");
  expect_refused(header(1, 0) + info("a\x1b[31m", {4}, kF32, 0) + zeros(64), "control characters");
  expect_refused(header(1, 0) + info(std::string(64, 'n'), {4}, kF32, 0), "the limit is 63");
  expect_refused(header(1, 0) + info("t", {100}, kQ5K, 0),
                 "\"t\": rows of 100 elements, Q5_K needs a multiple of 256");
  expect_refused(header(0, 0) + zeros(9), "there are no tensors");
  const TemporaryDirectory folder;
  EXPECT_NO_THROW(GgufFile::open(folder.write("a.gguf", header(0, 0))));
  EXPECT_NO_THROW(GgufFile::open(folder.write("b.gguf", padded(header(0, 0)))));
}

TEST(GgufReader, NamesTheTensorWhoseTypeIsNotSupported) {
  expect_refused<UnsupportedError>(
      padded(header(1, 0) + info("blk.0.ffn", {256}, kQ8K, 0)) + padded(zeros(292)),
      "tensor \"blk.0.ffn\": type Q8_K is not supported");
}

TEST(GgufTypes, AgreeWithTheWeightFormats) {
  int n_compared = 0;
  for (const WeightFormat* format : all_formats()) {
    if (!format->gguf_type()) continue;
    const GgufTypeRow* row = find_gguf_type(*format->gguf_type());
    ASSERT_NE(row, nullptr) << format->name();
    EXPECT_EQ(row->name, format->name());
    EXPECT_EQ(row->block_columns, format->block_columns());
    EXPECT_EQ(row->block_bytes, format->block_bytes());
    ++n_compared;
  }
  EXPECT_GE(n_compared, 8);
}

TEST(GgufMetadata, AcceptsAnyIntegerWidthAndNamesTheKeyOtherwise) {
  GgufMetadata metadata;
  metadata.set("a", uint8_t{3});
  metadata.set("b", int64_t{-4});
  metadata.set("c", UINT64_MAX);
  metadata.set("d", 0.5f);
  metadata.set("e", "x");
  metadata.set("a", int16_t{5});

  EXPECT_EQ(metadata.integer("a"), 5);
  EXPECT_EQ(metadata.items().size(), 5u);
  EXPECT_EQ(metadata.integer("b"), -4);
  EXPECT_EQ(metadata.number("b"), -4.0);
  EXPECT_EQ(metadata.number("d"), 0.5);
  EXPECT_EQ(metadata.string("e"), "x");
  EXPECT_EQ(metadata.integer("none"), std::nullopt);
  EXPECT_THAT([&] { metadata.integer("c"); },
              ThrowsMessage<FormatError>(HasSubstr("\"c\": 18446744073709551615 is too large")));
  EXPECT_THAT([&] { metadata.integer("d"); },
              ThrowsMessage<FormatError>(HasSubstr("\"d\": expected an integer")));
  EXPECT_THROW(metadata.string("a"), FormatError);
  EXPECT_THROW(metadata.boolean("a"), FormatError);
  EXPECT_THROW(metadata.number("e"), FormatError);
}

TEST(GgufWriter, RefusesWhatItsReaderWouldRefuse) {
  const TemporaryDirectory folder;
  const std::string path = folder.file("m.gguf");
  const Tensor t = random_tensor(DType::kF32, {4}, 1);
  const auto with = [&](auto change) {
    GgufTensorSource changed = source("t", t);
    change(changed);
    write_gguf(path, {}, {changed});
  };

  EXPECT_THROW(write_gguf(path, {}, {source("t", t), source("t", t)}), FormatError);
  EXPECT_THROW(with([](auto& s) { s.name = std::string(64, 'n'); }), FormatError);
  EXPECT_THROW(with([](auto& s) { s.name = ""; }), FormatError);
  EXPECT_THROW(with([](auto& s) { s.shape = {}; }), ShapeError);
  EXPECT_THROW(with([](auto& s) { s.shape = {0}; }), ShapeError);
  EXPECT_THROW(with([](auto& s) { s.shape = {1, 1, 1, 1, 4}; }), ShapeError);
  EXPECT_THROW(with([](auto& s) { s.shape = {3}; }), ShapeError);
  EXPECT_THROW(with([](auto& s) { s.shape = {5}; }), ShapeError);
  EXPECT_THROW(with([](auto& s) { s.format = &integer_format(4, false); }), UnsupportedError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(GgufWriter, KeepsTrailingDimensionsOfOne) {
  const TemporaryDirectory folder;
  const Tensor t = random_tensor(DType::kF32, {1, 1, 4}, 1);

  write_gguf(folder.file("m.gguf"), {}, {source("t", t)});

  EXPECT_EQ(GgufFile::open(folder.file("m.gguf")).find("t")->shape, (Shape{1, 1, 4}));
}

// ---- split files ----

class SplitGguf : public testing::Test {
 protected:
  static GgufMetadata part_metadata(uint16_t index, uint16_t count, int32_t n_tensors) {
    GgufMetadata metadata;
    if (index == 0) metadata.set("general.architecture", "llama");
    metadata.set("split.no", index);
    metadata.set("split.count", count);
    metadata.set("split.tensors.count", n_tensors);
    return metadata;
  }
  std::string path(int part) const {
    return folder_.file("m-0000" + std::to_string(part) + "-of-00002.gguf");
  }
  void write(int part, const GgufMetadata& metadata, const std::string& tensor) const {
    write_gguf(path(part), metadata, {source(tensor, tensor_)});
  }
  void expect_refused(const std::string& part) const {
    EXPECT_THAT([&] { GgufFile::open(path(1)); },
                ThrowsMessage<FormatError>(AllOf(HasSubstr(folder_.path()), HasSubstr(part))));
  }

  TemporaryDirectory folder_;
  Tensor tensor_ = random_tensor(DType::kF32, {3, 5}, 1);
};

TEST_F(SplitGguf, IsReadAsOneFile) {
  write(1, part_metadata(0, 2, 2), "a");
  write(2, part_metadata(1, 2, 2), "b");

  const GgufFile file = GgufFile::open(path(1));

  EXPECT_EQ(file.metadata().string("general.architecture"), "llama");
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_TRUE(bits_equal(file.find("b")->bytes, tensor_.bytes));
}

TEST_F(SplitGguf, RefusesPartsThatDoNotBelongTogether) {
  write(1, part_metadata(0, 2, 2), "a");
  EXPECT_THAT([&] { GgufFile::open(path(1)); },
              ThrowsMessage<FileError>(HasSubstr("m-00002-of-00002.gguf")));
  write(2, part_metadata(0, 2, 2), "b");
  expect_refused("says it is part 1 of 2, expected part 2 of 2");
  write(2, part_metadata(1, 3, 2), "b");
  expect_refused("says it is part 2 of 3");
  write(2, part_metadata(1, 2, 2), "a");
  expect_refused("tensor \"a\" lies in two files, " + path(1) + " and " + path(2));
  GgufMetadata other = part_metadata(1, 2, 2);
  other.set("general.architecture", "gemma");
  write(2, other, "b");
  expect_refused("\"general.architecture\" differs from the first part");
  write(2, part_metadata(1, 2, 2), "b");
  write(1, part_metadata(0, 2, 3), "a");
  expect_refused("the parts hold 2 tensors, split.tensors.count is 3");
}

TEST_F(SplitGguf, MustBeOpenedAtItsFirstPartUnderItsName) {
  write(1, part_metadata(0, 2, 2), "a");
  write(2, part_metadata(1, 2, 2), "b");
  EXPECT_THAT([&] { GgufFile::open(path(2)); },
              ThrowsMessage<FormatError>(HasSubstr("open the first part")));
  std::filesystem::rename(path(1), folder_.file("renamed.gguf"));
  EXPECT_THAT([&] { GgufFile::open(folder_.file("renamed.gguf")); },
              ThrowsMessage<FormatError>(HasSubstr("must end with \"-00001-of-00002.gguf\"")));
}

}  // namespace
}  // namespace assay
