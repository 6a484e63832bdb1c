#include <algorithm>

#include "runtime/device/cuda_support.h"
#include "runtime/ops/attention_cuda.cuh"
#include "runtime/ops/linear_vector_cuda.cuh"
#include "runtime/ops/step_cuda.h"

namespace assay::cuda {
namespace {

constexpr int kWarps = 16;  // that compute; one more streams weights
constexpr int kThreads = kWarps * 32;
constexpr int kEntries = 8;  // pieces of weights on their way to one warp, at most
[[maybe_unused]] constexpr int kHeldGroups = 4;  // of the input that a warp keeps in registers
constexpr int kSumBytes = 8 * 1024;              // segment sums, about
constexpr int kMergeSegments = 32;               // attention segments merged at a time

__host__ __device__ inline int align_up(int bytes, int to) { return (bytes + to - 1) / to * to; }

/// What a thread block keeps of a stage: its record and the block's share.
struct StageRecord {
  StepStage stage;
  BlockShare share;
};

/// What stays the same for all stages.
struct alignas(16) StepConstants {
  int32_t position, sequence;
  int32_t rings, ring_bytes;  // where the warps' rings begin, and their size
};

// Shared memory: barriers, how far each warp is in its stream, stage records, then what a stage
// works with, then the warps' rings.
constexpr int kFullAt = 0;
constexpr int kEmptyAt = kFullAt + kWarps * kEntries * 8;
constexpr int kUsedAt = kEmptyAt + kWarps * kEntries * 8;
constexpr int kStatesAt = kUsedAt + kWarps * kEntries * 4;
constexpr int kConstantsAt = kStatesAt + kWarps * 8;
constexpr int kRecordsAt = kConstantsAt + static_cast<int>(sizeof(StepConstants));
constexpr int kWorkAt = (kRecordsAt + 2 * static_cast<int>(sizeof(StageRecord)) + 127) / 128 * 128;

__host__ __device__ inline int rings_at(int work_bytes) {
  return kWorkAt + align_up(work_bytes, 128);
}

struct LinearLayout {
  InputLayout inputs;  // at 0, as in a quantized vector in memory
  int partial, sums, outputs, bytes;
};

__host__ __device__ inline LinearLayout linear_layout(const DeviceMatrix& m, int chunk_tiles) {
  LinearLayout at{};
  int offset = 0;
  at.inputs = input_layout(offset, m.groups, 1);
  at.partial = offset;
  at.sums = align_up(offset + (m.columns + 255) / 256 * 4, 16);
  at.outputs = at.sums + chunk_tiles * m.segments * kTileRows * 4;
  at.bytes = at.outputs + chunk_tiles * kTileRows / 2 * 4;
  return at;
}

struct AttentionLayout {
  int q, scores, maxima, sums, new_key, new_value, coefficients, flag, values, bytes;
};

__host__ __device__ inline AttentionLayout attention_layout(int per_kv, int head_dim,
                                                            int element_bytes) {
  AttentionLayout at{};
  at.scores = align_up(per_kv * head_dim * 4, 16);
  at.maxima = at.scores + per_kv * kSegmentKeys * 4;
  at.sums = at.maxima + align_up(per_kv * 4, 16);
  at.new_key = at.sums + align_up(per_kv * 4, 16);
  at.new_value = at.new_key + align_up(head_dim * element_bytes, 16);
  at.coefficients = at.new_value + align_up(head_dim * element_bytes, 16);
  at.flag = at.coefficients + per_kv * kMergeSegments * 16;
  at.values = at.flag + 16;
  at.bytes = at.values + kSegmentKeys * head_dim * element_bytes;
  return at;
}

#if __CUDA_ARCH__ >= 900

// Shared memory is addressed from its base everywhere, so that the compiler knows what it is; and
// what runs often uses no local memory, which would not stay in the little L1 that is left.
__device__ __forceinline__ uint8_t* shared_at(int offset) {
  extern __shared__ __align__(128) uint8_t step_shared[];
  return step_shared + offset;
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

__device__ __forceinline__ bool test_barrier(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// Where pieces of a stream lie in a warp's ring: one after the other, at the start again where one
/// would pass the end. The producer and the warp go through the same sequence. Of `least` bytes or
/// more, so that no more than kEntries fit.
struct RingPlace {
  uint32_t offset = 0;
  uint32_t used = 0;  // bytes taken since the start, wrapping

  __device__ uint32_t take(uint32_t bytes, uint32_t ring_bytes) {
    const uint32_t least = (ring_bytes / kEntries + 127) / 128 * 128;
    bytes = max((bytes + 127) / 128 * 128, least);
    if (offset + bytes > ring_bytes) {
      used += ring_bytes - offset;
      offset = 0;
    }
    const uint32_t at = offset;
    offset += bytes;
    used += bytes;
    return at;
  }
};

/// Lane w of the streaming warp feeds warp w: it asks for the next piece as soon as the ring of
/// that warp has room, whatever stage it belongs to. No lane waits for itself: a round does what
/// can be done for each warp, or else one that is ahead would hold up another.
__device__ __noinline__ void stream_weights(const StepArguments& a, int lane) {
  const int warp = lane % kWarps;
  const uint32_t full = shared_address(shared_at(kFullAt)) + warp * kEntries * 8;
  const uint32_t empty = shared_address(shared_at(kEmptyAt)) + warp * kEntries * 8;
  auto* used_at = reinterpret_cast<uint32_t*>(shared_at(kUsedAt)) + warp * kEntries;
  const uint32_t ring = shared_address(shared_at(rings_at(a.work_bytes))) + warp * a.ring_bytes;
  const auto ring_bytes = static_cast<uint32_t>(a.ring_bytes);
  uint64_t once;  // weights are read once per step: they leave the cache first
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  RingPlace place;
  uint32_t entry = 0, tail = 0, freed = 0, to = 0;
  WeightStream stream{}, next = a.streams[blockIdx.x];
  int i = -1, unit = 0, segment = 0, part = 0;
  const std::byte* source = nullptr;
  bool working = lane < kWarps, placed = false;
  while (__any_sync(0xffffffffu, working)) {
    bool progress = false;
    if (working && unit >= stream.n_units) {
      progress = true;
      if (++i == a.n_streams) {
        working = false;
      } else {
        stream = next;
        if (i + 1 < a.n_streams)
          next = a.streams[static_cast<size_t>(i + 1) * gridDim.x + blockIdx.x];
        unit = warp;
        segment = warp % stream.segments;
        source = stream.units + static_cast<size_t>(unit) * stream.unit_bytes;
      }
    } else if (working) {
      const int header = part == 0 ? stream.header_bytes : 0;
      if (!placed)
        to = ring +
             place.take(static_cast<uint32_t>(header + stream.part_groups * stream.group_bytes),
                        ring_bytes);
      placed = true;
      if (place.used - freed > ring_bytes || entry - tail == kEntries) {
        progress = test_barrier(empty + tail % kEntries * 8, tail / kEntries & 1);
        if (progress) freed = used_at[tail++ % kEntries];
      } else {
        progress = true;
        used_at[entry % kEntries] = place.used;
        const int groups = segment + 1 == stream.segments ? stream.last_groups : kSegmentGroups;
        const int inside = max(0, min(stream.part_groups, groups - part * stream.part_groups));
        const auto bytes = static_cast<uint32_t>(header + inside * stream.group_bytes);
        const uint32_t barrier = full + entry % kEntries * 8;
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                     : "memory");
        if (bytes != 0)
          asm volatile(
              "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
              "[%0], [%1], %2, [%3], %4;" ::"r"(to),
              "l"(source), "r"(bytes), "r"(barrier), "l"(once)
              : "memory");
        source += bytes;
        ++entry;
        placed = false;
        if (++part * stream.part_groups >= kSegmentGroups) {
          part = 0;
          unit += kWarps;
          segment = (segment + kWarps) % stream.segments;
          source = stream.units + static_cast<size_t>(unit) * stream.unit_bytes;
        }
      }
    }
    if (!__any_sync(0xffffffffu, progress)) __nanosleep(40);
  }
}

/// A warp's side of its ring.
class StreamRing {
 public:
  __device__ StreamRing(const DeviceMatrix& m, const StepConstants& constants, int warp, int lane)
      : memory_(constants.rings + warp * constants.ring_bytes),
        barriers_(shared_address(shared_at(kFullAt + warp * kEntries * 8))),
        ring_bytes_(static_cast<uint32_t>(constants.ring_bytes)),
        header_bytes_(static_cast<uint32_t>(m.header_bytes)),
        part_bytes_(static_cast<uint32_t>(part_groups(m.kind) * words_per_group(m.kind) * 16)),
        lane_(lane) {
    const uint2 state = reinterpret_cast<const uint2*>(shared_at(kStatesAt))[warp];
    entry_ = state.x;
    place_.offset = state.y;
  }
  /// Keeps how far the warp is in its stream.
  __device__ void save(int warp) const {
    if (lane_ == 0)
      reinterpret_cast<uint2*>(shared_at(kStatesAt))[warp] = make_uint2(entry_, place_.offset);
  }

  __device__ const uint4* wait() {
    const uint32_t header = first_ ? header_bytes_ : 0;
    at_ = memory_ + static_cast<int>(place_.take(header + part_bytes_, ring_bytes_));
    wait_barrier(barriers_ + entry_ % kEntries * 8, entry_ / kEntries & 1);
    return reinterpret_cast<const uint4*>(shared_at(at_ + static_cast<int>(header)));
  }
  __device__ const uint8_t* header() const { return shared_at(at_); }
  __device__ void release() {
    __syncwarp();
    if (lane_ == 0)
      asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barriers_ + (kEmptyAt - kFullAt) +
                                                               entry_ % kEntries * 8)
                   : "memory");
    ++entry_;
    first_ = false;
  }
  __device__ void next_unit() { first_ = true; }

