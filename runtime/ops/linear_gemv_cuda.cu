#include <algorithm>

#include "runtime/device/cuda_support.h"
#include "runtime/ops/linear_vector_cuda.cuh"

namespace assay::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// One thread block per multiprocessor and launch, of at most half a multiprocessor's registers and
// shared memory where that suffices: the next kernel's thread block then sits beside this one,
// fills its ring with weights and waits for its input.
constexpr int kMostSlots = 8;
constexpr int kHeldGroups = 4;  // groups of the input that a warp keeps in registers

/// A warp's ring: `slots` parts of codes, then the headers of `header_slots` units.
struct RingShape {
  int slots, header_slots, part_bytes, header_bytes;
  __host__ __device__ int bytes() const { return slots * part_bytes + header_slots * header_bytes; }
};

/// The largest ring in `bytes` (a multiple of 128); slots is 0 if there is no room for one.
__host__ __device__ inline RingShape ring_shape(const DeviceMatrix& m, int bytes) {
  RingShape ring{};
  const int groups = part_groups(m.kind), parts = kSegmentGroups / groups;
  ring.part_bytes = groups * words_per_group(m.kind) * 16;
  ring.header_bytes = m.header_bytes;
  for (int slots = parts; slots <= kMostSlots; slots += parts) {
    RingShape larger = ring;
    larger.slots = slots;
    larger.header_slots = slots / parts + 1;
    if (larger.bytes() > bytes) break;
    ring = larger;
  }
  return ring;
}

/// Shared memory of one thread block: rings of all warps, barriers, activations of up to four
/// tokens, then segment sums.
struct SharedLayout {
  int barriers, zero;
  InputLayout inputs;
  int partial, segment_sums, bytes;
};

__host__ __device__ inline SharedLayout shared_layout(int ring_bytes, int columns, int groups,
                                                      int tokens, int sums) {
  SharedLayout at{};
  int offset = ring_bytes * kWarps;
  const auto take = [&offset](int bytes) {
    const int here = offset;
    offset += (bytes + 15) / 16 * 16;
    return here;
  };
  at.barriers = take(kWarps * kMostSlots * 8);
  at.zero = take(kZeroBytes);
  at.inputs = input_layout(offset, groups, tokens);
  at.partial = take((columns + 255) / 256 * 4);
  at.segment_sums = take(sums * 4);
  at.bytes = offset;
  return at;
}

/// 1 / sqrt(mean(x²) + eps) of a row in global memory, by all warps of the thread block. `partial`
/// holds one float per 256 columns. Ends with every thread holding the value.
__device__ __forceinline__ float inverse_rms_of(const float* x, int columns, float eps,
                                                float inverse_n, float* partial) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_blocks = (columns + 255) / 256;
  for (int block = warp; block < n_blocks; block += 2 * kWarps) {
    float v[2][8], acc[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int at = (block + i * kWarps) * 256 + k * 32 + lane;
        v[i][k] = at < columns ? __ldcg(x + at) : 0.0f;
      }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int at = (block + i * kWarps) * 256 + k * 32 + lane;
        if (at < columns) acc[i] = __fmaf_rn(v[i][k], v[i][k], acc[i]);
      }
      acc[i] = fold_lanes(acc[i]);
      if (lane == 0 && block + i * kWarps < n_blocks) partial[block + i * kWarps] = acc[i];
    }
  }
  __syncthreads();
  float total = partial[0];
  for (int block = 1; block < n_blocks; ++block) total = __fadd_rn(total, partial[block]);
  const float mean = __fmul_rn(total, inverse_n);
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

/// Weights of the norm for the groups that a warp keeps in registers; they depend on no other
/// kernel.
struct HeldNorm {
  float weight[kHeldGroups][4];
};

