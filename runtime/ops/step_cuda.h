#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/ops/attention_cuda.h"
#include "runtime/ops/linear_cuda.h"

// A whole decode step of one token in one kernel: linear layers and attention one after the other,
// bits of ops/linear.h and ops/attention.h. One thread block stays on each multiprocessor. Each
// warp of it streams the weights of all stages through a ring of its own in shared memory, and asks
// for those of later stages as soon as there is room. Each stage leaves its result in memory of its
// own, which holds kNotThere before: a reader asks for what it needs until nothing of it is
// kNotThere, so that between stages there is neither fence nor counter, and the rings fill while it
// asks. Needs compute capability 9.0 (bulk copies).

namespace assay::cuda {

/// Bits that no word of a result between stages has: as fp32 a NaN that no operation gives; no byte
/// of a high plane is 0x80; sums of 32 or 128 columns are not so large, and half of it is no sum of
/// 16; scales are positive.
inline constexpr uint32_t kNotThere = 0xff808080u;

/// A quantized group of 128 columns between stages: 32 pairs of four columns' bytes of the high and
/// of the low plane, eight bytes each, in the order [half][t][4] of DeviceActivations; sums of 16
/// (8) and of 32 columns (4), the sum, the scale, zeros.
inline constexpr int kHandedGroupBytes = 320;

/// What all thread blocks of a linear stage have in common, and where a thread block keeps what it
/// works with: offsets into the shared memory of a stage.
struct StepLinearLayout {
  InputLayout inputs;
  int32_t partial = 0;           // sums of squares of 256 columns each
  int32_t sums = 0;              // segment sums of chunk_tiles tiles; before them, rows of the norm
  int32_t outputs = 0;           // results of chunk_tiles tiles, or what they are added to
  int32_t bytes = 0;             // of all
  int32_t columns = 0;           // of the matrices
  int32_t groups = 0;            // of 128 columns
  int32_t segments = 0;          // of 512 columns
  int32_t segment_step = 0;      // from one unit of a warp to its next: warps modulo segments
  int32_t inverse_segments = 0;  // 65,536 / segments, rounded up
  int32_t chunk_tiles = 1;       // of a thread block, whose sums are kept at a time
  int32_t halves = 0;            // units of one part come in two
  int32_t stream = 0;            // the stage among the linear ones
  int32_t held =
      0;  // eighths of a ring that weights of later stages leave free until it is through
};

/// One stage: a linear (tokens 1) or, where is_attention, a layer's attention.
struct alignas(16) StepStage {
  GemvArguments linear;
  StepLinearLayout layout;
  AttentionArguments attention;
  int32_t index = 0;  // of the stage
  int32_t is_attention = 0;
  int32_t input_handed = 0;         // whether an earlier stage writes what this one reads
  int32_t residual_handed = 0;      // whether one writes `residual`
  const float* residual = nullptr;  // kAddTo: what results are added to, at out_offset
  int32_t most_parts = 1;           // that the query heads of a KV head may be dealt in
  int32_t output_fault_op = 0;      // of the linear that reads quantized_output
  // A vector quantized once by the stage that computes it, not by each thread block that reads it
  // (groups, kHandedGroupBytes); null: the fp32 vector is read or written.
  const std::byte* quantized_input = nullptr;
  std::byte* quantized_output = nullptr;
};

/// Bytes that a result of `columns` needs between stages, at most.
uint64_t step_vector_bytes(int64_t columns);

/// The weights that one thread block reads in one linear stage: units one after the other, which
/// its warps take in turn. A unit comes in pieces, the first with the header. Of the last segment
/// of a tile only the groups that the rows have are read.
struct alignas(16) WeightStream {
  const std::byte* units = nullptr;
  int32_t n_units = 0;
  int32_t unit_bytes = 0;
  uint16_t first_bytes = 0;
  uint16_t rest_bytes = 0;
  uint16_t last_bytes = 0;  // of codes in the last segment
  uint16_t segments = 0;
  uint8_t segment_step = 0;  // from one unit of a warp to its next
  uint8_t parts = 0;
};
static_assert(sizeof(WeightStream) == 32);  // a thread block keeps those of all stages

/// When a stage began and ended on one thread block, nanoseconds.
struct StageTimes {
  uint64_t begin = 0;     // first, while it waits
  uint64_t arrived = 0;   // what the first warp reads is there
  uint64_t prepared = 0;  // inputs quantized
  uint64_t computed = 0;  // products finished, or attention's outputs
  uint64_t end = 0;       // results written
};

struct StepArguments {
  const StepStage* stages = nullptr;      // (n_stages)
  const BlockShare* shares = nullptr;     // (n_stages, grid) tiles; begin = end: none
  const WeightStream* streams = nullptr;  // (n_streams, grid), linear stages in order
  const int32_t* positions = nullptr;     // (1) of the token
  const int32_t* sequences = nullptr;     // (1)
  std::byte* vectors = nullptr;           // (vector_bytes) all results between stages
  uint64_t vector_bytes = 0;              // a multiple of 128
  StageTimes* times = nullptr;            // (n_stages, grid), or null
  int32_t n_stages = 0;
  int32_t n_streams = 0;
  int32_t work_bytes = 0;  // shared memory of a stage: step_work_bytes
  int32_t ring_bytes = 0;  // of one warp: step_ring_bytes
  // Of all attention stages; without one, any that the kernel has.
  CacheType cache_type = CacheType::kF16;
  int32_t head_dim = 32;
};

/// Layout of a linear stage whose matrices have the shape of `m`.
StepLinearLayout step_linear_layout(const DeviceMatrix& m, int chunk_tiles, bool has_norm,
                                    bool has_sums16);

/// Shared memory that a stage needs beside the ring.
int step_work_bytes(const StepStage& stage);

/// Bytes of a warp's ring if a multiprocessor has `shared_bytes` for one thread block.
int step_ring_bytes(int shared_bytes, int work_bytes, int n_streams);

/// Largest piece of a matrix that must fit into a warp's ring.
int step_part_bytes(const DeviceMatrix& matrix);

/// What a thread block reads of tiles begin … end of a matrix. `halves`: units of one part come in
/// two.
WeightStream step_stream(const DeviceMatrix& matrix, int begin, int end, bool halves);

/// Tiles of a thread block whose segment sums are kept at a time; a multiple of `granule`.
int step_chunk_tiles(const DeviceMatrix& matrix, int granule);

/// Whether the kernel has this attention.
bool step_has_attention(const AttentionArguments& attention);

/// Parts that the query heads of a KV head may be dealt in, where a part must fill whole groups of
/// 128 columns (`whole_groups`) to be quantized.
int step_most_parts(const AttentionArguments& attention, bool whole_groups);

/// Runs all stages; `grid` thread blocks, at most one per multiprocessor.
void launch_step(const StepArguments& arguments, int grid, cudaStream_t stream);

}  // namespace assay::cuda