 private:
  int memory_;
  uint32_t barriers_, ring_bytes_, header_bytes_, part_bytes_;
  int lane_;
  uint32_t entry_;
  RingPlace place_;
  int at_ = 0;
  bool first_ = true;
};

/// The same number, of which the compiler knows nothing: what follows from it is computed where it
/// is needed, and not kept around all stages.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

__device__ __forceinline__ const StepStage& stage_at(int record) {
  return reinterpret_cast<const StageRecord*>(shared_at(record))->stage;
}
__device__ __forceinline__ const BlockShare& share_at(int record) {
  return reinterpret_cast<const StageRecord*>(shared_at(record))->share;
}
__device__ __forceinline__ const StepConstants& constants() {
  return *reinterpret_cast<const StepConstants*>(shared_at(kConstantsAt));
}

// Between stages. Results of a thread block are visible to those that saw its arrival.

__device__ __forceinline__ void mark(const StepArguments& a, int stage,
                                     uint64_t StageTimes::*what) {
  if (a.times != nullptr && threadIdx.x == 0)
    a.times[static_cast<size_t>(stage) * gridDim.x + blockIdx.x].*what = now();
}

/// Waits until all that the stage reads is there; all warps.
__device__ __forceinline__ void wait_for_stage(const StepArguments& a, int stage, int awaited) {
  if (threadIdx.x == 0 && awaited > 0) {
    const int32_t* counter = a.arrivals + stage - 1;
    int32_t arrived;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
    } while (arrived < awaited);
  }
  sync_computing();
  mark(a, stage, &StageTimes::released);
}

