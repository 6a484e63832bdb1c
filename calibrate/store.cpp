#include "calibrate/store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "convert/core/error.h"

namespace assay {
namespace {

// A file without a name: its space is given back when it is closed, however the process ends.
int open_unnamed(const std::string& folder) {
  int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  // File systems without O_TMPFILE.
  std::string name = folder + "/activations.XXXXXX";
  fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) {
    throw_system_error(folder + ": cannot open a temporary file for activations", errno,
                       "choose another folder with --spill-dir");
  }
  ::unlink(name.c_str());
  return fd;
}

}  // namespace

bool ActivationMemory::try_reserve(uint64_t bytes) {
  if (bytes > limit_bytes_ || used_bytes_ > limit_bytes_ - bytes) return false;
  used_bytes_ += bytes;
  return true;
}

void ActivationMemory::count_spilled(uint64_t bytes) {
  spilled_bytes_ += bytes;
  if (spilled_bytes_ > most_spilled_) most_spilled_ = spilled_bytes_;
}

ActivationStore::ActivationStore(ActivationMemory& memory, int64_t n_batches)
    : memory_(memory), batches_(static_cast<size_t>(n_batches)) {}

ActivationStore::~ActivationStore() {
  for (int64_t b = 0; b < n_batches(); ++b) drop(b);
  if (fd_ >= 0) ::close(fd_);
}

uint64_t ActivationStore::bytes() const {
  uint64_t total = 0;
  for (const Batch& batch : batches_) total += batch.n_values * sizeof(float);
  return total;
}

std::vector<float> ActivationStore::put(int64_t index, std::vector<float> values) {
  Batch& batch = batches_[static_cast<size_t>(index)];
  ASSAY_CHECK(batch.n_values == 0);
  const uint64_t bytes = values.size() * sizeof(float);
  if (memory_.try_reserve(bytes)) {
    batch.n_values = values.size();
    batch.values = std::move(values);
    return {};
  }
  spill(batch, values);
  batch.n_values = values.size();
  return values;
}

void ActivationStore::spill(Batch& batch, std::span<const float> values) {
  if (fd_ < 0) fd_ = open_unnamed(memory_.spill_folder_);
  const auto* bytes = reinterpret_cast<const char*>(values.data());
  const uint64_t size = values.size_bytes();
  for (uint64_t done = 0; done < size;) {
    const ssize_t n =
        ::pwrite(fd_, bytes + done, size - done, static_cast<off_t>(file_bytes_ + done));
    if (n > 0) {
      done += static_cast<uint64_t>(n);
    } else if (n == 0 || errno != EINTR) {
      throw_system_error(memory_.spill_folder_ + ": cannot write " + std::to_string(size) +
                             " bytes of activations",
                         n == 0 ? EIO : errno,
                         "use fewer windows, a larger --activation-memory, or another --spill-dir");
    }
  }
  batch.file_offset = file_bytes_;
  file_bytes_ += size;
  memory_.count_spilled(size);
}

void ActivationStore::read_spilled(const Batch& batch, std::span<float> out) const {
  auto* bytes = reinterpret_cast<char*>(out.data());
  const uint64_t size = out.size_bytes();
  for (uint64_t done = 0; done < size;) {
    const ssize_t n =
        ::pread(fd_, bytes + done, size - done, static_cast<off_t>(*batch.file_offset + done));
    if (n > 0) {
      done += static_cast<uint64_t>(n);
    } else if (n == 0 || errno != EINTR) {
      const std::string what = memory_.spill_folder_ + ": cannot read activations back";
      if (n == 0) throw FileError(what + ": the file ends too early");
      throw_system_error(what, errno);
    }
  }
}

std::vector<float> ActivationStore::take(int64_t index, std::vector<float>& values) {
  Batch& batch = batches_[static_cast<size_t>(index)];
  if (batch.file_offset) {
    values.resize(batch.n_values);
    read_spilled(batch, values);
    drop(index);
    return {};
  }
  const uint64_t bytes = batch.n_values * sizeof(float);
  std::vector<float> unused = std::exchange(values, std::move(batch.values));
  batch = Batch();
  memory_.release(bytes);
  return unused;
}

std::span<const float> ActivationStore::view(int64_t index, std::vector<float>& scratch) const {
  const Batch& batch = batches_[static_cast<size_t>(index)];
  if (!batch.file_offset) return batch.values;
  scratch.resize(batch.n_values);
  read_spilled(batch, scratch);
  return scratch;
}

void ActivationStore::drop(int64_t index) {
  Batch& batch = batches_[static_cast<size_t>(index)];
  const uint64_t bytes = batch.n_values * sizeof(float);
  if (batch.file_offset) {
    memory_.uncount_spilled(bytes);
    // Best effort: the space returns now rather than with the file.
    (void)::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(*batch.file_offset), static_cast<off_t>(bytes));
  } else {
    memory_.release(bytes);
  }
  batch = Batch();
}

}  // namespace assay
