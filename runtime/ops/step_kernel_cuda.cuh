#pragma once

#include <algorithm>

#include "runtime/device/cuda_support.h"
#include "runtime/ops/attention_cuda.cuh"
#include "runtime/ops/linear_vector_cuda.cuh"
#include "runtime/ops/step_cuda.h"

// The kernel of ops/step_cuda.h for one sort of attention, that is, a type of the cache and a head
// size; each in a file of its own, step_*_cuda.cu.
//
// Local memory is slow here: what spills goes to the L2 cache, as next to nothing is left of L1. So
// what a stage needs is computed ahead on the host; shared memory is addressed from its base;
// everything is inlined, as callers would keep registers from functions; the thread's index is read
// anew in each part, so that nothing that follows from it is kept around all stages; and no array
// is written on one path alone, or it would take registers on all.

namespace assay::cuda {

/// launch_step() for one sort of attention.
template <CacheType kType, int kHeadDim>
void launch_step_as(const StepArguments& arguments, int grid, cudaStream_t stream);

namespace step {

inline constexpr int kWarps = 16;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kEntries = 8;            // pieces of weights on their way to one warp, at most
inline constexpr int kLeastPiece = 3 * 1024;  // bytes
inline constexpr int kHeldBlocks = 2;         // of 256 columns that a warp keeps in registers
inline constexpr uint64_t kEvictFirst = 0x12f0000000000000;  // as createpolicy gives it
inline constexpr int kMergeSegments = 32;                    // attention segments merged at a time

__host__ __device__ constexpr int align_up(int bytes, int to) { return (bytes + to - 1) / to * to; }

/// What a thread block keeps of a stage: its record and the block's share.
struct StageRecord {
  StepStage stage;
  BlockShare share;
};

/// What stays the same for all stages.
struct StepConstants {
  StepArguments arguments;
  int32_t position, sequence;
  int32_t rings;    // where the warps' rings begin
  int32_t streams;  // where the WeightStreams of the thread block lie
  int32_t grid;     // thread blocks
};

/// Where a warp is: in its stream of weights, and in the stages.
struct alignas(16) WarpState {
  const std::byte* source;     // of the piece to ask for next
  int32_t stream;              // the stage after that, among the linear ones
  int32_t units_left;          // of that stage to ask for
  int32_t part;                // of the unit
  int32_t segment;             // of the unit
  uint32_t asked, ask_offset;  // pieces asked for, and where the next will lie in the ring
  uint32_t room;               // bytes of the ring that are free
  uint32_t taken, offset;      // pieces that were used, and where the next lies
  int32_t record;              // where the record of the stage lies
  int32_t begin;               // first tile of the chunk
};

// Shared memory: barriers, how far each warp is, zeros, stage records, then what a stage works
// with, then the warps' rings, then what they read in all stages.
inline constexpr int kFullAt = 0;
inline constexpr int kStatesAt = kFullAt + kWarps * kEntries * 8;
inline constexpr int kConstantsAt = kStatesAt + kWarps * static_cast<int>(sizeof(WarpState));
inline constexpr int kZerosAt =
    kConstantsAt + align_up(static_cast<int>(sizeof(StepConstants)), 16);
inline constexpr int kRecordsAt = kZerosAt + kZeroBytes;
inline constexpr int kWorkAt =
    align_up(kRecordsAt + 2 * static_cast<int>(sizeof(StageRecord)), 128);

__host__ __device__ constexpr int rings_at(int work_bytes) {
  return kWorkAt + align_up(work_bytes, 128);
}

/// What attention works with, offsets into the shared memory of a stage, for a number of query
/// heads.
struct AttentionLayout {
  int values, new_key, new_value, flag, q, scores, maxima, sums, coefficients, bytes;
};

__host__ __device__ constexpr AttentionLayout attention_layout(int heads, int head_dim,
                                                               int element_bytes) {
  AttentionLayout at{};
  at.new_key = at.values + kSegmentKeys * head_dim * element_bytes;
  at.new_value = at.new_key + align_up(head_dim * element_bytes, 16);
  at.flag = at.new_value + align_up(head_dim * element_bytes, 16);
  at.q = at.flag + 16;
  at.scores = at.q + heads * head_dim * 4;
  at.maxima = at.scores + heads * kSegmentKeys * 4;
  at.sums = at.maxima + align_up(heads * 4, 16);
  at.coefficients = at.sums + align_up(heads * 4, 16);
  at.bytes = at.coefficients + heads * kMergeSegments * 16;
  return at;
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint8_t* shared_at(int offset) {
  extern __shared__ __align__(128) uint8_t step_shared[];
  return step_shared + offset;
}

/// Which thread this is, read anew: what follows from it is computed where it is needed, and not
/// kept around all stages.
struct Thread {
  int index, warp, lane;
  __device__ __forceinline__ Thread() {
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    index = static_cast<int>(x & 1023);
    warp = static_cast<int>(x / 32 % 32);
    lane = static_cast<int>(x % 32);
  }
};

__device__ __forceinline__ WarpState& state_of(int warp) {
  return reinterpret_cast<WarpState*>(shared_at(kStatesAt))[warp];
}
/// Where the record of the stage lies that the warp is in.
__device__ __forceinline__ int current_record(const Thread& me) { return state_of(me.warp).record; }
__device__ __forceinline__ const StepStage& stage_at(int record) {
  return reinterpret_cast<const StageRecord*>(shared_at(record))->stage;
}
__device__ __forceinline__ const BlockShare& share_at(int record) {
  return reinterpret_cast<const StageRecord*>(shared_at(record))->share;
}
__device__ __forceinline__ const StepConstants& constants() {
  return *reinterpret_cast<const StepConstants*>(shared_at(kConstantsAt));
}

__device__ __forceinline__ uint64_t now() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

/// All warps that compute.
__device__ __forceinline__ void sync_computing() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

__device__ __forceinline__ void init_barrier(uint32_t barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

/// Where the next piece of a stream lies in a warp's ring: behind the one before, at the start
/// again where it would pass the end. `offset` moves on. `given` gets the bytes that the ring gives
/// for it.
__device__ __forceinline__ uint32_t place_piece(uint32_t& offset, uint32_t bytes,
                                                uint32_t ring_bytes, uint32_t& given) {
  const bool wraps = offset + bytes > ring_bytes;
  given = wraps ? bytes + ring_bytes - offset : bytes;
  const uint32_t at = wraps ? 0 : offset;
  offset = at + bytes;
  return at;
}

/// A WeightStream in registers.
struct OpenStream {
  const std::byte* units;
  int n_units, unit_bytes, first_bytes, rest_bytes, last_bytes, segments, segment_step, parts;

  /// Two loads: a copy of the struct would be one of each byte.
  __device__ __forceinline__ void load(const uint8_t* from) {
    const uint4 a = reinterpret_cast<const uint4*>(from)[0];
    const uint4 b = reinterpret_cast<const uint4*>(from)[1];
    units = reinterpret_cast<const std::byte*>(static_cast<uint64_t>(a.y) << 32 | a.x);
    n_units = static_cast<int>(a.z);
    unit_bytes = static_cast<int>(a.w);
    first_bytes = static_cast<int>(b.x & 0xffffu);
    rest_bytes = static_cast<int>(b.x >> 16);
    last_bytes = static_cast<int>(b.y & 0xffffu);
    segments = static_cast<int>(b.y >> 16);
    segment_step = static_cast<int>(b.z & 0xffu);
    parts = static_cast<int>(b.z >> 8 & 0xffu);
  }
};

/// A warp's ring of weights. Where a piece was used the warp asks for the next one that has room,
/// whatever stage it belongs to.
class StreamRing {
 public:
  /// Of streams from `later` on `held` bytes of the ring are kept free.
  __device__ __forceinline__ StreamRing(const WarpState& state, int warp, int lane, int later,
                                        uint32_t held)
      : state_(state),
        later_(later),
        held_(held),
        memory_(constants().rings + warp * constants().arguments.ring_bytes),
        barriers_(shared_address(shared_at(kFullAt)) + static_cast<uint32_t>(warp) * kEntries * 8),
        ring_bytes_(static_cast<uint32_t>(constants().arguments.ring_bytes)),
        warp_(warp),
        lane_(lane) {
    open_stream(max(state.stream - 1, 0));
  }
  /// Asks for what there is room for.
  __device__ __forceinline__ void fill() {
    held_ = 0;
#pragma unroll 1
    while (ask()) continue;
  }
  /// Keeps where the warp is in its stream.
  __device__ __forceinline__ void save(WarpState& state) {
    __syncwarp();  // all lanes have read it
    if (lane_ == 0) {
      state.source = state_.source;
      state.stream = state_.stream;
      state.units_left = state_.units_left;
      state.part = state_.part;
      state.segment = state_.segment;
      state.asked = state_.asked;
      state.ask_offset = state_.ask_offset;
      state.room = state_.room;
      state.taken = state_.taken;
      state.offset = state_.offset;
    }
    __syncwarp();
  }

  /// Waits for the next piece, `bytes` long, and gives it.
  __device__ __forceinline__ const uint8_t* wait(uint32_t bytes) {
    const uint32_t at = place_piece(state_.offset, bytes, ring_bytes_, piece_);
    wait_barrier(barriers_ + state_.taken % kEntries * 8, state_.taken / kEntries & 1);
    return shared_at(memory_ + static_cast<int>(at));
  }
  /// Hands back the piece.
  __device__ __forceinline__ void release() {
    __syncwarp();
    state_.room += piece_;
    ++state_.taken;
    static_cast<void>(ask());
  }

 private:
  __device__ __forceinline__ void open_stream(int stream) {
    stream_.load(shared_at(constants().streams + stream * static_cast<int>(sizeof(WeightStream))));
  }

  /// Asks for the next piece if there is one, and room for it.
  __device__ __forceinline__ bool ask() {
    if (state_.units_left == 0) {
      do {
        if (state_.stream == constants().arguments.n_streams) return false;
        open_stream(state_.stream++);
        state_.units_left = (stream_.n_units - warp_ + kWarps - 1) / kWarps;
      } while (state_.units_left == 0);
      state_.source = stream_.units + warp_ * stream_.unit_bytes;
      state_.segment = warp_;
      while (state_.segment >= stream_.segments) state_.segment -= stream_.segments;
    }
    const auto bytes =
        static_cast<uint32_t>(state_.part == 0 ? stream_.first_bytes : stream_.rest_bytes);
    uint32_t offset = state_.ask_offset, given;
    uint32_t at = place_piece(offset, bytes, ring_bytes_, given);
    if (given + (state_.stream > later_ ? held_ : 0) > state_.room) {
      if (state_.asked != state_.taken) return false;
      at = state_.offset = 0;  // an empty ring has room for any piece
      state_.room = ring_bytes_;
      given = offset = bytes;
    }
    state_.room -= given;
    state_.ask_offset = offset;
    uint32_t copied = bytes;
    if (state_.segment == stream_.segments - 1) {  // of what lies behind the row's end, nothing
      const int rest = stream_.rest_bytes;
      const int codes = max(0, min(rest, stream_.last_bytes - state_.part * rest));
      copied = bytes - static_cast<uint32_t>(rest - codes);
    }
    // By one lane. Weights are read once per step: they leave the cache first.
    asm volatile(
        "{ .reg .pred one, more;\n"
        "  elect.sync _|one, 0xffffffff;\n"
        "  setp.ne.and.u32 more, %2, 0, one;\n"
        "  @one mbarrier.arrive.expect_tx.shared.b64 _, [%3], %2;\n"
        "  @more cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4; }" ::"r"(shared_address(shared_at(memory_)) + at),
        "l"(state_.source), "r"(copied), "r"(barriers_ + state_.asked % kEntries * 8),
        "n"(kEvictFirst)
        : "memory");
    ++state_.asked;
    state_.source += bytes;
    if (++state_.part == stream_.parts) {
      state_.part = 0;
      --state_.units_left;
      state_.source += (kWarps - 1) * stream_.unit_bytes;
      state_.segment += stream_.segment_step;
      if (state_.segment >= stream_.segments) state_.segment -= stream_.segments;
    }
    return true;
  }

  WarpState state_;
  OpenStream stream_;  // of what is asked for
  int later_;
  uint32_t held_;
  int memory_;
  uint32_t barriers_, ring_bytes_;
  int warp_, lane_;
  uint32_t piece_ = 0;
};

/// Asks for what a warp's ring has room for.
__device__ __forceinline__ void fill_ring() {
  const Thread me;
  WarpState& state = state_of(me.warp);
  StreamRing ring(state, me.warp, me.lane, constants().arguments.n_streams, 0);
  ring.fill();
  ring.save(state);
}

/// The units of one stage in it, in parts of kGroups groups.
template <MatrixKind kKind, int kGroups>
class UnitRing {
 public:
  __device__ __forceinline__ UnitRing(StreamRing& ring, int header_bytes)
      : ring_(ring), header_bytes_(header_bytes) {}
  __device__ __forceinline__ const uint4* wait(bool first) {
    const int header = first ? header_bytes_ : 0;
    piece_ = ring_.wait(static_cast<uint32_t>(header) + kPartBytes);
    return reinterpret_cast<const uint4*>(piece_ + header);
  }
  __device__ __forceinline__ const uint8_t* header() const { return piece_; }
  __device__ __forceinline__ void release() { ring_.release(); }

 private:
  static constexpr uint32_t kPartBytes = static_cast<uint32_t>(kGroups * kWords<kKind> * 32 * 16);
  StreamRing& ring_;
  int header_bytes_;
  const uint8_t* piece_ = nullptr;
};

// Between stages. Each word of a result tells itself whether it is there.

__device__ __forceinline__ void mark(const Thread& me, int stage, uint64_t StageTimes::*what) {
  if (me.index != 0) return;
  StageTimes* times = constants().arguments.times;
  if (times != nullptr)
    times[static_cast<size_t>(stage) * constants().grid + blockIdx.x].*what = now();
}

__device__ __forceinline__ void copy_async(int to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared_at(to))),
               "l"(from)
               : "memory");
}

/// Words of an earlier result, past L1, as they are now.
__device__ __forceinline__ uint4 load_handed(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ float load_handed(const float* from) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ bool is_missing(float v) { return __float_as_uint(v) == kNotThere; }

/// A number of an earlier result; waits for it if it is `handed`.
__device__ __forceinline__ float take_handed(const float* from, bool handed) {
  float v = load_handed(from);
  while (handed && is_missing(v)) v = load_handed(from);
  return v;
}

/// Writes a number of a result.
__device__ __forceinline__ void hand_on(float* to, float value) {
  if (is_missing(value)) value = __uint_as_float(0x7fffffffu);
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

/// Quantized groups as they are handed on.
struct HandedGroups {
  static constexpr int kScaleAt = 308;
  std::byte* groups;

  __device__ __forceinline__ void set_planes(int group, int word, uint32_t high,
                                             uint32_t low) const {
    // Of numbers too large to be quantized, which are reported, it may be anything.
    if (high == kNotThere) high = 0;
    set_pair(group, (word / 16 * 16 + word % 4 * 4 + word % 16 / 4) * 8, high, low);
  }
  __device__ __forceinline__ void set_sum16(int group, int i, int32_t sum) const {
    set_word(group, kSumsAt + i * 4, sum);
  }
  __device__ __forceinline__ void set_sum32(int group, int i, int32_t sum) const {
    set_word(group, kSumsAt + 32 + i * 4, sum);
  }
  __device__ __forceinline__ void set_scale(int group, int32_t sum, float scale) const {
    set_pair(group, kScaleAt - 4, static_cast<uint32_t>(sum), __float_as_uint(scale));
    set_pair(group, kSumsAt + 56, 0, 0);
  }

 private:
  static constexpr int kSumsAt = 256;
  __device__ __forceinline__ void set_word(int group, int at, int32_t value) const {
    asm volatile(
        "st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(groups + group * kHandedGroupBytes + at),
        "r"(value)
        : "memory");
  }
  /// Seen as a whole, as 64 bits are.
  __device__ __forceinline__ void set_pair(int group, int at, uint32_t first,
                                           uint32_t second) const {
    asm volatile(
        "st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(groups + group * kHandedGroupBytes + at),
        "l"(static_cast<uint64_t>(second) << 32 | first)
        : "memory");
  }
};

__device__ __forceinline__ GroupTarget target_at(uint8_t* base, const InputLayout& at) {
  return {reinterpret_cast<uint32_t*>(base + at.planes),
          at.sums16 < 0 ? nullptr : reinterpret_cast<int32_t*>(base + at.sums16),
          reinterpret_cast<int32_t*>(base + at.sums32),
          reinterpret_cast<int32_t*>(base + at.sums128),
          reinterpret_cast<float*>(base + at.scales)};
}

/// Where what the thread's result is added to lies, the row of its index among the share's; null
/// past the end.
__device__ __forceinline__ const float* residual_of(const Thread& me, int record) {
  const StepStage& stage = stage_at(record);
  const int index = share_at(record).matrix;
  const int row = share_at(record).begin * kTileRows + me.index;
  return row < stage.linear.matrices[index].rows
             ? stage.residual + stage.linear.out_offset[index] + row
             : nullptr;
}

/// The first results of a share, before they are added to, are kept where outputs would be; by
/// take_input().
__device__ __forceinline__ float* outputs_at(const StepLinearLayout& at) {
  return reinterpret_cast<float*>(shared_at(kWorkAt + at.outputs));
}

/// The input, which an earlier stage quantized, to shared memory. Each warp has groups of its own.
__device__ __forceinline__ void fetch_input(const Thread& me, const StepStage& stage) {
  constexpr int kPieces = kHandedGroupBytes / 32, kMost = 8, kBatch = (kMost * kPieces + 31) / 32;
  const int groups = stage.layout.groups, share = min(kMost, (groups + kWarps - 1) / kWarps);
  const GroupTarget target = target_at(shared_at(kWorkAt), stage.layout.inputs);
#pragma unroll 1
  for (int first = me.warp * share; first < groups; first += kWarps * share) {
    const int n = min(share, groups - first);
    const std::byte* from = stage.quantized_input + first * kHandedGroupBytes;
    // Scales alone while it waits: what asks for all takes the way of others' weights.
    const auto* scale = reinterpret_cast<const float*>(
        from + min(me.lane, n - 1) * kHandedGroupBytes + HandedGroups::kScaleAt);
    while (__any_sync(0xffffffffu, is_missing(load_handed(scale)))) continue;
    uint4 v[kBatch][2];
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int i = min(me.lane + k * 32, n * kPieces - 1);
        v[k][0] = load_handed(reinterpret_cast<const uint4*>(from) + 2 * i);
        v[k][1] = load_handed(reinterpret_cast<const uint4*>(from) + 2 * i + 1);
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int i = min(me.lane + k * 32, n * kPieces - 1);
        const bool is_sum = i % kPieces >= 8;  // elsewhere every second word may be anything
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4& w = v[k][half];
          missing = missing || w.x == kNotThere || w.z == kNotThere ||
                    (is_sum && (w.y == kNotThere || w.w == kNotThere));
        }
      }
    } while (missing);
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int i = me.lane + k * 32;
      if (i >= n * kPieces) break;
      const int group = first + i / kPieces, piece = i % kPieces;
      const uint4 a = v[k][0], b = v[k][1];
      if (piece < 8) {
        uint4* planes =
            reinterpret_cast<uint4*>(target.planes) + group * 16 + piece / 4 * 8 + piece % 4;
        planes[0] = make_uint4(a.x, a.z, b.x, b.z);
        planes[4] = make_uint4(a.y, a.w, b.y, b.w);
      } else if (piece == 8) {
        if (target.sums16 == nullptr) continue;
        uint4* sums = reinterpret_cast<uint4*>(target.sums16) + group * 2;
        sums[0] = a;
        sums[1] = b;
      } else {
        reinterpret_cast<uint4*>(target.sums32)[group] = a;
        target.sums128[group] = static_cast<int32_t>(b.x);
        target.scales[group] = __uint_as_float(b.y);
      }
    }
  }
}