__device__ __forceinline__ void load_norm(const GemvArguments& a, int columns, int groups,
                                          HeldNorm& norm) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < kHeldGroups; ++k) {
    const int group = warp + k * kWarps;
#pragma unroll
    for (int i = 0; i < 4; ++i) norm.weight[k][i] = 0.0f;
    if (a.norm_weight != nullptr && group < groups)
      load_columns(a.norm_weight, group, lane, columns, norm.weight[k]);
  }
}

/// Norm and quantization of all tokens into shared memory; every thread block does it for itself.
__device__ __forceinline__ void prepare_inputs(const GemvArguments& a, int columns, int groups,
                                               const SharedLayout& at, const HeldNorm& norm,
                                               uint8_t* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int token = 0; token < a.tokens; ++token) {
    const float* from = a.x + static_cast<size_t>(token) * columns;
    const GroupTarget target{
        reinterpret_cast<uint32_t*>(shared + at.inputs.planes) + token * groups * 64,
        reinterpret_cast<int32_t*>(shared + at.inputs.sums16) + token * groups * 8,
        reinterpret_cast<int32_t*>(shared + at.inputs.sums32) + token * groups * 4,
        reinterpret_cast<int32_t*>(shared + at.inputs.sums128) + token * groups,
        reinterpret_cast<float*>(shared + at.inputs.scales) + token * groups};
    constexpr int kRound = kHeldGroups * kWarps;
    float y[kHeldGroups][4], next[kHeldGroups][4];
    const auto load = [&](const float* row, int base, float(&to)[kHeldGroups][4]) {
#pragma unroll
      for (int k = 0; k < kHeldGroups; ++k) {
        const int group = base + k * kWarps;
#pragma unroll
        for (int i = 0; i < 4; ++i) to[k][i] = 0.0f;
        if (group < groups) load_columns(row, group, lane, columns, to[k]);
      }
    };
    const bool has_norm = a.norm_weight != nullptr;
    float r = 1.0f;
    load(from, warp, y);
    if (has_norm)
      r = inverse_rms_of(from, columns, a.eps, a.inverse_n,
                         reinterpret_cast<float*>(shared + at.partial));
    for (int base = warp; base < groups; base += kRound) {
      load(from, base + kRound, next);  // on its way while this round is quantized
      float weight[kHeldGroups][4];
      if (has_norm && base == warp) {
#pragma unroll
        for (int k = 0; k < kHeldGroups; ++k)
#pragma unroll
          for (int i = 0; i < 4; ++i) weight[k][i] = norm.weight[k][i];
      } else if (has_norm) {
        load(a.norm_weight, base, weight);
      }
#pragma unroll
      for (int k = 0; k < kHeldGroups; ++k) {
        if (has_norm) {
#pragma unroll
          for (int i = 0; i < 4; ++i) y[k][i] = __fmul_rn(__fmul_rn(y[k][i], r), weight[k][i]);
        }
        if (base + k * kWarps < groups)
          quantize_group(y[k], base + k * kWarps, lane, target, a.fault_op, a.fault);
#pragma unroll
        for (int i = 0; i < 4; ++i) y[k][i] = next[k][i];
      }
    }
    __syncthreads();
  }
}

/// A warp's barrier that completes when all bytes of a part have arrived.
__device__ __forceinline__ void init_barrier(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr int kArrivals = 1;
#else
  constexpr int kArrivals = 32;
#endif
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(kArrivals) : "memory");
}

/// The ranges of one part that travel together: codes, and for the first of a unit its header.
struct PartCopy {
  const void* from[2];
  uint32_t to[2];
  uint32_t bytes[2];  // multiples of 16, or 0
};

/// Starts the copies of a part; by all lanes of the warp.
__device__ __forceinline__ void start_copy(const PartCopy& copy, uint32_t barrier, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane != 0) return;
  uint64_t once;  // weights are read once per step: they leave the cache first
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(copy.bytes[0] + copy.bytes[1])
               : "memory");
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (copy.bytes[i] != 0)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
          "[%1], %2, [%3], %4;" ::"r"(copy.to[i]),
          "l"(copy.from[i]), "r"(copy.bytes[i]), "r"(barrier), "l"(once)
          : "memory");
