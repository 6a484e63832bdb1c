#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace assay {

/// Activations in an unnamed temporary file of `folder`, read and written by position, so that they
/// never count as memory of this process; the file vanishes with the process. Blocks that are given
/// back are written again first: that is several times as fast as pages and disk space that are
/// new.
class SpillFile {
 public:
  explicit SpillFile(std::string folder) : folder_(std::move(folder)) {}
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// Returns the blocks that hold the values. Throws ResourceError or FileError if the disk does
  /// not take them.
  std::vector<uint64_t> write(std::span<const float> values);
  void read(std::span<const uint64_t> blocks, std::span<float> out) const;
  void give_back(std::span<const uint64_t> blocks);

 private:
  std::string folder_;
  int fd_ = -1;  // opened at the first block that needs it
  uint64_t n_blocks_ = 0;
  std::vector<uint64_t> free_;
};

/// Memory that all activation stores of a run share. What does not fit goes to a file in
/// `spill_folder`.
class ActivationMemory {
 public:
  ActivationMemory(uint64_t limit_bytes, std::string spill_folder)
      : limit_bytes_(limit_bytes), spill_(std::move(spill_folder)) {}

  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t spilled_bytes() const { return spilled_bytes_; }      // now in files
  uint64_t most_spilled_bytes() const { return most_spilled_; }  // at any time

 private:
  friend class ActivationStore;
  bool try_reserve(uint64_t bytes);
  void release(uint64_t bytes) { used_bytes_ -= bytes; }
  void count_spilled(uint64_t bytes);
  void uncount_spilled(uint64_t bytes) { spilled_bytes_ -= bytes; }

  uint64_t limit_bytes_;
  SpillFile spill_;
  uint64_t used_bytes_ = 0;
  uint64_t spilled_bytes_ = 0;
  uint64_t most_spilled_ = 0;
};

/// One register's values for all calibration tokens, in batches: fp32, (rows, columns) each.
class ActivationStore {
 public:
  explicit ActivationStore(ActivationMemory& memory, int64_t n_batches);
  ~ActivationStore();
  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;

  int64_t n_batches() const { return static_cast<int64_t>(batches_.size()); }
  uint64_t bytes() const;  // of all batches that are held

  /// Keeps a batch, in memory if it fits, else on disk; the memory of a batch on disk is given back
  /// to be written again. Each batch is put once. Throws ResourceError or FileError if the disk
  /// does not take it.
  std::vector<float> put(int64_t batch, std::vector<float> values);
  /// Forgets the values after giving them out: into `values`, whose memory serves if they lie on
  /// disk, and is returned otherwise.
  std::vector<float> take(int64_t batch, std::vector<float>& values);
  /// The values, in place or, if they lie on disk, read into `scratch`.
  std::span<const float> view(int64_t batch, std::vector<float>& scratch) const;
  void drop(int64_t batch);

 private:
  struct Batch {
    std::vector<float> values;  // empty if on disk
    uint64_t n_values = 0;
    std::vector<uint64_t> blocks;  // of the spill file; empty if in memory
  };

  ActivationMemory& memory_;
  std::vector<Batch> batches_;
};

}  // namespace assay