/// Two groups of 128 columns of one row, four columns of each for a lane.
struct HeldBlock {
  float v[2][4];

  /// `columns` is a multiple of 4; columns past the end are 0.
  __device__ __forceinline__ void load(const float* row, int block, int lane, int columns) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first = (2 * block + half) * kGroupColumns + lane * 4;
      uint4 x = make_uint4(0, 0, 0, 0);
      if (first < columns) x = load_handed(reinterpret_cast<const uint4*>(row + first));
      v[half][0] = __uint_as_float(x.x), v[half][1] = __uint_as_float(x.y);
      v[half][2] = __uint_as_float(x.z), v[half][3] = __uint_as_float(x.w);
    }
  }
  __device__ __forceinline__ bool has_gaps() const {
    bool gaps = false;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) gaps = gaps || is_missing(v[half][i]);
    return gaps;
  }
};

/// Loads kHeldBlocks blocks of a stage's input, kWarps apart; waits for them if they are handed on.
__device__ __forceinline__ void take_blocks(HeldBlock (&x)[kHeldBlocks], const StepStage& stage,
                                            int first, int lane) {
  const bool handed = stage.input_handed != 0;
  // One number while it waits: what asks for all takes the way of others' weights.
  const int column = first * 2 * kGroupColumns;
  while (handed && column < stage.layout.columns &&
         __any_sync(0xffffffffu, is_missing(load_handed(stage.linear.x + column))))
    continue;
  bool gaps;
  do {
    gaps = false;
#pragma unroll
    for (int k = 0; k < kHeldBlocks; ++k)
      x[k].load(stage.linear.x, first + k * kWarps, lane, stage.layout.columns);
#pragma unroll
    for (int k = 0; k < kHeldBlocks; ++k) gaps = gaps || x[k].has_gaps();
  } while (__any_sync(0xffffffffu, handed && gaps));
}

