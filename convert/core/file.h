#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

struct GuardedMapping;

/// Takes the pages of mapped bytes out of this process's memory; they come back from the file when
/// they are read again. For those who go through a large file once.
void release_pages(std::span<const std::byte> mapped);

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
  void release_pages() const { assay::release_pages(bytes()); }

 private:
  MappedFile() = default;
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  GuardedMapping* guard_ = nullptr;  // core/mapping_guard.h
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
/// commit() the temporary file is removed. Where the path is a link, what it names is replaced; a
/// folder, device or pipe of that name is refused (FileError). Every write, flush, fsync, close and
/// rename is checked; FileError names the path and the reason. A full disk or quota or a file size
/// limit is a ResourceError that says how many bytes were wanted. Two writers of one path exclude
/// each other: the second gets a FileError. The calls go through core/file_system.h, where tests
/// make them fail.
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
  /// Appends room for n bytes and returns where it begins. All of it must get bytes by write_at()
  /// before commit(), in any order and on any threads at once.
  uint64_t reserve(uint64_t n);
  void write_at(uint64_t offset, std::span<const std::byte> bytes) const;
  uint64_t size() const { return size_; }  // bytes given to write, pad and reserve so far
  /// Makes the bytes durable (fsync of the file and of its folder) and gives them their name.
  void commit();

 private:
  void open_temporary();
  void flush();
  [[noreturn]] void fail(const std::string& doing, int error) const;
  void discard() noexcept;
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  uint64_t size_ = 0;
  std::vector<std::byte> buffer_;  // the last of the size_ bytes, which wait
};

/// Calls `use` with successive pieces of a regular file until its end. FileError.
void read_file_in_pieces(const std::string& path,
                         const std::function<void(std::span<const std::byte>)>& use);
std::string read_text_file(const std::string& path);
/// Through AtomicFile; into a pipe or a device such as /dev/stdout as it is.
void write_text_file(const std::string& path, std::string_view text);
/// Whether there is anything of that name. FileError if that cannot be told: a folder on the way
/// may not be searched, links in a circle.
bool file_exists(const std::string& path);
/// The nearest folder on the way to `path` that is there: where a folder of that name will take
/// space. "." for a name without a slash.
std::string existing_folder_above(const std::string& path);
/// What is written where somebody gives `path`: what it names if it is a link, else itself.
/// FileError for links in a circle.
std::string path_behind_link(const std::string& path);

/// `folder`/`name` for a file name that comes from inside another file (an index). FormatError,
/// beginning with `source`, unless it is a plain base name and what it names, links followed, lies
/// in the folder; the one way out that is allowed are the `blobs` of a Hugging Face cache, to which
/// the files of its `snapshots/<commit>` folders are links. Nothing is opened. A file that does not
/// exist is fine here.
std::string contained_path(const std::string& folder, std::string_view name,
                           std::string_view source);

/// Bytes that an unprivileged process can still write to the file system that holds `folder`.
uint64_t available_bytes(const std::string& folder);
/// To be called before long work at whose end a file is written: FileError if `path` names a
/// folder, or lies in one that is not there or takes no new files.
void require_file_place(const std::string& path);
/// To be called before long work whose result goes into `folder`, which must exist: throws
/// FileError if no file can be written there, ResourceError if fewer than `bytes` are free.
void require_writable(const std::string& folder, uint64_t bytes);

/// Products and sums of sizes from files; throw FormatError "<what> overflows" instead of wrapping.
uint64_t checked_multiply(uint64_t a, uint64_t b, std::string_view what);
uint64_t checked_add(uint64_t a, uint64_t b, std::string_view what);

}  // namespace assay