#else
#pragma unroll
  for (int i = 0; i < 2; ++i)
    for (uint32_t at = lane * 16; at < copy.bytes[i]; at += 512)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(copy.to[i] + at),
                   "l"(static_cast<const uint8_t*>(copy.from[i]) + at)
                   : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

/// The parts of a warp's units, unit warp, warp + kWarps, … of the thread block's share, in order.
class Ring {
 public:
  __device__ Ring(const DeviceMatrix& m, const BlockShare& share, int ring_bytes, uint8_t* memory,
                  uint32_t barriers, int warp, int lane)
      : m_(m),
        shape_(ring_shape(m, ring_bytes)),
        part_groups_(part_groups(m.kind)),
        group_words_(words_per_group(m.kind)),
        memory_(memory),
        barriers_(barriers),
        lane_(lane),
        n_units_((share.end - share.begin) * m.segments),
        issue_unit_(warp),
        issue_tile_(share.begin + warp / m.segments),
        issue_segment_(warp % m.segments) {
    if (lane == 0)
      for (int i = 0; i < shape_.slots; ++i) init_barrier(barriers + 8 * i);
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncwarp();
    for (int i = 0; i < shape_.slots; ++i) issue();
  }

  /// Waits for the next part and gives its codes.
  __device__ const uint4* wait(bool first) {
    if (first && ++header_slot_ == shape_.header_slots) header_slot_ = 0;
    wait_barrier(barriers_ + 8 * slot_, phase_);
    return reinterpret_cast<const uint4*>(memory_ + slot_ * shape_.part_bytes);
  }
  /// Hands the part back and asks for the next one. `last` of its unit.
  __device__ void release() {
    __syncwarp();
    issue();
    if (++slot_ == shape_.slots) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }
  /// Header of the unit under way; it stays until the first part of the next unit is released.
  __device__ const uint8_t* header() const {
    return memory_ + shape_.slots * shape_.part_bytes + header_slot_ * shape_.header_bytes;
  }

 private:
  __device__ void issue() {
    if (issue_unit_ >= n_units_) return;
    PartCopy copy{};
    const int first = issue_segment_ * kSegmentGroups + issue_part_ * part_groups_;
    const int groups = max(0, min(part_groups_, m_.groups - first));
    const std::byte* unit = unit_at(m_, issue_tile_, issue_segment_);
    copy.from[0] = unit + m_.header_bytes + issue_part_ * shape_.part_bytes;
    copy.to[0] = shared_address(memory_ + issue_slot_ * shape_.part_bytes);
    copy.bytes[0] = static_cast<uint32_t>(groups * group_words_ * 16);
    if (issue_part_ == 0) {
      copy.from[1] = unit;
      copy.to[1] = shared_address(memory_ + shape_.slots * shape_.part_bytes +
                                  issue_header_slot_ * shape_.header_bytes);
      copy.bytes[1] = static_cast<uint32_t>(m_.header_bytes);
      if (++issue_header_slot_ == shape_.header_slots) issue_header_slot_ = 0;
    }
    start_copy(copy, barriers_ + 8 * issue_slot_, lane_);
    if (++issue_slot_ == shape_.slots) issue_slot_ = 0;
    if (++issue_part_ * part_groups_ < kSegmentGroups) return;
    issue_part_ = 0;
    issue_unit_ += kWarps;
    issue_segment_ += kWarps;
    while (issue_segment_ >= m_.segments) {
      issue_segment_ -= m_.segments;
      ++issue_tile_;
    }
  }

  const DeviceMatrix& m_;
  const RingShape shape_;
  const int part_groups_, group_words_;
  uint8_t* memory_;
  uint32_t barriers_;
  int lane_;
  int n_units_;
  int issue_unit_, issue_tile_, issue_segment_, issue_part_ = 0;
  int issue_slot_ = 0, issue_header_slot_ = 0;
  int slot_ = 0, header_slot_ = -1;
  uint32_t phase_ = 0;
};