/// Quantizes a block of a row into shared memory.
__device__ __forceinline__ void quantize_block(const HeldBlock& x, int block, int lane, int groups,
                                               const GroupTarget& target, const GemvArguments& a) {
  uint32_t top[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    top[half] = quantize_group_unchecked(x.v[half], 2 * block + half, lane, target,
                                         2 * block + half < groups);
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (top[half] > kLargestActivation && lane == 0)
      report_fault(a.fault, a.fault_op, (2 * block + half) * kGroupColumns,
                   __uint_as_float(top[half]));
}

/// Quantization of the input into shared memory, by every thread block.
__device__ __forceinline__ void quantize_input(const Thread& me, const StepStage& stage) {
  const GemvArguments& a = stage.linear;
  const int groups = stage.layout.groups, n_blocks = (groups + 1) / 2;
  const GroupTarget target = target_at(shared_at(kWorkAt), stage.layout.inputs);
  HeldBlock x[kHeldBlocks];
#pragma unroll 1
  for (int base = me.warp; base < n_blocks; base += kHeldBlocks * kWarps) {
    take_blocks(x, stage, base, me.lane);
#pragma unroll
    for (int k = 0; k < kHeldBlocks; ++k)
      if (base + k * kWarps < n_blocks)
        quantize_block(x[k], base + k * kWarps, me.lane, groups, target, a);
  }
}

/// Sum of the squares of a block of 256 columns, in the order of a lane sum. `rows` has room for
/// the block.
__device__ __forceinline__ float sum_of_squares(const HeldBlock& x, int lane, float* rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    reinterpret_cast<float4*>(rows)[half * 32 + lane] =
        make_float4(x.v[half][0], x.v[half][1], x.v[half][2], x.v[half][3]);
  __syncwarp();
  float acc = 0.0f;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float v = rows[k * 32 + lane];
    acc = __fmaf_rn(v, v, acc);  // columns past the end are 0
  }
  __syncwarp();
  return fold_lanes(acc);
}

