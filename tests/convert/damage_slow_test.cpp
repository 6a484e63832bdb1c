// Files of a small model cut at every byte of their headers, with every header byte flipped, and
// with a byte more at every place: each is refused, with the file and a reason, or reads to the
// content that it has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/formats/format.h"
#include "convert/gguf.h"
#include "convert/gguf_export.h"
#include "convert/safetensors.h"
#include "convert/tokenizer.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using testing::HasSubstr;

/// What a file says, so that two readings compare; throws what the reader throws.
using Read = std::function<std::string(const std::string& path)>;

struct Damage {
  int n_refused = 0, n_same = 0;
  std::vector<std::string> others;  // contents that were read and are not the original's
};

void read_damaged(const std::string& path, const std::string& original, const Read& read,
                  Damage& damage) {
  try {
    std::string content = read(path);
    if (content == original) {
      ++damage.n_same;
    } else {
      damage.others.push_back(std::move(content));
    }
  } catch (const Error& error) {
    ASSERT_TRUE(error.exit_code() == ExitCode::kInput ||
                error.exit_code() == ExitCode::kUnsupported)
        << error.what();
    EXPECT_THAT(error.what(), HasSubstr(path));
    EXPECT_GT(std::string(error.what()).size(), path.size() + 10);
    ++damage.n_refused;
  }
}

void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<int64_t>(bytes.size()));
}

/// The first `n_header` bytes, each flipped once: the bits of `mask`.
Damage flip_each(const std::string& bytes, size_t n_header, const std::string& path,
                 const Read& read, int mask = 0xFF) {
  write_bytes(path, bytes);
  const std::string original = read(path);
  Damage damage;
  const auto put = [&](size_t at, char byte) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<int64_t>(at)).put(byte);
  };
  for (size_t i = 0; i < n_header; ++i) {
    put(i, static_cast<char>(bytes[i] ^ mask));
    read_damaged(path, original, read, damage);
    put(i, bytes[i]);
  }
  return damage;
}

/// Every shorter beginning within the header.
Damage cut_each(const std::string& bytes, size_t n_header, const std::string& path,
                const Read& read) {
  write_bytes(path, bytes);
  const std::string original = read(path);
  Damage damage;
  for (size_t n = 0; n < n_header; ++n) {
    write_bytes(path, std::string_view(bytes).substr(0, n));
    read_damaged(path, original, read, damage);
  }
  return damage;
}

/// A byte more at each place of the header.
Damage insert_each(const std::string& bytes, size_t n_header, const std::string& path,
                   const Read& read, char byte) {
  write_bytes(path, bytes);
  const std::string original = read(path);
  Damage damage;
  for (size_t i = 0; i <= n_header; ++i) {
    write_bytes(path, std::string(bytes).insert(i, 1, byte));
    read_damaged(path, original, read, damage);
  }
  return damage;
}

std::string read_safetensors(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::string content;
  for (const SafetensorsEntry& entry : file.tensors()) {
    content += entry.name + std::string(dtype_name(entry.view.dtype)) +
               to_string(entry.view.shape) + std::to_string(entry.view.bytes.size()) + "\n";
  }
  return content;
}

std::string read_tokenizer(const std::string& path) {
  const Tokenizer tokenizer = Tokenizer::from_file(path);
  std::string content = std::to_string(tokenizer.vocab_size());
  for (const int32_t id : tokenizer.encode("Hello  world 123 \u20ac")) {
    content += " " + std::to_string(id);
  }
  return content;
}

/// "as it stands" if writing what was read gives the bytes of the file.
std::string read_gguf(const std::string& path) {
  const GgufFile file = GgufFile::open(path);
  std::vector<GgufTensorSource> tensors;
  for (const GgufTensor& tensor : file.tensors()) {
    tensors.push_back({tensor.name, tensor.shape, tensor.format,
                       [&tensor](const auto& sink) { sink(tensor.bytes); }});
  }
  const std::string again_path = path + ".again";
  write_gguf(again_path, file.metadata(), tensors);
  const std::string bytes = read_text_file(path);
  std::string again = read_text_file(again_path);
  again[4] = bytes[4];  // versions 2 and 3 differ in their number alone
  return again == bytes ? "as it stands" : "something else: " + bytes;
}

/// One value of each type, arrays, tensors of one to four dimensions.
std::string small_gguf(const std::string& path) {
  GgufMetadata metadata;
  metadata.set("general.architecture", "llama");
  metadata.set("flag", true);
  metadata.set("u8", uint8_t{7});
  metadata.set("i8", int8_t{-7});
  metadata.set("u16", uint16_t{300});
  metadata.set("i16", int16_t{-300});
  metadata.set("u32", uint32_t{70000});
  metadata.set("i32", int32_t{-70000});
  metadata.set("f32", 1.5f);
  metadata.set("u64", uint64_t{1} << 40);
  metadata.set("i64", -(int64_t{1} << 40));
  metadata.set("f64", 0.1);
  metadata.set("tokenizer.ggml.tokens", GgufArray{std::vector<std::string>{"a", "\u20ac", ""}});
  metadata.set("tokenizer.ggml.token_type", GgufArray{std::vector<int32_t>{1, 3, 6}});
  metadata.set("flags", GgufArray{std::vector<bool>{true, false}});
  const auto zeros = [](size_t n) {
    return [n](const auto& sink) { sink(std::vector<std::byte>(n)); };
  };
  write_gguf(path, metadata,
             {{"a", {3, 2, 1, 32}, find_format("Q8_0"), zeros(6 * 34)},
              {"b", {2, 256}, find_format("Q4_K"), zeros(2 * 144)},
              {"c", {5}, find_format("F32"), zeros(20)},
              {"last", {2, 3}, find_format("BF16"), zeros(12)}});
  return read_text_file(path);
}