/// After a sync_computing() that follows the results; one thread.
__device__ __forceinline__ void arrive(const StepArguments& a, int stage) {
  if (threadIdx.x == 0)
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(a.arrivals + stage) : "memory");
}

// What a stage consists of are functions of their own, each with all registers: inlined into one
// kernel they would spill.

__device__ __forceinline__ GroupTarget target_at(uint8_t* base, const InputLayout& at) {
  return {
      reinterpret_cast<uint32_t*>(base + at.planes), reinterpret_cast<int32_t*>(base + at.sums16),
      reinterpret_cast<int32_t*>(base + at.sums32), reinterpret_cast<int32_t*>(base + at.sums128),
      reinterpret_cast<float*>(base + at.scales)};
}

/// Input that an earlier stage quantized, to shared memory.
__device__ __noinline__ void fetch_input(int record) {
  const std::byte* from = stage_at(record).quantized_input;
  const DeviceMatrix& m = stage_at(record).linear.matrices[share_at(record).matrix];
  const int bytes = linear_layout(m, 1).partial;
  for (int i = static_cast<int>(threadIdx.x) * 16; i < bytes; i += kThreads * 16)
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared_at(kWorkAt + i))),
        "l"(from + i)
        : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/// Groups base + k·kWarps of a row.
__device__ __forceinline__ void load_groups(const float* row, int base, int groups, int columns,
                                            float (&to)[kHeldGroups][4]) {
#pragma unroll
  for (int k = 0; k < kHeldGroups; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[k][i] = 0.0f;
    if (base + k * kWarps < groups)
      load_columns(row, base + k * kWarps, lane_index(), columns, to[k]);
  }
}

/// Quantization of the input into shared memory, by every thread block.
__device__ __noinline__ void quantize_input(int record) {
  const GemvArguments& a = stage_at(record).linear;
  const int columns = a.matrices[share_at(record).matrix].columns,
            groups = a.matrices[share_at(record).matrix].groups;
  int offset = 0;
  const GroupTarget target = target_at(shared_at(kWorkAt), input_layout(offset, groups, 1));
  float y[kHeldGroups][4];
  load_groups(a.x, warp_index(), groups, columns, y);
#pragma unroll 1
  for (int base = warp_index(); base < groups; base += kHeldGroups * kWarps) {
    float next[kHeldGroups][4];
    load_groups(a.x, base + kHeldGroups * kWarps, groups, columns, next);
#pragma unroll
    for (int k = 0; k < kHeldGroups; ++k) {
      if (base + k * kWarps < groups)
        quantize_group(y[k], base + k * kWarps, lane_index(), target, a.fault_op, a.fault);
#pragma unroll
      for (int i = 0; i < 4; ++i) y[k][i] = next[k][i];
    }
  }
}

/// Norm and quantization of the input into shared memory, by every thread block.
__device__ __noinline__ void norm_input(int record) {
  const GemvArguments& a = stage_at(record).linear;
  const DeviceMatrix& m = a.matrices[share_at(record).matrix];
  const int columns = m.columns, groups = m.groups;
  int offset = 0;
  const GroupTarget target = target_at(shared_at(kWorkAt), input_layout(offset, groups, 1));
  const int warp = warp_index(), lane = lane_index();
  float y[kHeldGroups][4], weight[kHeldGroups][4];
  load_groups(a.x, warp, groups, columns, y);
  load_groups(a.norm_weight, warp, groups, columns, weight);
  float* partial = reinterpret_cast<float*>(shared_at(kWorkAt + linear_layout(m, 1).partial));
  const int n_blocks = (columns + 255) / 256;
#pragma unroll 1
  for (int block = warp; block < n_blocks; block += kWarps) {
    float v[8], acc = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int at = block * 256 + k * 32 + lane;
      v[k] = at < columns ? __ldcg(a.x + at) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < 8; ++k)
      if (block * 256 + k * 32 + lane < columns) acc = __fmaf_rn(v[k], v[k], acc);
    acc = fold_lanes(acc);
    if (lane == 0) partial[block] = acc;
  }
  sync_computing();
  float total = partial[0];
