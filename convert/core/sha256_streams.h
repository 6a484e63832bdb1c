#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace assay {

/// Bytes that come in pieces.
struct ByteStream {
  uint64_t bytes = 0;  // about how many there will be: long ones are begun first
  /// The next piece, none at the end. A piece may be reused when the next one is asked for.
  std::function<std::span<const std::byte>()> next;
};

/// SHA-256 of many streams. One hash is a chain of steps that wait for each other; where the
/// processor has instructions for them (SHA-NI), a thread goes through two streams at a time, which
/// takes little longer than one.
class Sha256Streams {
 public:
  explicit Sha256Streams(std::vector<ByteStream> streams);

  /// Hashes streams until none is left; to be called by as many threads as shall do so. Does not
  /// throw: after a failure of a stream no other is begun.
  void work() noexcept;
  /// No further stream is begun.
  void stop() { next_.store(order_.size()); }
  /// In the order of the streams, when every work() has returned. Throws the failure of the first
  /// stream that had one, by size, then in their order: the same with any number of threads.
  std::vector<std::string> finish();

 private:
  class Lane;
  void hash_one_at_a_time();
  void hash_two_at_a_time();
  /// Index of the next stream, or nothing.
  bool take(size_t& place);
  void fail(size_t place);

  std::vector<ByteStream> streams_;
  std::vector<std::string> hashes_;
  std::vector<size_t> order_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  size_t failed_at_ = std::numeric_limits<size_t>::max();
  std::exception_ptr failure_;
};

/// SHA-256 of each of `parts`, on all threads. `progress` is told the index of a part before each
/// piece of it, on any thread; what it throws ends the work.
std::vector<std::string> sha256_of_all(const std::vector<std::span<const std::byte>>& parts,
                                       const std::function<void(size_t)>& progress = {});

}  // namespace assay