TEST(DamagedGguf, EveryDamageOfTheHeaderIsRefusedOrReadAsItStands) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.file("model.gguf");
  const std::string bytes = small_gguf(path);
  const size_t n_header = bytes.find("last") + 4 + 4 + 2 * 8 + 4 + 8;

  const Damage cut = cut_each(bytes, n_header, path, read_gguf);
  EXPECT_EQ(cut.n_refused, static_cast<int>(n_header));
  for (const char byte : {'\0', '\1', 'x', '\xFF'}) {
    const Damage inserted = insert_each(bytes, n_header, path, read_gguf, byte);
    EXPECT_EQ(inserted.n_refused, static_cast<int>(n_header) + 1);
  }
  for (const int mask : {0xFF, 1, 2, 4, 8, 16, 32, 64, 128}) {
    const Damage flipped = flip_each(bytes, n_header, path, read_gguf, mask);
    EXPECT_TRUE(flipped.others.empty()) << mask;
    EXPECT_GT(flipped.n_refused, static_cast<int>(n_header) / 2) << mask;
  }
}

/// A model with its tokenizer; every value is read.
std::string read_gguf_model(const std::string& path) {
  const auto checkpoint = Checkpoint::open(path);
  const Tokenizer tokenizer = Tokenizer::from_gguf(checkpoint->gguf()->metadata(), path);
  tokenizer.encode("Hello  world 123 \u20ac");
  for (const TensorEntry& entry : checkpoint->tensors()) {
    if (!entry.is_matrix()) {
      checkpoint->vector(entry.role, entry.layer);
      continue;
    }
    const CheckpointMatrix matrix = checkpoint->matrix(entry);
    std::vector<float> values(static_cast<size_t>(matrix.view.columns));
    for (int64_t row = 0; row < matrix.view.rows; ++row) matrix.decode_row(row, values);
  }
  return "a model";
}

TEST(DamagedGguf, EveryDamageOfAModelIsRefusedOrLeavesAModel) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.file("model.gguf");
  const std::string model =
      test::make_tiny_model({.hidden_size = 32, .intermediate_size = 32, .n_layers = 1})
          .write(folder.file("m"));
  GgufExport(Checkpoint::open(model), {.type = find_format("Q8_0"), .name = "x"}).write(path);
  const std::string bytes = read_text_file(path);
  const size_t n_header = GgufFile::open(path).data_start();

  const Damage cut = cut_each(bytes, n_header, path, read_gguf_model);
  const Damage flipped = flip_each(bytes, n_header, path, read_gguf_model);
  const Damage bits = flip_each(bytes, n_header, path, read_gguf_model, 1);

  EXPECT_EQ(cut.n_refused, static_cast<int>(n_header));
  EXPECT_GT(flipped.n_refused, 1000);
  EXPECT_GT(bits.n_refused, 1000);
}

TEST(DamagedSafetensors, EveryCutAndEveryFlipOfTheHeaderIsRefused) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.file("model.safetensors");
  const std::string bytes =
      read_text_file(test::make_tiny_model().write(folder.file("m")) + "/model.safetensors");
  const size_t n_header = 8 + static_cast<uint8_t>(bytes[0]) +
                          256 * static_cast<size_t>(static_cast<uint8_t>(bytes[1]));

  const Damage cut = cut_each(bytes, n_header, path, read_safetensors);
  const Damage flipped = flip_each(bytes, n_header, path, read_safetensors);

  EXPECT_GT(n_header, 1000u);
  EXPECT_EQ(cut.n_refused, static_cast<int>(n_header));
  EXPECT_EQ(flipped.n_refused, static_cast<int>(n_header));
}

TEST(DamagedTokenizer, EveryCutAndEveryFlipIsRefusedOrTheSame) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.file("tokenizer.json");
  const std::string bytes = test::make_tiny_model().tokenizer_json;

  const Damage cut = cut_each(bytes, bytes.size(), path, read_tokenizer);
  const Damage flipped = flip_each(bytes, bytes.size(), path, read_tokenizer);

  EXPECT_TRUE(cut.others.empty()) << cut.others.front();
  EXPECT_TRUE(flipped.others.empty()) << flipped.others.front();
  EXPECT_GT(cut.n_refused, static_cast<int>(bytes.size()) - 3);
  EXPECT_EQ(flipped.n_refused, static_cast<int>(bytes.size()));
}

}  // namespace
}  // namespace assay
