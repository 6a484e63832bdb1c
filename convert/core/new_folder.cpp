#include "convert/core/new_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/file_system.h"
#include "convert/core/mapping_guard.h"
#include "convert/core/paths.h"

namespace assay {
namespace {

void remove_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw_system_error(path + ": cannot remove the folder", error.value());
}

void make_durable(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_system_error(folder + ": cannot open the folder", errno);
  const int failed = file_system_calls().fsync(fd);
  const int error = errno;
  ::close(fd);
  if (failed != 0) throw_system_error(folder + ": cannot sync the folder", error);
}

void rename_folder(const std::string& from, const std::string& to) {
  if (file_system_calls().rename(from.c_str(), to.c_str()) == 0) return;
  throw_system_error(to + ": cannot give the folder its name", errno);
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

NewFolder::NewFolder(const std::string& path)
    : path_(path_behind_link(without_trailing_slashes(path))), partial_(path_ + ".partial") {
  make_partial();
  for (const auto& left : std::filesystem::directory_iterator(partial_)) {
    remove_folder(left.path().string());
  }
}

NewFolder::~NewFolder() {
  if (lock_ < 0) return;
  std::error_code ignored;
  std::filesystem::remove_all(partial_, ignored);  // before close, which gives up the lock
  ::close(lock_);
}

void NewFolder::make_partial() {
  for (;;) {
    std::error_code error;
    std::filesystem::create_directories(partial_, error);
    if (error) throw_system_error(partial_ + ": cannot make the folder", error.value());
    const int fd = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    // Another writer may rename or remove what was made here, until it is locked.
    if (fd < 0 && errno == ENOENT) continue;
    if (fd < 0) throw_system_error(partial_ + ": cannot open the folder", errno);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      ::close(fd);
      throw FileError(partial_ + ": another process is writing this folder");
    }
    lock_ = fd;
    if (names_open_file(partial_, fd)) return;
    ::close(std::exchange(lock_, -1));
  }
}

void NewFolder::publish() {
  require_whole_mappings();
  make_durable(partial_);
  const std::string replaced = path_ + ".replaced";
  if (file_exists(path_)) {
    remove_folder(replaced);  // of a run that was ended between the renames below
    rename_folder(path_, replaced);
  }
  rename_folder(partial_, path_);
  ::close(std::exchange(lock_, -1));
  make_durable(parent_of(path_));
  remove_folder(replaced);
}

}  // namespace assay