#pragma unroll 8
  for (int block = 1; block < n_blocks; ++block) total = __fadd_rn(total, partial[block]);
  const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fmul_rn(total, a.inverse_n), a.eps)));
#pragma unroll 1
  for (int base = warp; base < groups; base += kHeldGroups * kWarps) {
    if (base != warp) {
      load_groups(a.x, base, groups, columns, y);
      load_groups(a.norm_weight, base, groups, columns, weight);
    }
#pragma unroll
    for (int k = 0; k < kHeldGroups; ++k) {
      if (base + k * kWarps >= groups) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) y[k][i] = __fmul_rn(__fmul_rn(y[k][i], r), weight[k][i]);
      quantize_group(y[k], base + k * kWarps, lane, target, a.fault_op, a.fault);
    }
  }
}

/// The warp's units among those of tiles begin … begin + n_tiles; their segment sums to shared
/// memory.
template <MatrixKind kKind, int kPieces>
__device__ __noinline__ void run_units(int record, int begin, int n_tiles) {
  const StepStage& stage = stage_at(record);
  const DeviceMatrix m = stage.linear.matrices[share_at(record).matrix];
  const LinearLayout at = linear_layout(m, stage.chunk_tiles);
  const int warp = warp_index(), lane = lane_index();
  const int first = (begin - share_at(record).begin) * m.segments,
            end = first + n_tiles * m.segments;
  StreamRing ring(m, constants(), warp, lane);
  const Inputs inputs(shared_at(kWorkAt), at.inputs, m.groups, 0, 0, lane);
  float* sums = reinterpret_cast<float*>(shared_at(kWorkAt + at.sums));
  int unit = first + (warp - first % kWarps + kWarps) % kWarps, segment = unit % m.segments;
  const int stride = kWarps % m.segments;
  uint32_t worst = 0;
#pragma unroll 1
  for (; unit < end; unit += kWarps) {
    float acc[2] = {0.0f, 0.0f};
    single_unit<kKind, kPieces>(m, ring, inputs, segment, lane, acc, worst);
    if (lane % 4 == 0) {
      float* to = sums + (unit - first) * kTileRows;
      to[lane / 4] = acc[0];
      to[lane / 4 + 8] = acc[1];
    }
    segment += stride;
    if (segment >= m.segments) segment -= m.segments;
  }
  if (worst >= 0x7f800000u)
    report_fault(stage.linear.fault, stage.linear.fault_op, 0, __uint_as_float(worst));
  ring.save(warp);
}

/// Results of the tiles begin … begin + n_tiles from their segment sums.
__device__ __noinline__ void finish_tiles(int record, int begin, int n_tiles, float own_before) {
  const StepStage& stage = stage_at(record);
  const GemvArguments& a = stage.linear;
  const int index = share_at(record).matrix;
  const bool first_chunk = begin == share_at(record).begin;
  const DeviceMatrix& m = a.matrices[index];
  const LinearLayout at = linear_layout(m, stage.chunk_tiles);
  const int segments = m.segments, rows = m.rows;
  const float* sums = reinterpret_cast<const float*>(shared_at(kWorkAt + at.sums));
  // Segment sums in ascending order; the total starts as the first.
  const auto total = [&](int tile, int row) {
    const float* from = sums + tile * segments * kTileRows + row;
    float sum = from[0];
#pragma unroll 4
    for (int s = 1; s < segments; ++s) sum = __fadd_rn(sum, from[s * kTileRows]);
    return sum;
  };
  float* out = a.out + a.out_offset[index];
  if (a.epilogue != Epilogue::kSwiGlu) {
    const float* bias = a.bias[index];
    const bool adds = a.epilogue == Epilogue::kAddTo;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < n_tiles * kTileRows; i += kThreads) {
      const int row = begin * kTileRows + i;
      if (row >= rows) continue;
      float before = own_before;
      if (adds && !(first_chunk && i < kThreads)) before = __ldcg(out + row);
      float y = total(i / kTileRows, i % kTileRows);
      if (bias != nullptr) y = __fadd_rn(y, __ldg(bias + row));
      out[row] = adds ? __fadd_rn(before, y) : y;
    }
    return;
  }
  float* outputs = reinterpret_cast<float*>(shared_at(kWorkAt + at.outputs));
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < n_tiles * 8; i += kThreads) {
    const float y = __fmul_rn(silu_canonical(total(i / 8, i % 8)), total(i / 8, i % 8 + 8));
    const int to = begin * 8 + i;
    if (stage.quantized_output != nullptr)
      outputs[i] = y;
    else if (to < rows / 2)
      out[to] = y;
  }
  if (stage.quantized_output == nullptr) return;
  sync_computing();
  int offset = 0;
  const GroupTarget target = target_at(reinterpret_cast<uint8_t*>(stage.quantized_output),
                                       input_layout(offset, rows / 2 / kGroupColumns, 1));
