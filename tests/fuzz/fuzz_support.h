#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

namespace assay::fuzz {

/// A file in memory that readers open by its path, so that a target tests what users call.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("assay-fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

  void set(const uint8_t* data, size_t size) const {
    if (::ftruncate(fd_, 0) != 0) std::abort();
    if (::pwrite(fd_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  }

 private:
  int fd_;
};

/// Reads every byte of a view: one that leaves its file faults here.
inline void touch(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte byte : bytes) sum += std::to_integer<unsigned>(byte);
  asm volatile("" : : "r"(sum));  // keeps the loop
}

/// A property that holds for every input; abort() is what libFuzzer reports.
inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace assay::fuzz
