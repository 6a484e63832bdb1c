#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

/// A file mapped read-only. Move-only; views into bytes() live as long as the object.
class MappedFile {
 public:
  /// Throws FileError with the path and the reason.
  static MappedFile open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  uint64_t size() const { return size_; }

 private:
  MappedFile() = default;
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Reads little-endian fields of a hostile file in order. Every length is checked here, before use;
/// errors are FormatError "<path>: <what> at byte <offset> needs <n> bytes, the file ends at
/// <size>".
class ByteReader {
 public:
  ByteReader(std::string_view source, std::span<const std::byte> bytes)
      : source_(source), bytes_(bytes) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }
  uint8_t read_u8(std::string_view what);
  uint16_t read_u16(std::string_view what);
  uint32_t read_u32(std::string_view what);
  uint64_t read_u64(std::string_view what);
  float read_f32(std::string_view what);
  double read_f64(std::string_view what);
  std::span<const std::byte> read_bytes(uint64_t n, std::string_view what);
  void seek(uint64_t offset, std::string_view what);

 private:
  std::string source_;
  std::span<const std::byte> bytes_;
  uint64_t offset_ = 0;
};

/// Writes a file beside its final name (`<path>.partial`) and renames it on commit(). Without
/// commit() the temporary file is removed. Every write, flush, fsync, close and rename is checked;
/// FileError names the path and the reason (ENOSPC says how many bytes were wanted: ResourceError).
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Appends n zero bytes.
  void pad(uint64_t n);
  uint64_t size() const { return size_; }
  void commit();

 private:
  void flush();
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  uint64_t size_ = 0;
  std::vector<std::byte> buffer_;
};

std::string read_text_file(const std::string& path);
void write_text_file(const std::string& path, std::string_view text);  // through AtomicFile
bool file_exists(const std::string& path);

/// Products and sums of sizes from files; throw FormatError "<what> overflows" instead of wrapping.
uint64_t checked_multiply(uint64_t a, uint64_t b, std::string_view what);
uint64_t checked_add(uint64_t a, uint64_t b, std::string_view what);

}  // namespace assay
