#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "convert/core/file.h"
#include "convert/safetensors.h"

namespace assay {

class WeightFormat;

/// A metadata value of a GGUF file. Source: ggml's docs/gguf.md.
struct GgufArray;
using GgufValue = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool,
                               std::string, uint64_t, int64_t, double, GgufArray>;

/// Arrays keep the element type of the file; exactly one vector is used.
struct GgufArray {
  std::variant<std::vector<uint8_t>, std::vector<int8_t>, std::vector<uint16_t>,
               std::vector<int16_t>, std::vector<uint32_t>, std::vector<int32_t>,
               std::vector<float>, std::vector<bool>, std::vector<std::string>,
               std::vector<uint64_t>, std::vector<int64_t>, std::vector<double>>
      values;
  size_t size() const;

  friend bool operator==(const GgufArray&, const GgufArray&) = default;
};

/// Ordered metadata. Keys are unique.
class GgufMetadata {
 public:
  const std::vector<std::pair<std::string, GgufValue>>& items() const { return items_; }
  const GgufValue* find(std::string_view key) const;
  /// Appends or replaces.
  void set(std::string_view key, GgufValue value);
  void remove(std::string_view key);

  /// Typed access that accepts any integer width; empty if the key is absent; FormatError naming
  /// the key if the type does not fit.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;

 private:
  std::vector<std::pair<std::string, GgufValue>> items_;
  std::map<std::string, size_t, std::less<>> by_key_;  // position in items_
};

/// One tensor of an opened GGUF file. `shape` is in row-major order, outermost first (reversed ne).
struct GgufTensor {
  std::string name;
  Shape shape;
  const WeightFormat* format = nullptr;  // never null after open
  std::span<const std::byte> bytes;
  int64_t part = 0;  // file of a split model that it lies in
};

/// One file of a model.
struct GgufPart {
  std::string path;
  std::span<const std::byte> header;  // all bytes in front of the first tensor's
};

/// A mapped GGUF v3 (or v2) file, or all parts of a split one. All checks of ggml's docs/gguf.md
/// are made at open, in every build type (cases B05, B07–B09, B11): FormatError with file, key or
/// tensor and place. Of a split file the first part is opened; the others are found by its name. A
/// sound file with a tensor of a type that no weight format has, a big-endian one, and other
/// versions are UnsupportedErrors.
class GgufFile {
 public:
  static GgufFile open(const std::string& path);

  const std::string& path() const { return path_; }
  const GgufMetadata& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // file order
  const GgufTensor* find(std::string_view name) const;
  const std::vector<GgufPart>& parts() const { return parts_; }
  uint64_t data_start() const { return parts_.front().header.size(); }  // of the first part
  /// See MappedFile::release_pages().
  void release_pages() const {
    for (const MappedFile& file : files_) file.release_pages();
  }

 private:
  std::string path_;
  std::vector<MappedFile> files_;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::vector<GgufPart> parts_;
};

/// Rows that lie in memory as the file will have them. Functions may be called on any thread, for
/// any row and again; what `row` shows must stay until the file is written.
struct StoredRows {
  int64_t n = 0;
  std::function<std::span<const std::byte>(int64_t row)> row;
  std::function<void(int64_t row)> check = {};  // throws for a row that must not be written
  std::function<void()> release = {};           // called when no row is read any more
};

/// A tensor to be written. `shape` row-major; trailing ne of 1 are kept as the shape says. Its
/// bytes are `stored`, or come from `write` as those of a TensorSource.
struct GgufTensorSource {
  std::string name;
  Shape shape;
  const WeightFormat* format = nullptr;
  std::function<void(const std::function<void(std::span<const std::byte>)>& sink)> write;
  std::optional<StoredRows> stored = {};
};

/// What write_gguf wrote, with the SHA-256 of each part. They are hashed on all threads at once,
/// which the bytes of a whole file cannot be; and they tell which tensor of two files differs.
struct WrittenGguf {
  std::string name;
  uint64_t bytes = 0;
  std::string header_sha256;  // of all bytes in front of the first tensor's
  std::vector<std::pair<std::string, std::string>> tensor_sha256;  // name, hash; in file order
  /// One hash for the file: SHA-256 of the lines "<SHA-256>  <name>\n" (as sha256sum writes them)
  /// of the header, whose name is "(header)", and of the tensors in file order.
  std::string contents_sha256() const;
};

/// Name of part `index` (from 0) of `count`: "<stem>-00002-of-00005.gguf", the stem being `path`
/// without ".gguf".
std::string gguf_part_path(const std::string& path, int64_t index, int64_t count);

/// Size of the file that write_gguf makes of these, in bytes. Asks no source for its bytes.
uint64_t gguf_file_bytes(const std::string& path, const GgufMetadata& metadata,
                         const std::vector<GgufTensorSource>& tensors);

/// Writes a GGUF v3 file with alignment 32, keys and tensors in the given order. FormatError for
/// names that the format cannot hold, UnsupportedError for weight formats without a GGUF type,
/// ShapeError for shapes that do not fit the format or its source's number of bytes. `progress`
/// is told the index of a tensor that is being written and how many bytes of all tensors are
/// written, before the first and every few MiB, on any thread but one at a time; what it throws
/// ends the writing.
WrittenGguf write_gguf(const std::string& path, const GgufMetadata& metadata,
                       const std::vector<GgufTensorSource>& tensors,
                       const std::function<void(size_t, uint64_t)>& progress = {});

}  // namespace assay