/// Waits for the input, then norm and quantization of it into shared memory, by every thread block.
__device__ __forceinline__ void norm_input(const Thread& me, const StepStage& stage) {
  const GemvArguments& a = stage.linear;
  const int columns = stage.layout.columns, groups = stage.layout.groups;
  const int warp = me.warp, lane = me.lane, n_blocks = (groups + 1) / 2;
  HeldBlock weight[kHeldBlocks], x[kHeldBlocks];
#pragma unroll
  for (int k = 0; k < kHeldBlocks; ++k)
    weight[k].load(a.norm_weight, warp + k * kWarps, lane, columns);
  take_blocks(x, stage, warp, lane);
  mark(me, stage.index, &StageTimes::arrived);
  float* partial = reinterpret_cast<float*>(shared_at(kWorkAt + stage.layout.partial));
  float* rows = reinterpret_cast<float*>(shared_at(kWorkAt + stage.layout.sums)) + warp * 256;
#pragma unroll
  for (int k = 0; k < kHeldBlocks; ++k) {
    const int block = warp + k * kWarps;
    if (block >= n_blocks) break;
    const float sum = sum_of_squares(x[k], lane, rows);
    if (lane == 0) partial[block] = sum;
  }
#pragma unroll 1
  for (int block = warp + kHeldBlocks * kWarps; block < n_blocks; block += kWarps) {
    HeldBlock more;
    do more.load(a.x, block, lane, columns);
    while (__any_sync(0xffffffffu, stage.input_handed != 0 && more.has_gaps()));
    const float sum = sum_of_squares(more, lane, rows);
    if (lane == 0) partial[block] = sum;
  }
  sync_computing();
  const float total = ascending_sum(partial, n_blocks, 1);
  const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fmul_rn(total, a.inverse_n), a.eps)));
  const GroupTarget target = target_at(shared_at(kWorkAt), stage.layout.inputs);
  const auto finish = [&](HeldBlock& y, const HeldBlock& w, int block) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        y.v[half][i] = __fmul_rn(__fmul_rn(y.v[half][i], r), w.v[half][i]);
    quantize_block(y, block, lane, groups, target, a);
  };
