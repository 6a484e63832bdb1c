// Files of a small model cut at every byte of their headers, and with every header byte flipped:
// each is refused, with the file and a reason, or reads to the same content.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/file.h"
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

/// The first `n_header` bytes, each flipped once.
Damage flip_each(const std::string& bytes, size_t n_header, const std::string& path,
                 const Read& read) {
  write_bytes(path, bytes);
  const std::string original = read(path);
  Damage damage;
  const auto put = [&](size_t at, char byte) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<int64_t>(at)).put(byte);
  };
  for (size_t i = 0; i < n_header; ++i) {
    put(i, static_cast<char>(~bytes[i]));
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