#pragma unroll 1
  for (int group = warp_index(); group < n_tiles * 8 / kGroupColumns; group += kWarps) {
    const float4 v = reinterpret_cast<const float4*>(outputs)[group * 32 + lane_index()];
    const float y[4] = {v.x, v.y, v.z, v.w};
    quantize_group(y, begin * 8 / kGroupColumns + group, lane_index(), target,
                   stage.output_fault_op, a.fault);
  }
}

__device__ __forceinline__ void linear_stage(const StepArguments& step, int index, int record) {
  const StepStage& stage = stage_at(record);
  {
    const float* weight = stage.linear.norm_weight;
    const int columns = stage.linear.matrices[0].columns;
    if (weight != nullptr)
      for (int i = static_cast<int>(threadIdx.x) * 32; i < columns; i += kThreads * 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(weight + i));
  }
  wait_for_stage(step, index, stage.awaited);
  float before = 0.0f;  // what the thread's result is added to, on its way meanwhile
  if (stage.linear.epilogue == Epilogue::kAddTo) {
    const int row = share_at(record).begin * kTileRows + static_cast<int>(threadIdx.x);
    const int matrix = share_at(record).matrix;
    if (row < stage.linear.matrices[matrix].rows)
      before = __ldcg(stage.linear.out + stage.linear.out_offset[matrix] + row);
  }
  if (stage.quantized_input != nullptr)
    fetch_input(record);
  else if (stage.linear.norm_weight != nullptr)
    norm_input(record);
  else
    quantize_input(record);
  sync_computing();
  mark(step, index, &StageTimes::prepared);
#pragma unroll 1
  for (int begin = share_at(record).begin; begin < share_at(record).end;
       begin += stage.chunk_tiles) {
    const int n_tiles = min(stage.chunk_tiles, share_at(record).end - begin);
    dispatch_kind(stage.linear.matrices[share_at(record).matrix],
                  [&]<MatrixKind kKind, int kPieces>() {
                    run_units<kKind, kPieces>(record, begin, n_tiles);
                  });
    sync_computing();
    mark(step, index, &StageTimes::computed);
    finish_tiles(record, begin, min(stage.chunk_tiles, share_at(record).end - begin), before);
    sync_computing();
  }
  arrive(step, index);
}

/// RoPE of all queries of a KV head, into shared memory, and where `new_key` is given, of its key,
/// which with the value goes to the cache too.
template <CacheType kType, int kHeadDim>
__device__ __forceinline__ void rotate_all(const AttentionArguments& a, int kv_head, int position,
                                           size_t cache, float* q,
                                           typename Element<kType>::Type* new_key,
                                           typename Element<kType>::Type* new_value) {
  using E = Element<kType>;
  const int per_kv = a.n_heads / a.n_kv_heads, n_q = per_kv * kHeadDim;
  const int n = new_key == nullptr ? n_q : n_q + 2 * kHeadDim;
  const int half = a.rotary_dims / 2;
  constexpr int kAtOnce = 2;
#pragma unroll 1
  for (int base = static_cast<int>(threadIdx.x); base < n; base += kAtOnce * kThreads) {
    float x[kAtOnce], other[kAtOnce], c[kAtOnce], s[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = base + k * kThreads;
      x[k] = other[k] = c[k] = s[k] = 0.0f;
      if (i >= n) continue;
      const int head = i / kHeadDim, dim = i % kHeadDim;
      const float* from =
          head < per_kv ? a.qkv + (kv_head * per_kv + head) * kHeadDim
                        : a.qkv + (head == per_kv ? a.k_offset : a.v_offset) + kv_head * kHeadDim;
      x[k] = __ldcg(from + dim);
      if (head > per_kv || dim >= a.rotary_dims) continue;
      const int pair = dim < half ? dim : dim - half;
      other[k] = __ldcg(from + (dim < half ? dim + half : pair));
      const size_t at = static_cast<size_t>(position) * half + pair;
      c[k] = __ldg(a.rope_cos + at);
      s[k] = __ldg(a.rope_sin + at);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = base + k * kThreads;
      if (i >= n) continue;
      const int head = i / kHeadDim, dim = i % kHeadDim;
      float y = x[k];
      if (head <= per_kv && dim < a.rotary_dims)
        y = dim < half ? __fsub_rn(__fmul_rn(x[k], c[k]), __fmul_rn(other[k], s[k]))
                       : __fadd_rn(__fmul_rn(x[k], c[k]), __fmul_rn(other[k], s[k]));
      const int to = lane_major(dim, kHeadDim);
      if (head < per_kv) {
        q[head * kHeadDim + to] = y;
        continue;
      }
      const auto rounded = E::round(y);
      if (is_not_finite(E::widen(rounded)))
        report_fault(a.fault, a.fault_op, dim, E::widen(rounded));
      const size_t row = cache + static_cast<size_t>(position) * kHeadDim;
      if (head == per_kv) {
        new_key[to] = rounded;
        static_cast<typename E::Type*>(a.keys)[row + to] = rounded;
      } else {
        new_value[dim] = rounded;
        static_cast<typename E::Type*>(a.values)[row + dim] = rounded;
      }
    }
  }
}