#pragma unroll
  for (int k = 0; k < kHeldBlocks; ++k)
    if (warp + k * kWarps < n_blocks) finish(x[k], weight[k], warp + k * kWarps);
#pragma unroll 1
  for (int block = warp + kHeldBlocks * kWarps; block < n_blocks; block += kWarps) {
    HeldBlock more, its_weight;
    more.load(a.x, block, lane, columns);
    its_weight.load(a.norm_weight, block, lane, columns);
    finish(more, its_weight, block);
  }
}

/// The warp's units among those of the chunk; their segment sums to shared memory.
template <MatrixKind kKind, int kPieces, int kGroups>
__device__ __forceinline__ void run_units() {
  const Thread me;
  const int warp = me.warp, lane = me.lane;
  WarpState& state = state_of(warp);
  const int record = state.record;
  const StepStage& stage = stage_at(record);
  const StepLinearLayout& at = stage.layout;
  const DeviceMatrix m = stage.linear.matrices[share_at(record).matrix];
  const int segments = at.segments, step = at.segment_step;
  const int before = (state.begin - share_at(record).begin) * segments;
  const int end = min(at.chunk_tiles, share_at(record).end - state.begin) * segments;
  StreamRing stream(state, warp, lane, at.stream + 1,
                    static_cast<uint32_t>(constants().arguments.ring_bytes * at.held) / 8);
  UnitRing<kKind, kGroups> ring(stream, m.header_bytes);
  const Inputs inputs(shared_at(kWorkAt), at.inputs, m.groups, 0, 0, kZerosAt - kWorkAt, lane);
  int unit = static_cast<int>(static_cast<uint32_t>(warp - before) % kWarps);
  int segment = unit - segments * (unit * at.inverse_segments >> 16);
  float* to = reinterpret_cast<float*>(shared_at(kWorkAt + at.sums)) + unit * kTileRows + lane / 4;
  uint32_t worst = 0;
#pragma unroll 1
  for (; unit < end; unit += kWarps) {
    float acc[2] = {0.0f, 0.0f};
    single_unit<kKind, kPieces, kGroups>(m, ring, inputs, segment, lane, acc, worst);
    if (lane % 4 == 0) {
      to[0] = acc[0];
      to[8] = acc[1];
    }
    to += kWarps * kTileRows;
    segment += step;
    if (segment >= segments) segment -= segments;
  }
  if (worst >= 0x7f800000u)
    report_fault(stage.linear.fault, stage.linear.fault_op, 0, __uint_as_float(worst));
  stream.fill();
  stream.save(state);
}

/// Results of the chunk's tiles from their segment sums.
__device__ __forceinline__ void finish_tiles() {
  const Thread me;
  const int record = current_record(me), begin = state_of(me.warp).begin;
  const StepStage& stage = stage_at(record);
  mark(me, stage.index, &StageTimes::computed);
  const GemvArguments& a = stage.linear;
  const StepLinearLayout& at = stage.layout;
  const int index = share_at(record).matrix;
  const int n_tiles = min(at.chunk_tiles, share_at(record).end - begin);
  const int segments = at.segments, rows = a.matrices[index].rows;
  const float* sums = reinterpret_cast<const float*>(shared_at(kWorkAt + at.sums));
  const auto total = [&](int tile, int row) {
    return ascending_sum(sums + tile * segments * kTileRows + row, segments, kTileRows);
  };
  float* out = a.out + a.out_offset[index];
  float* outputs = outputs_at(at);
  if (a.epilogue != Epilogue::kSwiGlu) {
    const float* bias = a.bias[index];
    const bool adds = a.epilogue == Epilogue::kAddTo;
    const bool kept = begin == share_at(record).begin && a.norm_weight == nullptr;
#pragma unroll 1
    for (int i = me.index; i < n_tiles * kTileRows; i += kThreads) {
      const int row = begin * kTileRows + i;
      if (row >= rows) continue;
      float before = 0.0f;
      if (adds)
        before = kept && i < kThreads ? outputs[i]
                                      : take_handed(stage.residual + a.out_offset[index] + row,
                                                    stage.residual_handed != 0);
      float y = total(i / kTileRows, i % kTileRows);
      if (bias != nullptr) y = __fadd_rn(y, __ldg(bias + row));
      hand_on(out + row, adds ? __fadd_rn(before, y) : y);
    }
    return;
  }
#pragma unroll 1
  for (int i = me.index; i < n_tiles * 8; i += kThreads) {
    const float y = __fmul_rn(silu_canonical(total(i / 8, i % 8)), total(i / 8, i % 8 + 8));
    const int to = begin * 8 + i;
    if (stage.quantized_output != nullptr)
      outputs[i] = y;
    else if (to < rows / 2)
      hand_on(out + to, y);
  }
  if (stage.quantized_output == nullptr) return;
  sync_computing();
  const HandedGroups target{stage.quantized_output};
#pragma unroll 1
  for (int group = me.warp; group < n_tiles * 8 / kGroupColumns; group += kWarps) {
    const float4 v = reinterpret_cast<const float4*>(outputs)[group * 32 + me.lane];
    const float y[4] = {v.x, v.y, v.z, v.w};
    quantize_group(y, begin * 8 / kGroupColumns + group, me.lane, target, stage.output_fault_op,
                   a.fault);
  }
}

/// Waits for the input and gets it, quantized, to shared memory.
__device__ __forceinline__ void take_input(const Thread& me, int record) {
  const StepStage& stage = stage_at(record);
  const bool adds =
      stage.linear.epilogue == Epilogue::kAddTo && me.index < stage.layout.chunk_tiles * kTileRows;
  const float* residual = adds ? residual_of(me, record) : nullptr;
  float before = residual == nullptr ? 0.0f : load_handed(residual);
  if (stage.quantized_input != nullptr)
    fetch_input(me, stage);
  else if (stage.linear.norm_weight == nullptr)
    quantize_input(me, stage);
  mark(me, stage.index, &StageTimes::arrived);
  if (!adds) return;
  while (stage.residual_handed != 0 && is_missing(before)) before = load_handed(residual);
  outputs_at(stage.layout)[me.index] = before;
}