/// Segment sums of one unit for two to four tokens: column pair i of the products is token i.
template <MatrixKind kKind, int kPieces>
__device__ __forceinline__ void several_unit(const DeviceMatrix& m, Ring& ring, const Inputs& in,
                                             int segment, int lane, float (&acc)[2],
                                             uint32_t& worst) {
  const int first = segment * kSegmentGroups;
#pragma unroll
  for (int part = 0; part < kSegmentGroups / kPartGroups<kKind>; ++part) {
    const uint4* codes = ring.wait(part == 0);
    const uint8_t* header = ring.header();
#pragma unroll 1
    for (int inside = 0; inside < kPartGroups<kKind>; ++inside) {
      const int g = part * kPartGroups<kKind> + inside, group = first + g;
      if (group >= m.groups) break;
      uint4 words[kWords<kKind>];
      load_codes<kKind>(codes, inside, lane, words);
      uint32_t b[8];
      Inputs::operands(in.operands_at(group), b);
      GroupSums<kKind, kPieces> sums;
      multiply_group<kKind, kPieces>(words, b, sums);
      GroupWeights<kKind, kPieces> weights;
      read_weights<kKind, kPieces>(m, header, lane / 4, g, weights);
      const GroupInput input = load_input<kKind, kPieces>(in.scales, in.sums128, in.sums32,
                                                          in.sums16, static_cast<size_t>(group));
      fold_group<kKind, kPieces>(sums, weights, input, acc, worst);
    }
    ring.release();
  }
}

/// All units of a warp; segment sums go to shared memory.
template <MatrixKind kKind, int kPieces, bool kSingle>
__device__ __forceinline__ void run_units(const GemvArguments& a, const DeviceMatrix& m, Ring& ring,
                                          const Inputs& inputs, int n_units, float* segment_sums,
                                          uint32_t& worst) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int segment = warp % m.segments;
#pragma unroll 1
  for (int unit = warp; unit < n_units; unit += kWarps) {
    float acc[2] = {0.0f, 0.0f};
    if constexpr (kSingle)
      single_unit<kKind, kPieces>(m, ring, inputs, segment, lane, acc, worst);
    else
      several_unit<kKind, kPieces>(m, ring, inputs, segment, lane, acc, worst);
    const int token = lane % 4;
    if (token < (kSingle ? 1 : a.tokens)) {
      float* to = segment_sums + (token * n_units + unit) * kTileRows;
      to[lane / 4] = acc[0];
      to[lane / 4 + 8] = acc[1];
    }
    segment += kWarps;
    while (segment >= m.segments) segment -= m.segments;
  }
}

