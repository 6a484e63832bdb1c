#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace assay {

/// The system calls through which Assay changes files. Every writer goes through this table, so
/// that tests can put failing ones in their place (short writes, EINTR, ENOSPC, EIO).
///
/// TEST HOOK, also present in release builds: the environment variable ASSAY_FAULT, read once at
/// the first call, makes the N-th call (N >= 1, counted over write, fsync and rename together, in
/// the order in which they are made) misbehave:
/// - kill:N    the process dies by SIGKILL: a write after half of its bytes, a rename before it
/// - enospc:N  this call and all later ones fail with ENOSPC, as on a disk that stays full
/// - eio:N     this one call fails with EIO
/// Anything else in the variable is a UsageError. Unset, it costs one predictable branch per call.
struct FileSystemCalls {
  ssize_t (*write)(int fd, const void* data, size_t n, off_t at);  // pwrite
  int (*fsync)(int fd);
  int (*rename)(const char* from, const char* to);
};

/// Whether `path` names what `fd` has open, by itself and not as a link: between opening and
/// locking a file another process may have renamed or removed it.
bool names_open_file(const std::string& path, int fd);

/// The table in use. Only tests write to it, while no other thread writes files.
FileSystemCalls& file_system_calls();

}  // namespace assay