__device__ __forceinline__ void linear_stage() {
  {
    const Thread me;
    const int record = current_record(me);
    const StepStage& stage = stage_at(record);
    if (stage.linear.norm_weight != nullptr)
      norm_input(me, stage);
    else
      take_input(me, record);
    if (me.lane == 0) state_of(me.warp).begin = share_at(record).begin;
    sync_computing();
    mark(me, stage.index, &StageTimes::prepared);
  }
#pragma unroll 1
  while (true) {
    {
      const int record = current_record(Thread());
      const StepStage& stage = stage_at(record);
      dispatch_kind(stage.linear.matrices[share_at(record).matrix],
                    [&]<MatrixKind kKind, int kPieces>() {
                      if constexpr (kPartGroups<kKind> == kSegmentGroups) {
                        if (stage.layout.halves != 0)
                          return run_units<kKind, kPieces, kSegmentGroups / 2>();
                      }
                      run_units<kKind, kPieces, kPartGroups<kKind>>();
                    });
    }
    sync_computing();
    const Thread me;
    const int record = current_record(me);
    WarpState& state = state_of(me.warp);
    const int next = state.begin + stage_at(record).layout.chunk_tiles;
    const bool is_last = next >= share_at(record).end;
    finish_tiles();
    if (is_last) return;
    __syncwarp();
    if (me.lane == 0) state.begin = next;
    sync_computing();
  }
}

/// RoPE of `heads` queries of a KV head from `first_head` on, into shared memory, and where
/// `new_key` is given, of its key, which with the value goes to the cache too if `writes`.
template <CacheType kType, int kHeadDim>
__device__ __forceinline__ void rotate_all(const Thread& me, const AttentionArguments& a,
                                           bool handed, int first_head, int heads, int kv_head,
                                           int position, size_t cache, bool writes, float* q,
                                           typename Element<kType>::Type* new_key,
                                           typename Element<kType>::Type* new_value) {
  using E = Element<kType>;
  const int n = (heads + (new_key == nullptr ? 0 : 2)) * kHeadDim;
  const int half = a.rotary_dims / 2;
#pragma unroll 1
  for (int i = me.index; i < n; i += kThreads) {
    const int head = i / kHeadDim, dim = i % kHeadDim;
    const float* from =
        head < heads ? a.qkv + (first_head + head) * kHeadDim
                     : a.qkv + (head == heads ? a.k_offset : a.v_offset) + kv_head * kHeadDim;
    const bool rotates = head <= heads && dim < a.rotary_dims, low = dim < half;
    const int pair = low ? dim : dim - half;
    const float* partner = rotates ? from + (low ? dim + half : pair) : from + dim;
    float y, other;
    do {
      y = load_handed(from + dim);
      other = load_handed(partner);
    } while (handed && (is_missing(y) || is_missing(other)));
    if (rotates) {
      const size_t at = static_cast<size_t>(position) * half + pair;
      const float product = __fmul_rn(y, __ldg(a.rope_cos + at));
      const float crossed = __fmul_rn(other, __ldg(a.rope_sin + at));
      y = low ? __fsub_rn(product, crossed) : __fadd_rn(product, crossed);
    }
    const int to = lane_major(dim, kHeadDim);
    if (head < heads) {
      q[head * kHeadDim + to] = y;
      continue;
    }
    const auto rounded = E::round(y);
    if (is_not_finite(E::widen(rounded))) report_fault(a.fault, a.fault_op, dim, E::widen(rounded));
    const size_t row = cache + static_cast<size_t>(position) * kHeadDim;
    if (head == heads) {
      new_key[to] = rounded;
      if (writes) static_cast<typename E::Type*>(a.keys)[row + to] = rounded;
    } else {
      new_value[dim] = rounded;
      if (writes) static_cast<typename E::Type*>(a.values)[row + dim] = rounded;
    }
  }
}

/// Segments of `heads` query heads in ascending order, from what all thread blocks left in
/// `partial`, the first head's.
template <int kHeadDim>
__device__ __forceinline__ void merge_all(const Thread& me, const float* partial, int max_segments,
                                          int n_segments, int heads, float* out, float* maxima,
                                          float4* coefficients) {
  const int warp = me.warp, lane = me.lane;
  constexpr int kStride = kHeadDim + 2;
#pragma unroll 1
  for (int first = 0; first < heads * kHeadDim; first += kThreads) {
    const int i = first + me.index;
    const bool mine = i < heads * kHeadDim;
    const int own_head = mine ? i / kHeadDim : 0;
    const float* from = partial + static_cast<size_t>(own_head) * max_segments * kStride + 2 +
                        (mine ? i % kHeadDim : 0);
    float l = 0.0f, o = 0.0f;
#pragma unroll 1
    for (int base = 0; base < n_segments; base += kMergeSegments) {
      // Running maxima first, so that all factors a = exp(m − m'), b = exp(m_seg − m') come at
      // once.
#pragma unroll 1
      for (int head = warp; head < heads; head += kWarps) {
        const int s = base + lane;
        float largest = base == 0 ? __uint_as_float(0xff800000u) : maxima[head];
        const float4 factors =
            merge_factors(partial + (static_cast<size_t>(head) * max_segments + s) * kStride,
                          s < n_segments, s == 0, lane, largest);
        if (s < n_segments) coefficients[head * kMergeSegments + lane] = factors;
        __syncwarp();
        if (lane == 0) maxima[head] = largest;
      }
      constexpr int kBatch = 16;
      const int end = min(base + kMergeSegments, n_segments);
      float loaded[kBatch];
      const auto load = [&](int s) {
#pragma unroll
        for (int k = 0; k < kBatch; ++k)
          loaded[k] = s + k < end ? __ldcg(from + static_cast<size_t>(s + k) * kStride) : 0.0f;
      };
      load(base);
      sync_computing();
#pragma unroll 1
      for (int s = base; s < end; s += kBatch) {
        if (s != base) load(s);
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          if (s + k >= end) break;
          const float4 factor = coefficients[own_head * kMergeSegments + s + k - base];
          if (s + k == 0) {
            l = factor.z;
            o = loaded[k];
            continue;
          }
          l = __fadd_rn(__fmul_rn(l, factor.x), __fmul_rn(factor.z, factor.y));
          o = __fadd_rn(__fmul_rn(o, factor.x), __fmul_rn(loaded[k], factor.y));
        }
      }
      sync_computing();
    }
    if (mine) out[i] = __fdiv_rn(o, l);
  }
}

