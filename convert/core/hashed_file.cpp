#include "convert/core/hashed_file.h"

#include <algorithm>
#include <array>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/parallel.h"

namespace assay {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr size_t kWorthThreads = size_t{1} << 16;  // hashing 64 KiB takes about 50 us

}  // namespace

void HashedFile::put(std::span<const std::byte> block) {
  const std::array<Sha256*, 2> hashes = {hash_ ? &*hash_ : nullptr,
                                         part_hash_ ? &*part_hash_ : nullptr};
  const auto job = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i == 2) {
        file_.write(block);
      } else if (Sha256* const hash = hashes[static_cast<size_t>(i)]) {
        hash->update(block);
      }
    }
  };
  if (block.size() >= kWorthThreads && (hash_ || part_hash_)) {
    parallel_for(3, 1, job);
  } else {
    job(0, 3);
  }
}

void HashedFile::flush() {
  if (!pending_.empty()) put(pending_);
  pending_.clear();
}

void HashedFile::write(std::span<const std::byte> bytes) {
  if (bytes.size() >= kBlockBytes) flush();  // rather than a copy of all that follows
  while (!bytes.empty()) {
    if (pending_.empty() && bytes.size() >= kBlockBytes) {
      put(bytes.first(kBlockBytes));
      bytes = bytes.subspan(kBlockBytes);
      continue;
    }
    const size_t n = std::min(bytes.size(), kBlockBytes - pending_.size());
    pending_.insert(pending_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    bytes = bytes.subspan(n);
    if (pending_.size() == kBlockBytes) flush();
  }
}

void HashedFile::pad(uint64_t n) {
  static constexpr std::array<std::byte, 4096> kZeros{};
  while (n != 0) {
    const auto piece = static_cast<size_t>(std::min<uint64_t>(n, kZeros.size()));
    write(std::span(kZeros).first(piece));
    n -= piece;
  }
}

uint64_t HashedFile::reserve(uint64_t n) {
  ASSAY_CHECK(!hash_ && !part_hash_);
  flush();
  return file_.reserve(n);
}

void HashedFile::begin_part() {
  ASSAY_CHECK(!part_hash_);
  flush();
  part_hash_.emplace();
}

std::string HashedFile::end_part() {
  ASSAY_CHECK(part_hash_.has_value());
  flush();
  return std::exchange(part_hash_, std::nullopt)->finish();
}

std::string HashedFile::commit() {
  ASSAY_CHECK(!part_hash_);
  flush();
  file_.commit();
  return hash_ ? hash_->finish() : std::string();
}

}  // namespace assay