template <bool kSingle>
__global__ __launch_bounds__(kThreads,
                             2) void gemv_kernel(const __grid_constant__ GemvArguments a) {
  extern __shared__ __align__(128) uint8_t shared[];
  launch_dependents();
  const BlockShare share = a.shares[blockIdx.x];
  const DeviceMatrix& m = a.matrices[share.matrix];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_tiles = share.end - share.begin, n_units = n_tiles * m.segments;
  const SharedLayout at = shared_layout(a.ring_bytes, m.columns, m.groups, a.tokens,
                                        a.most_tiles * m.segments * kTileRows * a.tokens);
  float* segment_sums = reinterpret_cast<float*>(shared + at.segment_sums);

  Ring ring(m, share, a.ring_bytes, shared + warp * a.ring_bytes,
            shared_address(shared + at.barriers) + warp * kMostSlots * 8, warp, lane);
  if (threadIdx.x < kZeroBytes / 4) reinterpret_cast<uint32_t*>(shared + at.zero)[threadIdx.x] = 0;
  HeldNorm norm;
  load_norm(a, m.columns, m.groups, norm);

  wait_for_inputs();
  // What the result is added to is no result of the kernel before: fetched early.
  const int n_outputs =
      n_tiles * (a.epilogue == Epilogue::kSwiGlu ? kTileRows / 2 : kTileRows) * a.tokens;
  float* out = a.out + a.out_offset[share.matrix];
  const auto target_of = [&](int i) -> float* {
    const int token = i / (n_tiles * kTileRows), in_token = i % (n_tiles * kTileRows);
    return out + static_cast<size_t>(token) * a.out_stride + share.begin * kTileRows + in_token;
  };
  const auto row_of = [&](int i) { return share.begin * kTileRows + i % (n_tiles * kTileRows); };
  float before = 0.0f;
  if (a.epilogue == Epilogue::kAddTo && static_cast<int>(threadIdx.x) < n_outputs &&
      row_of(static_cast<int>(threadIdx.x)) < m.rows)
    before = __ldcg(target_of(static_cast<int>(threadIdx.x)));
  prepare_inputs(a, m.columns, m.groups, at, norm, shared);

  uint32_t worst = 0;
  const Inputs inputs(shared, at.inputs, m.groups, kSingle ? 0 : min(lane / 8, a.tokens - 1),
                      kSingle ? 0 : min(lane % 4, a.tokens - 1), at.zero, lane);
  dispatch_kind(m, [&]<MatrixKind kKind, int kPieces>() {
    run_units<kKind, kPieces, kSingle>(a, m, ring, inputs, n_units, segment_sums, worst);
  });
  if (worst >= 0x7f800000u)
    report_fault(a.fault, a.fault_op, share.begin * kTileRows, __uint_as_float(worst));
  __syncthreads();

  // Segment sums in ascending order; the total starts as the first.
  const auto total = [&](int token, int row_tile, int row) {
    const float* from = segment_sums + (token * n_units + row_tile * m.segments) * kTileRows + row;
    float sum = from[0];
#pragma unroll 8
    for (int s = 1; s < m.segments; ++s) sum = __fadd_rn(sum, from[s * kTileRows]);
    return sum;
  };
  if (a.epilogue == Epilogue::kSwiGlu) {
    for (int i = static_cast<int>(threadIdx.x); i < n_outputs; i += kThreads) {
      const int token = i / (n_tiles * 8), row_tile = i % (n_tiles * 8) / 8, row = i % 8;
      const float gate = total(token, row_tile, row), up = total(token, row_tile, row + 8);
      const int to = (share.begin + row_tile) * 8 + row;
      if (to < m.rows / 2)
        out[static_cast<size_t>(token) * a.out_stride + to] = __fmul_rn(silu_canonical(gate), up);
    }
    return;
  }
  const float* bias = a.bias[share.matrix];
  for (int i = static_cast<int>(threadIdx.x); i < n_outputs; i += kThreads) {
    const int token = i / (n_tiles * kTileRows), row_tile = i % (n_tiles * kTileRows) / kTileRows;
    if (row_of(i) >= m.rows) continue;
    float y = total(token, row_tile, i % kTileRows);
    if (bias != nullptr) y = __fadd_rn(y, __ldg(bias + row_of(i)));
    float* target = target_of(i);
    if (a.epilogue == Epilogue::kAddTo) {
      if (i >= kThreads) before = __ldcg(target);
      y = __fadd_rn(before, y);
    }
    *target = y;
  }
}