/// One thread block's part of attention: the segments split, split + n_splits, … of `heads` query
/// heads of a KV head, part `part` of them. Loads of earlier rows start before the stage's input is
/// there. The last thread block for these heads writes their results.
template <CacheType kType, int kHeadDim>
__device__ __forceinline__ void attend(const Thread& me, int record, bool first_task, int kv_head,
                                       int split, int part, int heads) {
  using T = typename Element<kType>::Type;
  constexpr int kKeys = kSegmentKeys / kWarps, kPerLane = kHeadDim / 32;
  const StepStage& own = stage_at(record);
  const AttentionArguments& a = own.attention;
  const int position = constants().position, sequence = constants().sequence;
  const int warp = me.warp, lane = me.lane;
  const int per_kv = a.n_heads / a.n_kv_heads, first_head = kv_head * per_kv + part * heads;
  const AttentionLayout at = attention_layout(heads, kHeadDim, static_cast<int>(sizeof(T)));
  const Queries queries = {reinterpret_cast<float*>(shared_at(kWorkAt + at.q)),
                           reinterpret_cast<float*>(shared_at(kWorkAt + at.scores)),
                           reinterpret_cast<float*>(shared_at(kWorkAt + at.maxima)),
                           reinterpret_cast<float*>(shared_at(kWorkAt + at.sums)), heads};
  T* new_key = reinterpret_cast<T*>(shared_at(kWorkAt + at.new_key));
  T* new_value = reinterpret_cast<T*>(shared_at(kWorkAt + at.new_value));
  T* values = reinterpret_cast<T*>(shared_at(kWorkAt + at.values));
  const int first_position = a.window > 0 ? max(0, position - a.window + 1) : 0;
  const int first_segment = first_position / kSegmentKeys, last_segment = position / kSegmentKeys;
  const int n_segments = last_segment - first_segment + 1;
  const size_t cache = (static_cast<size_t>(sequence) * a.n_kv_heads + kv_head) *
                       static_cast<size_t>(a.capacity) * kHeadDim;
  const auto seen_of = [&](int s) {
    const int base = (first_segment + s) * kSegmentKeys;
    return Visible{max(0, first_position - base), min(kSegmentKeys - 1, position - base)};
  };
  // The row of this position comes from new_key and new_value: it may not be in the cache yet.
  KeyRows<kType, kPerLane, kKeys> rows;
  const auto n_rows_of = [&](int s) { return seen_of(s).last + (s + 1 == n_segments ? 0 : 1); };
  const auto segment_at = [&](const void* all, int s) {
    return static_cast<const T*>(all) + cache +
           static_cast<size_t>(first_segment + s) * kSegmentKeys * kHeadDim;
  };
  const auto load_keys = [&](int s) {
    rows.load(segment_at(a.keys, s), warp * kKeys, n_rows_of(s) - 1, kHeadDim, lane);
  };
  const auto load_values = [&](int s) {
    stage<kThreads>(segment_at(a.values, s), values, n_rows_of(s) * kHeadDim, me.index);
  };
  load_keys(split);
  load_values(split);
  const bool owns_newest = split == (n_segments - 1) % a.splits;
  rotate_all<kType, kHeadDim>(me, a, own.input_handed != 0, first_head, heads, kv_head, position,
                              cache, part == 0, queries.q, owns_newest ? new_key : nullptr,
                              new_value);
  if (first_task) mark(me, own.index, &StageTimes::arrived);
  sync_computing();
  if (first_task) mark(me, own.index, &StageTimes::prepared);

  float* partial = a.partial + static_cast<size_t>(first_head) *
                                   static_cast<size_t>(a.max_segments) * (kHeadDim + 2);
  float* out = queries.q;  // whose place is free by then
#pragma unroll 1
  for (int s = split; s < n_segments; s += a.splits) {
    const Visible seen = seen_of(s);
    const bool newest = s + 1 == n_segments, more = s + a.splits < n_segments;
    decode_scores<kType, kPerLane, kKeys>(a, queries, rows, new_key, newest ? seen.last : -1,
                                          kHeadDim, seen, me.index);
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (more) load_keys(s + a.splits);
    sync_computing();
    if (newest && me.index < kHeadDim)
      values[seen.last * kHeadDim + me.index] = new_value[me.index];
    segment_softmax<kWarps>(queries, me.index, [&](int) { return seen; });
    sync_computing();
    const auto outputs = [&]<int kDims>() {
#pragma unroll 1
      for (int i = me.index; i < heads * kHeadDim / kDims; i += kThreads) {
        const int head = i / (kHeadDim / kDims), dim = i % (kHeadDim / kDims) * kDims;
        float o[kDims];
        segment_output<kType, kDims>(queries.scores + head * kSegmentKeys, values + dim, kHeadDim,
                                     seen, o);
        float* to = partial + (static_cast<size_t>(head) * a.max_segments + s) * (kHeadDim + 2);
        if (n_segments > 1 && dim == 0)
          *reinterpret_cast<float2*>(to) = make_float2(queries.maxima[head], queries.sums[head]);
#pragma unroll
        for (int d = 0; d < kDims; ++d) {
          if (n_segments > 1)
            to[2 + dim + d] = o[d];
          else
            out[head * kHeadDim + dim + d] = __fdiv_rn(o[d], queries.sums[head]);
        }
      }
    };
    if (heads * kHeadDim <= kThreads / 2)
      outputs.template operator()<1>();
    else
      outputs.template operator()<2>();
    sync_computing();
    if (more) load_values(s + a.splits);
  }
  if (first_task) mark(me, own.index, &StageTimes::computed);
  if (n_segments > 1) {
    // The last thread block of these heads merges the segments.
    auto* is_last = reinterpret_cast<int32_t*>(shared_at(kWorkAt + at.flag));
    if (me.index == 0) {
      int32_t* counter = a.counters + first_head;
      int32_t before;
      // Zero again after the last.
      const int last = min(a.splits, n_segments) - 1;
      asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(counter), "r"(last)
                   : "memory");
      *is_last = before == last;
    }
    sync_computing();
    if (*is_last == 0) return;
    merge_all<kHeadDim>(me, partial, a.max_segments, n_segments, heads, out, queries.maxima,
                        reinterpret_cast<float4*>(shared_at(kWorkAt + at.coefficients)));
    sync_computing();
  }
  const int first_column = first_head * kHeadDim;
  if (own.quantized_output == nullptr) {
    for (int i = me.index; i < heads * kHeadDim; i += kThreads)
      hand_on(a.out + first_column + i, out[i]);
  } else {
    const HandedGroups target{own.quantized_output};
#pragma unroll 1
    for (int group = warp; group < heads * kHeadDim / kGroupColumns; group += kWarps) {
      const float4 v = reinterpret_cast<const float4*>(out)[group * 32 + lane];
      const float y[4] = {v.x, v.y, v.z, v.w};
      quantize_group(y, first_column / kGroupColumns + group, lane, target, own.output_fault_op,
                     a.fault);
    }
  }
}