/// Segments of one KV head in ascending order, from what all thread blocks left in `partial`.
template <int kHeadDim>
__device__ __forceinline__ void merge_all(const AttentionArguments& a, const float* partial,
                                          int n_segments, int per_kv, float* out, float* maxima,
                                          float4* coefficients) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int stride = kHeadDim + 2;
#pragma unroll 1
  for (int first = 0; first < per_kv * kHeadDim; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool mine = i < per_kv * kHeadDim;
    const int own_head = mine ? i / kHeadDim : 0;
    const float* from = partial + static_cast<size_t>(own_head) * a.max_segments * stride + 2 +
                        (mine ? i % kHeadDim : 0);
    float l = 0.0f, o = 0.0f;
#pragma unroll 1
    for (int base = 0; base < n_segments; base += kMergeSegments) {
      // Running maxima first, so that all factors a = exp(m − m'), b = exp(m_seg − m') come at
      // once.
#pragma unroll 1
      for (int head = warp; head < per_kv; head += kWarps) {
        const int s = base + lane;
        const float* row = partial + (static_cast<size_t>(head) * a.max_segments + s) * stride;
        const float m = s < n_segments ? __ldcg(row) : __uint_as_float(0xff800000u);
        const float l_segment = s < n_segments ? __ldcg(row + 1) : 0.0f;
        const float before = base == 0 ? __uint_as_float(0xff800000u) : maxima[head];
        float running = m;
#pragma unroll
        for (int step = 1; step < 32; step <<= 1) {
          const float other = __shfl_up_sync(0xffffffffu, running, step);
          if (lane >= step) running = fmaxf(running, other);
        }
        running = fmaxf(running, before);
        float previous = __shfl_up_sync(0xffffffffu, running, 1);
        if (lane == 0) previous = before;
        if (s < n_segments)
          coefficients[head * kMergeSegments + lane] =
              s == 0 ? make_float4(0.0f, 0.0f, l_segment, 0.0f)
                     : make_float4(exp_canonical(__fsub_rn(previous, running)),
                                   exp_canonical(__fsub_rn(m, running)), l_segment, 0.0f);
        __syncwarp();
        if (lane == 31) maxima[head] = running;
      }
      constexpr int kBatch = 16;
      const int end = min(base + kMergeSegments, n_segments);
      float loaded[kBatch];
      const auto load = [&](int s) {
#pragma unroll
        for (int k = 0; k < kBatch; ++k)
          loaded[k] = s + k < end ? __ldcg(from + static_cast<size_t>(s + k) * stride) : 0.0f;
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

/// The segments split, split + n_splits, … of a KV head. Loads of earlier rows start before the
/// stage's input is there.
template <CacheType kType, int kPerLane>
__device__ __noinline__ void attend(const StepArguments& step, int index, int record,
                                    bool first_task, int kv_head, int split) {
  using T = typename Element<kType>::Type;
  constexpr int kKeys = kSegmentKeys / kWarps, kHeadDim = 32 * kPerLane;
  const StepStage& own = stage_at(record);
  const AttentionArguments& a = own.attention;
  const int position = constants().position, sequence = constants().sequence;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int per_kv = a.n_heads / a.n_kv_heads, first_head = kv_head * per_kv;
  const AttentionLayout at = attention_layout(per_kv, kHeadDim, static_cast<int>(sizeof(T)));
  const Queries queries = {reinterpret_cast<float*>(shared_at(kWorkAt + at.q)),
                           reinterpret_cast<float*>(shared_at(kWorkAt + at.scores)),
                           reinterpret_cast<float*>(shared_at(kWorkAt + at.maxima)),
                           reinterpret_cast<float*>(shared_at(kWorkAt + at.sums)), per_kv};
  T* new_key = reinterpret_cast<T*>(shared_at(kWorkAt + at.new_key));
  T* new_value = reinterpret_cast<T*>(shared_at(kWorkAt + at.new_value));
  T* values = reinterpret_cast<T*>(shared_at(kWorkAt + at.values));
  auto* is_last = reinterpret_cast<int32_t*>(shared_at(kWorkAt + at.flag));
  const int first_position = a.window > 0 ? max(0, position - a.window + 1) : 0;
  const int first_segment = first_position / kSegmentKeys, last_segment = position / kSegmentKeys;
  const int n_segments = last_segment - first_segment + 1, n_active = min(a.splits, n_segments);
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
    stage<kThreads>(segment_at(a.values, s), values, n_rows_of(s) * kHeadDim);
  };
  load_keys(split);
  load_values(split);
  if (first_task) wait_for_stage(step, index, own.awaited);
  const bool owns_newest = split == (n_segments - 1) % a.splits;
  rotate_all<kType, kHeadDim>(a, kv_head, position, cache, queries.q,
                              owns_newest ? new_key : nullptr, new_value);
  sync_computing();
  if (first_task) mark(step, index, &StageTimes::prepared);

  float* partial = a.partial + static_cast<size_t>(first_head) *
                                   static_cast<size_t>(a.max_segments) * (kHeadDim + 2);
  float* out = queries.q;  // whose place is free by then
#pragma unroll 1
  for (int s = split; s < n_segments; s += a.splits) {
    const Visible seen = seen_of(s);
    const bool newest = s + 1 == n_segments, more = s + a.splits < n_segments;
    decode_scores<kType, kPerLane, kKeys>(a, queries, rows, new_key, newest ? seen.last : -1,
                                          kHeadDim, seen);
    if (newest)
      for (int i = static_cast<int>(threadIdx.x); i < kHeadDim; i += kThreads)
        values[seen.last * kHeadDim + i] = new_value[i];
    if (more) load_keys(s + a.splits);
    sync_computing();
    segment_softmax<kWarps>(queries, [&](int) { return seen; });
    asm volatile("cp.async.wait_all;" ::: "memory");
    sync_computing();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < per_kv * kHeadDim / 2; i += kThreads) {
      const int head = i / (kHeadDim / 2), pair = i % (kHeadDim / 2);
      const float2 o =
          pair_output<kType>(queries.scores + head * kSegmentKeys, values, kHeadDim, pair, seen);
      if (n_segments == 1) {
        out[2 * i] = __fdiv_rn(o.x, queries.sums[head]);
        out[2 * i + 1] = __fdiv_rn(o.y, queries.sums[head]);
        continue;
      }
      float* to = partial + (static_cast<size_t>(head) * a.max_segments + s) * (kHeadDim + 2);
      *reinterpret_cast<float2*>(to + 2 + 2 * pair) = o;
      if (pair == 0)
        *reinterpret_cast<float2*>(to) = make_float2(queries.maxima[head], queries.sums[head]);
    }
    sync_computing();
    if (more) load_values(s + a.splits);
  }
  if (n_segments > 1) {
    // The last thread block of this KV head merges the segments.
    if (threadIdx.x == 0) {
      int32_t* counter = a.counters + kv_head;
      int32_t before;
      asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(counter)
                   : "memory");
      *is_last = before == n_active - 1;
      if (*is_last) *counter = 0;
    }
    sync_computing();
    if (*is_last == 0) return;
    merge_all<kHeadDim>(a, partial, n_segments, per_kv, out, queries.maxima,
                        reinterpret_cast<float4*>(shared_at(kWorkAt + at.coefficients)));
    sync_computing();
  }
  const int first_column = first_head * kHeadDim;
  if (own.quantized_output == nullptr) {
    for (int i = static_cast<int>(threadIdx.x); i < per_kv * kHeadDim; i += kThreads)
      a.out[first_column + i] = out[i];
  } else {
    int offset = 0;
    const GroupTarget target =
        target_at(reinterpret_cast<uint8_t*>(own.quantized_output),
                  input_layout(offset, a.n_heads * kHeadDim / kGroupColumns, 1));
#pragma unroll 1
    for (int group = warp; group < per_kv * kHeadDim / kGroupColumns; group += kWarps) {
      const float4 v = reinterpret_cast<const float4*>(out)[group * 32 + lane];
      const float y[4] = {v.x, v.y, v.z, v.w};
      quantize_group(y, first_column / kGroupColumns + group, lane, target, own.output_fault_op,
                     a.fault);
    }
  }
  sync_computing();
  arrive(step, index);
}

