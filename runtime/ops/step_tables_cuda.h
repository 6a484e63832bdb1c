#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/device/cuda_support.h"
#include "runtime/ops/step_cuda.h"

namespace assay::cuda {

/// How many of at most `n_blocks` thread blocks each matrix gets, so that the one with most bytes
/// has as few as can be when each matrix is dealt evenly to its own. Shares of one matrix alone are
/// multiples of `granule` tiles, which divides its number.
std::vector<int32_t> deal_blocks(const std::vector<DeviceMatrix>& matrices, int n_blocks,
                                 int granule = 1);

/// Thread blocks for a matrix whose launch overlaps with others (GemvArguments::input_given): all
/// multiprocessors if that is even within 5 %, or else so many that all have as much, and other
/// launches fill what they leave.
int32_t independent_blocks(int32_t tiles, int n_multiprocessors);

/// The shares that these have.
std::vector<BlockShare> deal_tiles(const std::vector<DeviceMatrix>& matrices, int n_blocks,
                                   int granule = 1);

/// Stages of launch_step() put together on the host, for a grid of all multiprocessors.
class StepTables {
 public:
  /// `vectors`: `capacity` bytes of device memory through which stages hand on their results,
  /// step_vector_bytes() of each stage but the last. `average_bytes`: of the weights of a linear
  /// stage. Where the rings of all thread blocks hold less, there is always something to load, and
  /// units of one part come in two, of which a ring holds more; where they hold more, that would
  /// only cost.
  StepTables(const DeviceLimits& limits, std::byte* vectors, uint64_t capacity,
             uint64_t average_bytes)
      : limits_(limits),
        vectors_(vectors),
        capacity_(capacity),
        rings_(static_cast<uint64_t>(limits.multiprocessors) *
               static_cast<uint64_t>(limits.block_shared) / 4 * 3),
        halves_(average_bytes > rings_) {}

  /// A linear of one token; matrices without units are not there. What a stage writes is handed on
  /// to those after it that read the same address, by other memory; only the last stage writes
  /// where its arguments say.
  void add_linear(const GemvArguments& linear);
  /// Attention of the token at positions[0], for as many thread blocks as there are.
  void add_attention(const AttentionArguments& attention);

  /// Whether the device can run all stages.
  bool can_run() const;

  const std::vector<StepStage>& stages() const { return stages_; }
  const std::vector<BlockShare>& shares() const { return shares_; }
  const std::vector<WeightStream>& streams() const { return streams_; }
  /// Counts, sizes and `vectors`; the other pointers are the caller's.
  StepArguments sizes() const;

 private:
  bool can_quantize_for(const GemvArguments& reader) const;
  std::byte* take(uint64_t bytes);
  void hand_on(bool quantized);
  const float* current(const float* vector, int32_t& handed) const;
  void deal_last(int granule);

  DeviceLimits limits_;
  std::byte* vectors_;
  uint64_t capacity_, used_ = 0;
  uint64_t rings_;  // bytes of all, about
  bool halves_;
  std::map<const float*, const float*> handed_;  // where what was to be written lies
  std::vector<StepStage> stages_;
  std::vector<BlockShare> shares_;
  std::vector<WeightStream> streams_;
  int32_t work_bytes_ = 0;
  int32_t part_bytes_ = 0;
  bool has_kernels_ = true;
  CacheType cache_type_ = CacheType::kF16;  // of all attention stages
  int32_t head_dim_ = 0;                    // 0: there is none yet
};

}  // namespace assay::cuda