__global__ __launch_bounds__(kThreads) void norm_quantize_kernel(
    const float* x, int x_stride, const float* norm_weight, float eps, float inverse_n, int columns,
    DeviceActivations out, int32_t fault_op, DeviceFault* fault) {
  extern __shared__ float row[];
  const int token = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kThreads)
    row[i] = __ldcg(x + static_cast<size_t>(token) * x_stride + i);
  __syncthreads();
  float r = 1.0f;
  if (norm_weight != nullptr) r = inverse_rms(row, columns, eps, inverse_n, row + columns);
  const size_t groups = static_cast<size_t>(out.groups);
  const GroupTarget target{reinterpret_cast<uint32_t*>(out.planes) + token * groups * 64,
                           out.sums16 + token * groups * 8, out.sums32 + token * groups * 4,
                           out.sums128 + token * groups, out.scales + token * groups};
  for (int group = warp; group < out.groups; group += kWarps) {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = group * kGroupColumns + lane * 4 + i;
      y[i] = 0.0f;
      if (column < columns) {
        y[i] = row[column];
        if (norm_weight != nullptr)
          y[i] = __fmul_rn(__fmul_rn(y[i], r), __ldg(norm_weight + column));
      }
    }
    quantize_group(y, group, lane, target, fault_op, fault);
  }
}

}  // namespace

namespace {

/// Sizes the rings: what half a multiprocessor has left beside the activations, or, if that is no
/// ring at all, what a whole one has. Returns the bytes of shared memory.
int size_rings(GemvArguments& a) {
  int fixed = 0;
  for (const DeviceMatrix& m : a.matrices) {
    if (m.units == nullptr) continue;
    fixed = std::max(fixed, shared_layout(0, m.columns, m.groups, a.tokens,
                                          a.most_tiles * m.segments * kTileRows * a.tokens)
                                .bytes);
  }
  const DeviceLimits& limits = current_limits();
  const int half = std::min(limits.block_shared, limits.multi_shared / 2 - limits.reserved_shared);
  for (const int limit : {half, limits.block_shared}) {
    a.ring_bytes = (limit - fixed) / kWarps / 128 * 128;
    bool fits = a.ring_bytes > 0;
    int needed = 0;
    for (const DeviceMatrix& m : a.matrices) {
      if (m.units == nullptr) continue;
      const RingShape ring = ring_shape(m, a.ring_bytes);
      fits = fits && ring.slots > 0;
      needed = std::max(needed, ring.bytes());
    }
    if (!fits) continue;
    a.ring_bytes = (needed + 127) / 128 * 128;
    return fixed + a.ring_bytes * kWarps;
  }
  throw UnsupportedError("cuda: a matrix of " + std::to_string(a.matrices[0].columns) +
                         " columns does not fit the vector kernel on this GPU; use --device cpu");
}

template <bool kSingle>
void launch_tokens(const GemvArguments& from, int grid, bool dependent, cudaStream_t stream) {
  GemvArguments arguments = from;
  const int shared_bytes = size_rings(arguments);
  allow_shared(reinterpret_cast<const void*>(gemv_kernel<kSingle>), shared_bytes,
               "the vector kernel");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  ASSAY_CUDA(cudaLaunchKernelEx(&config, gemv_kernel<kSingle>, arguments));
}

}  // namespace

void launch_gemv(const GemvArguments& arguments, int grid, bool dependent, cudaStream_t stream) {
  if (arguments.tokens == 1)
    launch_tokens<true>(arguments, grid, dependent, stream);
  else
    launch_tokens<false>(arguments, grid, dependent, stream);
}

void launch_norm_quantize(const float* x, int32_t x_stride, const float* norm_weight, float eps,
                          float inverse_n, int32_t columns, int32_t tokens, DeviceActivations out,
                          int32_t fault_op, DeviceFault* fault, cudaStream_t stream) {
  const int shared_bytes = (columns + (columns + 255) / 256) * 4;
  allow_shared(reinterpret_cast<const void*>(norm_quantize_kernel), shared_bytes,
               "the norm of so wide a vector");
  norm_quantize_kernel<<<static_cast<unsigned>(tokens), kThreads, static_cast<size_t>(shared_bytes),
                         stream>>>(x, x_stride, norm_weight, eps, inverse_n, columns, out, fault_op,
                                   fault);
  ASSAY_CUDA(cudaGetLastError());
}

}  // namespace assay::cuda