/// The query heads of a KV head are dealt to as many thread blocks as there are left, up to
/// most_parts: at short depth a thread block has few, and few scores to add up.
template <CacheType kType, int kHeadDim>
__device__ __forceinline__ void attention_stage() {
  const Thread me;
  const int record = current_record(me);
  const AttentionArguments& a = stage_at(record).attention;
  const int position = constants().position;
  const int first_position = a.window > 0 ? max(0, position - a.window + 1) : 0;
  const int n_segments = position / kSegmentKeys - first_position / kSegmentKeys + 1;
  const int n_splits = min(a.splits, n_segments), grid = constants().grid;
  int parts = stage_at(record).most_parts;
  while (parts > 1 && a.n_kv_heads * n_splits * parts > grid)
    parts = parts % 2 == 0 ? parts / 2 : 1;
  const int n_tasks = a.n_kv_heads * n_splits * parts;
  const int heads = a.n_heads / a.n_kv_heads / parts;
#pragma unroll 1
  for (int task = static_cast<int>(blockIdx.x); task < n_tasks; task += grid) {
    const bool first_task = task < grid;
    if (!first_task) sync_computing();
    const int row = task / a.n_kv_heads;
    attend<kType, kHeadDim>(me, record, first_task, task % a.n_kv_heads, row / parts, row % parts,
                            heads);
  }
}

/// Where the record of a stage lies.
__device__ __forceinline__ int record_of(int stage) {
  return kRecordsAt + stage % 2 * static_cast<int>(sizeof(StageRecord));
}

/// Starts the copy of a stage's record to shared memory; by one warp.
__device__ __forceinline__ void fetch_record(int lane, int stage) {
  const StepArguments& a = constants().arguments;
  if (stage >= a.n_stages) return;
  const int to = record_of(stage);
  const auto* from = reinterpret_cast<const uint8_t*>(a.stages + stage);
  for (int i = lane * 16; i < static_cast<int>(sizeof(StepStage)); i += 512)
    copy_async(to + i, from + i);
  if (lane == 31)
    copy_async(to + static_cast<int>(sizeof(StepStage)),
               a.shares + static_cast<size_t>(stage) * constants().grid + blockIdx.x);
}

/// Starts the copy of the next stage's record.
__device__ __forceinline__ void begin_stage() {
  const Thread me;
  const int index = stage_at(current_record(me)).index;
  if (me.warp == 0) fetch_record(me.lane, index + 1);
  mark(me, index, &StageTimes::begin);
}

/// After a stage. Whether there is another.
__device__ __forceinline__ bool end_stage() {
  const Thread me;
  const int record = current_record(me);
  const int index = stage_at(record).index, n_stages = constants().arguments.n_stages;
  if (me.warp == 0) asm volatile("cp.async.wait_all;" ::: "memory");
  sync_computing();
  mark(me, index, &StageTimes::end);
  __syncwarp();
  if (me.lane == 0) state_of(me.warp).record = record_of(index + 1);
  __syncwarp();
  return index + 1 < n_stages;
}

#endif

template <CacheType kType, int kHeadDim>
__global__ __launch_bounds__(kThreads,
                             1) void step_kernel(const __grid_constant__ StepArguments a) {
#if __CUDA_ARCH__ >= 900
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * kEntries; i += kThreads)
    init_barrier(shared_address(shared_at(kFullAt + i * 8)));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (threadIdx.x < kZeroBytes / 4)
    reinterpret_cast<uint32_t*>(shared_at(kZerosAt))[threadIdx.x] = 0;
  const int rings = rings_at(a.work_bytes), streams = rings + kWarps * a.ring_bytes;
  constexpr int kPieces = static_cast<int>(sizeof(WeightStream)) / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kPieces * a.n_streams; i += kThreads)
    copy_async(streams + i * 16,
               reinterpret_cast<const uint8_t*>(
                   a.streams + static_cast<size_t>(i / kPieces) * gridDim.x + blockIdx.x) +
                   i % kPieces * 16);
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane < kWarps) {
      WarpState state{};
      state.room = static_cast<uint32_t>(a.ring_bytes);
      state.record = record_of(0);
      state_of(lane) = state;
    }
    if (lane == 0)
      *reinterpret_cast<StepConstants*>(shared_at(kConstantsAt)) = {
          a,
          __ldcg(a.positions),
          __ldcg(a.sequences),
          rings,
          streams,
          static_cast<int32_t>(gridDim.x)};
    __syncwarp();
    fetch_record(lane, 0);
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  fill_ring();
#pragma unroll 1
  do {
    begin_stage();
    const int record = current_record(Thread());
    if (stage_at(record).is_attention != 0)
      attention_stage<kType, kHeadDim>();
    else if (share_at(record).begin < share_at(record).end)
      linear_stage();
  } while (end_stage());
#endif
}

}  // namespace step

template <CacheType kType, int kHeadDim>
void launch_step_as(const StepArguments& arguments, int grid, cudaStream_t stream) {
  const auto* kernel = reinterpret_cast<const void*>(step::step_kernel<kType, kHeadDim>);
  const int shared_bytes = step::rings_at(arguments.work_bytes) +
                           step::kWarps * arguments.ring_bytes +
                           arguments.n_streams * static_cast<int>(sizeof(WeightStream));
  ASSAY_CUDA(configure_shared(kernel, shared_bytes));
  cudaLaunchAttribute attribute{};
  attribute.id =
      cudaLaunchAttributeCooperative;  // all thread blocks run at once, or the launch fails
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(step::kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  ASSAY_CUDA(cudaLaunchKernelEx(&config, step::step_kernel<kType, kHeadDim>, arguments));
}

}  // namespace assay::cuda
