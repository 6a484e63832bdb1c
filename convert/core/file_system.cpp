#include "convert/core/file_system.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "convert/core/error.h"

namespace assay {
namespace {

enum class FaultKind : uint8_t { kNone, kKill, kNoSpace, kIoError };

struct Fault {
  FaultKind kind = FaultKind::kNone;
  uint64_t at = 0;
};

Fault read_fault() {
  const char* variable = std::getenv("ASSAY_FAULT");
  if (variable == nullptr) return {};
  const std::string_view text(variable);
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  Fault fault;
  if (name == "kill") fault.kind = FaultKind::kKill;
  if (name == "enospc") fault.kind = FaultKind::kNoSpace;
  if (name == "eio") fault.kind = FaultKind::kIoError;
  bool good = fault.kind != FaultKind::kNone && colon != std::string_view::npos;
  if (good) {
    const std::string_view number = text.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), fault.at);
    good = error == std::errc() && end == number.data() + number.size();
  }
  if (!good) {
    throw UsageError("ASSAY_FAULT=" + std::string(text) +
                     ": expected kill:N, enospc:N or eio:N (a test hook)");
  }
  return fault;
}

const Fault& fault() {
  static const Fault value = read_fault();
  return value;
}

std::atomic<uint64_t> n_calls{0};

enum class Outcome : uint8_t { kDoIt, kFail, kDie };

// Decides what becomes of the call that is about to be made; sets errno for kFail.
Outcome next_outcome() {
  const Fault& planned = fault();
  if (planned.kind == FaultKind::kNone) [[likely]] {
    return Outcome::kDoIt;
  }
  const uint64_t number = n_calls.fetch_add(1) + 1;
  if (planned.kind == FaultKind::kKill && number == planned.at) return Outcome::kDie;
  if (planned.kind == FaultKind::kNoSpace && number >= planned.at) {
    errno = ENOSPC;
    return Outcome::kFail;
  }
  if (planned.kind == FaultKind::kIoError && number == planned.at) {
    errno = EIO;
    return Outcome::kFail;
  }
  return Outcome::kDoIt;
}

ssize_t default_write(int fd, const void* data, size_t n, off_t at) {
  switch (next_outcome()) {
    case Outcome::kFail:
      return -1;
    case Outcome::kDie:
      static_cast<void>(!::pwrite(fd, data, n / 2, at));
      std::raise(SIGKILL);
      [[fallthrough]];
    case Outcome::kDoIt:
      break;
  }
  return ::pwrite(fd, data, n, at);
}

int default_fsync(int fd) {
  const Outcome outcome = next_outcome();
  if (outcome == Outcome::kFail) return -1;
  if (outcome == Outcome::kDie) std::raise(SIGKILL);
  return ::fsync(fd);
}

int default_rename(const char* from, const char* to) {
  const Outcome outcome = next_outcome();
  if (outcome == Outcome::kFail) return -1;
  if (outcome == Outcome::kDie) std::raise(SIGKILL);
  return std::rename(from, to);
}

}  // namespace

bool names_open_file(const std::string& path, int fd) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

FileSystemCalls& file_system_calls() {
  static FileSystemCalls calls{default_write, default_fsync, default_rename};
  return calls;
}

}  // namespace assay
