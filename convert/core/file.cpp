#include "convert/core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/file_system.h"
#include "convert/core/json.h"
#include "convert/core/mapping_guard.h"

namespace assay {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read in place");

constexpr size_t kBufferBytes = size_t{1} << 20;

[[noreturn]] void fail_file(const std::string& path, const std::string& doing, int error) {
  throw_system_error(path + ": " + doing, error);
}

// A descriptor that is closed when it leaves its scope (reading only: errors of close tell
// nothing).
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

struct stat status_of(const std::string& path, int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_file(path, "cannot be examined", errno);
  return status;
}

// Opens a regular file. O_NONBLOCK keeps a named pipe from blocking before it is refused.
int open_regular(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail_file(path, "cannot be opened", errno);
  struct stat status {};
  const int result = ::fstat(fd, &status);
  if (result == 0 && S_ISREG(status.st_mode)) return fd;
  const int error = errno;
  ::close(fd);
  if (result != 0) fail_file(path, "cannot be examined", error);
  throw FileError(path + (S_ISDIR(status.st_mode) ? ": is a folder, expected a file"
                                                  : ": is not a regular file"));
}

// Writing beyond `ulimit -f` would kill the process by SIGXFSZ; ignored, write() says EFBIG
// instead.
void ignore_file_size_signal() {
  static const bool done = [] {
    struct sigaction action {};
    if (::sigaction(SIGXFSZ, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
      std::signal(SIGXFSZ, SIG_IGN);
    }
    return true;
  }();
  static_cast<void>(done);
}

bool is_device(const std::filesystem::file_status& status) {
  return std::filesystem::exists(status) && !std::filesystem::is_directory(status) &&
         !std::filesystem::is_regular_file(status);
}

// What a link names is replaced, not the link: /dev/stdout, say, may lead to a file.
std::string replaceable_path(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) {
    throw FileError(path + ": is a folder, expected the name of a file to write");
  }
  if (is_device(status)) {
    throw FileError(path + ": is a device or a pipe, which a file would replace; choose another " +
                    "name");
  }
  return path_behind_link(path);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// 0, or the errno of the failure.
int sync(int fd) {
  for (;;) {
    if (file_system_calls().fsync(fd) == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

// 0, or the errno of the failure. Some file systems cannot sync a folder and say EINVAL.
int sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  const Descriptor descriptor(fd);
  const int error = sync(fd);
  return error == EINVAL ? 0 : error;
}

}  // namespace

// ---- MappedFile ----

MappedFile MappedFile::open(const std::string& path) {
  const Descriptor descriptor(open_regular(path));
  const struct stat status = status_of(path, descriptor.get());
  MappedFile file;
  file.path_ = path;
  if (status.st_size == 0) return file;
  const auto size = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (data == MAP_FAILED) fail_file(path, "cannot be mapped", errno);
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  file.guard_ = guard_mapping(file.bytes(), path);
  if (status_of(path, descriptor.get()).st_size != status.st_size) {
    throw FileError(path + ": changed its size while it was opened; is it still being written?");
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      guard_(std::exchange(other.guard_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(guard_, other.guard_);
  return *this;
}

void release_pages(std::span<const std::byte> mapped) {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t before = (page - reinterpret_cast<uintptr_t>(mapped.data()) % page) % page;
  if (mapped.size() < before + page) return;
  auto* first = const_cast<std::byte*>(mapped.data()) + before;
  // Advice alone: if the system does not take it, the pages stay.
  (void)::madvise(first, (mapped.size() - before) / page * page, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(guard_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

// ---- ByteReader ----

std::span<const std::byte> ByteReader::read_bytes(uint64_t n, std::string_view what) {
  if (n > remaining()) {
    throw FormatError(source_ + ": " + std::string(what) + " at byte " + std::to_string(offset_) +
                      " needs " + std::to_string(n) + " bytes, the file ends at " +
                      std::to_string(bytes_.size()));
  }
  const auto out = bytes_.subspan(offset_, n);
  offset_ += n;
  return out;
}

void ByteReader::seek(uint64_t offset, std::string_view what) {
  if (offset > bytes_.size()) {
    throw FormatError(source_ + ": " + std::string(what) + " at byte " + std::to_string(offset) +
                      " lies behind the end of the file at " + std::to_string(bytes_.size()));
  }
  offset_ = offset;
}

namespace {

template <class T>
T read_field(ByteReader& reader, std::string_view what) {
  T value;
  std::memcpy(&value, reader.read_bytes(sizeof value, what).data(), sizeof value);
  return value;
}

}  // namespace

uint8_t ByteReader::read_u8(std::string_view what) { return read_field<uint8_t>(*this, what); }
uint16_t ByteReader::read_u16(std::string_view what) { return read_field<uint16_t>(*this, what); }
uint32_t ByteReader::read_u32(std::string_view what) { return read_field<uint32_t>(*this, what); }
uint64_t ByteReader::read_u64(std::string_view what) { return read_field<uint64_t>(*this, what); }
float ByteReader::read_f32(std::string_view what) { return read_field<float>(*this, what); }
double ByteReader::read_f64(std::string_view what) { return read_field<double>(*this, what); }

// ---- AtomicFile ----

AtomicFile::AtomicFile(const std::string& path)
    : path_(replaceable_path(path)), temporary_(path_ + ".partial") {
  ignore_file_size_signal();
  buffer_.reserve(kBufferBytes);
  open_temporary();
}

AtomicFile::~AtomicFile() { discard(); }

// The lock keeps a second writer from mixing its bytes into the same temporary file; it ends with
// the process, so a leftover of a killed run is simply taken over.
void AtomicFile::open_temporary() {
  for (;;) {
    const int fd =
        ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0) fail_file(temporary_, "cannot be created", errno);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      ::close(fd);
      throw FileError(temporary_ + ": another process is writing this file");
    }
    if (!names_open_file(temporary_, fd)) {
      ::close(fd);
      continue;
    }
    struct stat opened {};
    const bool is_file = ::fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode);
    if (!is_file || ::ftruncate(fd, 0) != 0) {
      const int error = is_file ? errno : EEXIST;
      ::close(fd);
      fail_file(temporary_, "cannot be created", error);
    }
    fd_ = fd;
    return;
  }
}

void AtomicFile::fail(const std::string& doing, int error) const {
  throw_system_error(temporary_ + ": cannot be " + doing, error,
                     "the file wants at least " + std::to_string(size_) + " bytes");
}

void AtomicFile::discard() noexcept {
  if (fd_ < 0) return;
  ::unlink(temporary_.c_str());  // before close, which gives up the lock
  ::close(fd_);
  fd_ = -1;
}

namespace {

/// The system found no memory behind `bytes`: reading them tells whether a mapped file is shorter
/// now.
void find_lost_bytes(std::span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); i += 512) {
    const volatile std::byte& byte = bytes[i];
    [[maybe_unused]] const std::byte read = byte;
  }
  require_whole_mappings();
}

}  // namespace

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n =
        file_system_calls().write(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    const int error = n == 0 ? EIO : errno;  // 0 would loop for ever
    if (n < 0 && error == EFAULT) find_lost_bytes(bytes);
    if (n <= 0) fail("written at byte " + std::to_string(offset), error);
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void AtomicFile::flush() {
  write_at(size_ - buffer_.size(), buffer_);
  buffer_.clear();
}

uint64_t AtomicFile::reserve(uint64_t n) {
  flush();
  size_ += n;
  return size_ - n;
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  ASSAY_CHECK(fd_ >= 0);
  if (bytes.size() > kBufferBytes - buffer_.size()) flush();
  size_ += bytes.size();
  if (bytes.size() >= kBufferBytes) {
    write_at(size_ - bytes.size(), bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::pad(uint64_t n) {
  static constexpr std::array<std::byte, 4096> kZeros{};
  while (n != 0) {
    const size_t piece = static_cast<size_t>(std::min<uint64_t>(n, kZeros.size()));
    write(std::span(kZeros).first(piece));
    n -= piece;
  }
}

void AtomicFile::commit() {
  ASSAY_CHECK(fd_ >= 0);
  flush();
  require_whole_mappings();
  if (const int error = sync(fd_); error != 0) fail("synced", error);
  // Renamed while the descriptor, and so the lock, is still held; closed before success is told.
  if (file_system_calls().rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail_file(path_, "cannot get its final name from " + temporary_, errno);
  }
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    fail_file(path_, "cannot be closed", errno);
  }
  if (const int error = sync_folder(folder_of(path_)); error != 0) {
    fail_file(folder_of(path_), "cannot be synced", error);
  }
}

// ---- helpers ----

void read_file_in_pieces(const std::string& path,
                         const std::function<void(std::span<const std::byte>)>& use) {
  const Descriptor descriptor(open_regular(path));
  std::vector<std::byte> buffer(kBufferBytes);
  for (;;) {
    const ssize_t n = ::read(descriptor.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file(path, "cannot be read", errno);
    if (n == 0) return;
    use(std::span(buffer).first(static_cast<size_t>(n)));
  }
}

std::string read_text_file(const std::string& path) {
  std::string text;
  read_file_in_pieces(path, [&](std::span<const std::byte> piece) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return text;
}

namespace {

void write_to_device(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) fail_file(path, "cannot be opened", errno);
  const Descriptor descriptor(fd);
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file(path, "cannot be written", errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

void write_text_file(const std::string& path, std::string_view text) {
  struct stat named {};
  if (::stat(path.c_str(), &named) == 0 && (S_ISCHR(named.st_mode) || S_ISFIFO(named.st_mode))) {
    return write_to_device(path, text);
  }
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

bool file_exists(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  fail_file(path, "cannot be examined", errno);
}

std::string existing_folder_above(const std::string& path) {
  std::string folder = folder_of(path);
  while (folder != "." && folder != "/" && !file_exists(folder)) folder = folder_of(folder);
  return folder;
}

std::string path_behind_link(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const std::filesystem::path real = std::filesystem::weakly_canonical(path, error);
  if (error) fail_file(path, "is a link that cannot be followed", error.value());
  return real.string();
}

std::string contained_path(const std::string& folder, std::string_view name,
                           std::string_view source) {
  namespace fs = std::filesystem;
  const auto refuse = [&](const std::string& why) {
    throw FormatError(std::string(source) + ": file name " + in_quotes(name) + " " + why);
  };
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) {
    refuse("is not a plain name of a file in the same folder");
  }
  std::string path = folder + "/" + std::string(name);
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  const fs::path home = fs::weakly_canonical(folder, error);
  const fs::path target = fs::weakly_canonical(path, error);
  if (error) refuse("is a link that cannot be followed: " + error.message());
  const bool inside = target.parent_path() == home;
  // <cache>/models--x--y/snapshots/<commit>/<file> -> <cache>/models--x--y/blobs/<hash>
  const bool in_cache = home.parent_path().filename() == "snapshots" &&
                        target.parent_path() == home.parent_path().parent_path() / "blobs";
  if (!inside && !in_cache) {
    refuse("is a link to " + target.string() +
           ", outside of the folder; copy the file into the folder or open the folder that holds "
           "it");
  }
  return path;
}

void require_file_place(const std::string& path) {
  std::error_code error;
  if (is_device(std::filesystem::status(path, error))) return;
  const std::string folder = folder_of(replaceable_path(path));
  if (!std::filesystem::is_directory(folder)) {
    throw FileError(path + ": there is no folder " + folder +
                    " to write into; make it, or choose " + "another name");
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    fail_file(path, "no file can be created in " + folder, errno);
  }
  file_exists(replaceable_path(path) + ".partial");  // throws for a name that is too long
}

uint64_t available_bytes(const std::string& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) fail_file(folder, "cannot be examined", errno);
  return checked_multiply(status.f_bavail, status.f_frsize, folder + ": free space");
}

void require_writable(const std::string& folder, uint64_t bytes) {
  if (!std::filesystem::is_directory(folder)) {
    throw FileError(folder + ": there is no such folder to write into; make it, or choose another");
  }
  const uint64_t available = available_bytes(folder);
  if (available < bytes) {
    throw ResourceError(folder + ": " + std::to_string(bytes) + " bytes are needed, " +
                        std::to_string(available) +
                        " are free; free space or choose another folder");
  }
  std::string name = folder + "/.assay-write-test-XXXXXX";
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) fail_file(folder, "no file can be created here", errno);
  const Descriptor descriptor(fd);
  const char byte = 0;
  const ssize_t n = ::write(fd, &byte, 1);
  const int error = errno;
  ::unlink(name.c_str());
  if (n != 1) fail_file(folder, "no file can be written here", error);
}

uint64_t checked_multiply(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw FormatError(std::string(what) + " overflows: " + std::to_string(a) + " * " +
                      std::to_string(b));
  }
  return product;
}

uint64_t checked_add(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw FormatError(std::string(what) + " overflows: " + std::to_string(a) + " + " +
                      std::to_string(b));
  }
  return sum;
}

}  // namespace assay
