#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/file.h"
#include "convert/core/sha256.h"

namespace assay {

/// An AtomicFile that hashes what it writes: the whole file unless told otherwise, and each part
/// between begin_part() and end_part(). Bytes are read once, in blocks of 1 MiB; the hashes and the
/// write of a block run beside each other, so the file is written at the speed of one hash, about
/// half of what memory takes.
class HashedFile {
 public:
  explicit HashedFile(const std::string& path, bool hash_file = true) : file_(path) {
    if (hash_file) hash_.emplace();
  }

  /// From outside parallel_for, unless nothing is hashed at the time.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void pad(uint64_t n);  // n zero bytes
  /// AtomicFile's, for bytes that somebody else hashes; only where the whole file is not.
  uint64_t reserve(uint64_t n);
  void write_at(uint64_t offset, std::span<const std::byte> bytes) const {
    file_.write_at(offset, bytes);
  }
  uint64_t size() const { return file_.size() + pending_.size(); }

  void begin_part();
  std::string end_part();  // SHA-256 of the bytes since begin_part()
  /// Commits the file; SHA-256 of all bytes, empty if only parts were hashed.
  std::string commit();

 private:
  void flush();
  void put(std::span<const std::byte> block);
  AtomicFile file_;
  std::optional<Sha256> hash_;
  std::optional<Sha256> part_hash_;
  std::vector<std::byte> pending_;  // shorter than a block
};

}  // namespace assay