template <CacheType kType>
__device__ __forceinline__ void attend_any(const StepArguments& step, int index, int record,
                                           bool first_task, int kv_head, int split) {
  switch (stage_at(record).attention.head_dim) {
    case 32:
      return attend<kType, 1>(step, index, record, first_task, kv_head, split);
    case 64:
      return attend<kType, 2>(step, index, record, first_task, kv_head, split);
    case 128:
      return attend<kType, 4>(step, index, record, first_task, kv_head, split);
    default:
      if constexpr (kType != CacheType::kF32)
        return attend<kType, 8>(step, index, record, first_task, kv_head, split);
  }
}

__device__ __forceinline__ void attention_stage(const StepArguments& step, int index, int record) {
  const AttentionArguments& a = stage_at(record).attention;
  const int position = constants().position;
  const int first_position = a.window > 0 ? max(0, position - a.window + 1) : 0;
  const int n_segments = position / kSegmentKeys - first_position / kSegmentKeys + 1;
  const int n_tasks = a.n_kv_heads * min(a.splits, n_segments);
#pragma unroll 1
  for (int task = static_cast<int>(blockIdx.x); task < n_tasks;
       task += static_cast<int>(gridDim.x)) {
    const int kv_head = task % a.n_kv_heads, split = task / a.n_kv_heads;
    const bool first_task = task == static_cast<int>(blockIdx.x);
    if (!first_task) sync_computing();
    switch (a.cache_type) {
      case CacheType::kF16:
        attend_any<CacheType::kF16>(step, index, record, first_task, kv_head, split);
        break;
      case CacheType::kBF16:
        attend_any<CacheType::kBF16>(step, index, record, first_task, kv_head, split);
        break;
      case CacheType::kF32:
        attend_any<CacheType::kF32>(step, index, record, first_task, kv_head, split);
    }
  }
}

