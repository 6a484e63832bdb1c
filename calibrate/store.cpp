#include "calibrate/store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "convert/core/error.h"

namespace assay {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{256} << 10;

/// call(bytes from here on, how many, position in the file), a pread or pwrite, until all `size`
/// bytes in the blocks are through. fail(error) where it does not go on; 0: the file ends.
template <class Call, class Fail>
void transfer(std::span<const uint64_t> blocks, uint64_t size, const Call& call, const Fail& fail) {
  uint64_t done = 0;
  for (const uint64_t block : blocks) {
    const uint64_t first = done;
    const uint64_t end = std::min(first + kBlockBytes, size);
    while (done < end) {
      const ssize_t n =
          call(done, end - done, static_cast<off_t>(block * kBlockBytes + done - first));
      if (n > 0) {
        done += static_cast<uint64_t>(n);
      } else if (n == 0 || errno != EINTR) {
        fail(n == 0 ? 0 : errno);
      }
    }
  }
}

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

SpillFile::~SpillFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::vector<uint64_t> SpillFile::write(std::span<const float> values) {
  if (fd_ < 0) fd_ = open_unnamed(folder_);
  const uint64_t size = values.size_bytes();
  std::vector<uint64_t> blocks((size + kBlockBytes - 1) / kBlockBytes);
  for (uint64_t& block : blocks) {
    if (free_.empty()) {
      block = n_blocks_++;
    } else {
      block = free_.back();
      free_.pop_back();
    }
  }
  const auto* bytes = reinterpret_cast<const char*>(values.data());
  transfer(
      blocks, size,
      [&](uint64_t first, uint64_t n, off_t at) { return ::pwrite(fd_, bytes + first, n, at); },
      [&](int error) {
        throw_system_error(
            folder_ + ": cannot write " + std::to_string(size) + " bytes of activations",
            error == 0 ? EIO : error,
            "use fewer windows, a larger --activation-memory, or another --spill-dir");
      });
  return blocks;
}

void SpillFile::read(std::span<const uint64_t> blocks, std::span<float> out) const {
  auto* bytes = reinterpret_cast<char*>(out.data());
  transfer(
      blocks, out.size_bytes(),
      [&](uint64_t first, uint64_t n, off_t at) { return ::pread(fd_, bytes + first, n, at); },
      [&](int error) {
        const std::string what = folder_ + ": cannot read activations back";
        if (error == 0) throw FileError(what + ": the file ends too early");
        throw_system_error(what, error);
      });
}

void SpillFile::give_back(std::span<const uint64_t> blocks) {
  free_.insert(free_.end(), blocks.rbegin(), blocks.rend());  // the first is taken first again
}

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
  batch.blocks = memory_.spill_.write(values);
  batch.n_values = values.size();
  memory_.count_spilled(bytes);
  return values;
}

std::vector<float> ActivationStore::take(int64_t index, std::vector<float>& values) {
  Batch& batch = batches_[static_cast<size_t>(index)];
  if (!batch.blocks.empty()) {
    values.resize(batch.n_values);
    memory_.spill_.read(batch.blocks, values);
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
  if (batch.blocks.empty()) return batch.values;
  scratch.resize(batch.n_values);
  memory_.spill_.read(batch.blocks, scratch);
  return scratch;
}

void ActivationStore::drop(int64_t index) {
  Batch& batch = batches_[static_cast<size_t>(index)];
  const uint64_t bytes = batch.n_values * sizeof(float);
  if (batch.blocks.empty()) {
    memory_.release(bytes);
  } else {
    memory_.uncount_spilled(bytes);
    memory_.spill_.give_back(batch.blocks);
  }
  batch = Batch();
}

}  // namespace assay