__device__ __forceinline__ void copy_async(int to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared_at(to))),
               "l"(from)
               : "memory");
}

/// Where the record of a stage lies.
__device__ __forceinline__ int record_of(int stage) {
  return kRecordsAt + stage % 2 * static_cast<int>(sizeof(StageRecord));
}

/// Starts the copy of a stage's record to shared memory; by one warp.
__device__ __forceinline__ void fetch_record(const StepArguments& a, int stage) {
  if (stage >= a.n_stages) return;
  const int to = record_of(stage);
  const auto* from = reinterpret_cast<const uint8_t*>(a.stages + stage);
  for (int i = lane_index() * 16; i < static_cast<int>(sizeof(StepStage)); i += 512)
    copy_async(to + i, from + i);
  if (lane_index() == 31)
    copy_async(to + static_cast<int>(sizeof(StepStage)),
               a.shares + static_cast<size_t>(stage) * gridDim.x + blockIdx.x);
}

#endif

__global__ __launch_bounds__(kThreads + 32,
                             1) void step_kernel(const __grid_constant__ StepArguments a) {
#if __CUDA_ARCH__ >= 900
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kWarps * kEntries; i += kThreads + 32)
    init_barrier(shared_address(shared_at(kFullAt + i * 8)));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (warp_index() == 0) {
    fetch_record(a, 0);
    if (lane_index() < kWarps)
      reinterpret_cast<uint2*>(shared_at(kStatesAt))[lane_index()] = make_uint2(0, 0);
    if (lane_index() == 0)
      *reinterpret_cast<StepConstants*>(shared_at(kConstantsAt)) = {
          __ldcg(a.positions), __ldcg(a.sequences), rings_at(a.work_bytes), a.ring_bytes};
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
  __syncthreads();
  if (warp_index() == kWarps) return stream_weights(a, lane_index());

#pragma unroll 1
  for (int s = 0; s < a.n_stages; ++s) {
    const int record = opaque(record_of(s));
    if (warp_index() == 0) fetch_record(a, s + 1);
    mark(a, s, &StageTimes::begin);
    if (stage_at(record).is_attention != 0)
      attention_stage(a, s, record);
    else if (share_at(record).begin < share_at(record).end)
      linear_stage(a, s, record);
    if (warp_index() == 0) asm volatile("cp.async.wait_all;" ::: "memory");
    sync_computing();
    mark(a, s, &StageTimes::end);
  }
#endif
}

}  // namespace

int step_work_bytes(const StepStage& stage) {
  if (stage.is_attention != 0) {
    const AttentionArguments& a = stage.attention;
    return attention_layout(a.n_heads / a.n_kv_heads, a.head_dim,
                            a.cache_type == CacheType::kF32 ? 4 : 2)
        .bytes;
  }
  int bytes = 0;
  for (const DeviceMatrix& m : stage.linear.matrices)
    if (m.units != nullptr) bytes = std::max(bytes, linear_layout(m, stage.chunk_tiles).bytes);
  return bytes;
}

int step_ring_bytes(int shared_bytes, int work_bytes) {
  return std::max(0, (shared_bytes - rings_at(work_bytes)) / kWarps / 128 * 128);
}

int step_part_bytes(const DeviceMatrix& m) {
  return m.header_bytes + part_groups(m.kind) * words_per_group(m.kind) * 16;
}

int step_part_groups(MatrixKind kind) { return part_groups(kind); }

int step_chunk_tiles(const DeviceMatrix& m, int granule) {
  return std::max(1, kSumBytes / (m.segments * kTileRows * 4) / granule) * granule;
}

int step_input_bytes(int columns) {
  int bytes = 0;
  static_cast<void>(input_layout(bytes, (columns + kGroupColumns - 1) / kGroupColumns, 1));
  return bytes;
}

bool step_has_attention(const AttentionArguments& a) {
  const bool has_size = a.head_dim == 32 || a.head_dim == 64 || a.head_dim == 128 ||
                        (a.head_dim == 256 && a.cache_type != CacheType::kF32);
  return has_size && a.n_heads % a.n_kv_heads == 0;
}

void launch_step(const StepArguments& arguments, int grid, cudaStream_t stream) {
  const int shared_bytes = rings_at(arguments.work_bytes) + kWarps * arguments.ring_bytes;
  ASSAY_CUDA(configure_shared(reinterpret_cast<const void*>(step_kernel), shared_bytes));
  ASSAY_CUDA(cudaMemsetAsync(arguments.arrivals, 0,
                             sizeof(int32_t) * static_cast<size_t>(arguments.n_stages), stream));
  cudaLaunchAttribute attribute{};
  attribute.id =
      cudaLaunchAttributeCooperative;  // all thread blocks run at once, or the launch fails
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(kThreads + 32);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  ASSAY_CUDA(cudaLaunchKernelEx(&config, step_kernel, arguments));
}

}  // namespace assay::cuda
