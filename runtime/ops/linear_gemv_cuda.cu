#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>

#include "runtime/device/cuda_support.h"
#include "runtime/ops/linear_vector_cuda.cuh"

namespace assay::cuda {
namespace {

// One thread block per multiprocessor and launch, of at most half a multiprocessor's registers and
// shared memory where that suffices: the next kernel's thread block then sits beside this one,
// fills its ring with weights and waits for its input. Where it need not wait (input_given), four
// launches lie beside each other, with a thread block of a quarter each.
constexpr int kWarps = 8;
constexpr int kGivenWarps = 4;
constexpr int kMostSlots = 8;

/// A warp's ring: `slots` parts of codes, then the headers of `header_slots` units.
struct RingShape {
  int32_t slots, header_slots, part_bytes, header_bytes;
  __host__ __device__ int bytes() const { return slots * part_bytes + header_slots * header_bytes; }
};

/// Shared memory of one thread block: activations of up to four tokens, segment sums, barriers,
/// then the rings of all warps.
struct SharedLayout {
  InputLayout inputs;
  int32_t zero, partial, segment_sums, barriers, rings, ring_bytes, bytes;
  RingShape shapes[kMaxGemvMatrices];
};

/// 1 / sqrt(mean(x²) + eps) of a row in global memory, by all warps of the thread block. `partial`
/// holds one float per 256 columns. Ends with every thread holding the value.
template <int kWarps>
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
  const float total = ascending_sum(partial, n_blocks, 1);
  const float mean = __fmul_rn(total, inverse_n);
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

/// Sixteen columns of four groups of a row for each lane, as quantize_four_groups() takes them.
struct FourGroups {
  float v[4][4];

  __device__ __forceinline__ void load(const float* row, int first_group, int lane, int columns) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      load_word(row, (first_group + lane / 8) * 32 + lane / 4 % 2 * 16 + lane % 4 + 4 * k, columns,
                v[k]);
  }
};

/// Norm and quantization of all tokens into shared memory; every thread block does it for itself.
/// `weight`: the norm's of the warp's first groups.
template <int kWarps>
__device__ __forceinline__ void prepare_inputs(const GemvArguments& a, int columns, int groups,
                                               const SharedLayout& at, const FourGroups& weight,
                                               uint8_t* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const bool has_norm = a.norm_weight != nullptr;
  for (int token = 0; token < a.tokens; ++token) {
    const float* from = a.x + static_cast<size_t>(token) * columns;
    const GroupTarget target{
        reinterpret_cast<uint32_t*>(shared + at.inputs.planes) + token * groups * 64,
        at.inputs.sums16 < 0
            ? nullptr
            : reinterpret_cast<int32_t*>(shared + at.inputs.sums16) + token * groups * 8,
        reinterpret_cast<int32_t*>(shared + at.inputs.sums32) + token * groups * 4,
        reinterpret_cast<int32_t*>(shared + at.inputs.sums128) + token * groups,
        reinterpret_cast<float*>(shared + at.inputs.scales) + token * groups};
    FourGroups x, next;
    x.load(from, warp * 4, lane, columns);
    float r = 1.0f;
    if (has_norm)
      r = inverse_rms_of<kWarps>(from, columns, a.eps, a.inverse_n,
                                 reinterpret_cast<float*>(shared + at.partial));
#pragma unroll 1
    for (int group = warp * 4; group < groups; group += kWarps * 4) {
      next.load(from, group + kWarps * 4, lane, columns);  // while this one is quantized
      if (has_norm) {
        FourGroups w = weight;
        if (group != warp * 4) w.load(a.norm_weight, group, lane, columns);
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
          for (int i = 0; i < 4; ++i) x.v[k][i] = __fmul_rn(__fmul_rn(x.v[k][i], r), w.v[k][i]);
      }
      const uint32_t top = quantize_four_groups(x.v, group, lane, target, groups);
      if (top > kLargestActivation && lane % 8 == 0)
        report_fault(a.fault, a.fault_op, (group + lane / 8) * kGroupColumns, __uint_as_float(top));
      x = next;
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
template <int kWarps>
class Ring {
 public:
  __device__ Ring(const DeviceMatrix& m, const BlockShare& share, const RingShape& shape,
                  uint8_t* memory, uint32_t barriers, int warp, int lane)
      : m_(m),
        shape_(shape),
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
template <MatrixKind kKind, int kPieces, typename Ring>
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
template <MatrixKind kKind, int kPieces, bool kSingle, int kWarps>
__device__ __forceinline__ void run_units(const GemvArguments& a, const DeviceMatrix& m,
                                          Ring<kWarps>& ring, const Inputs& inputs, int n_units,
                                          float* segment_sums, uint32_t& worst) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int segment = warp % m.segments;
#pragma unroll 1
  for (int unit = warp; unit < n_units; unit += kWarps) {
    float acc[2] = {0.0f, 0.0f};
    if constexpr (kSingle)
      single_unit<kKind, kPieces, kPartGroups<kKind>>(m, ring, inputs, segment, lane, acc, worst);
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

/// The tiles of this thread block.
__device__ __forceinline__ BlockShare own_share(const GemvArguments& a) {
  int block = static_cast<int>(blockIdx.x), matrix = 0;
  while (block >= a.n_blocks[matrix]) block -= a.n_blocks[matrix++];
  const int tiles = a.matrices[matrix].tiles, n_blocks = a.n_blocks[matrix];
  return {matrix, tiles * block / n_blocks, tiles * (block + 1) / n_blocks};
}

template <bool kSingle, int kWarps>
__global__ __launch_bounds__(kWarps * 32, 16 / kWarps) void gemv_kernel(
    const __grid_constant__ GemvArguments a, const __grid_constant__ SharedLayout at) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kThreads = kWarps * 32;
  launch_dependents();
  const BlockShare share = own_share(a);
  const DeviceMatrix& m = a.matrices[share.matrix];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_tiles = share.end - share.begin, n_units = n_tiles * m.segments;
  float* segment_sums = reinterpret_cast<float*>(shared + at.segment_sums);

  Ring<kWarps> ring(m, share, at.shapes[share.matrix], shared + at.rings + warp * at.ring_bytes,
                    shared_address(shared + at.barriers) + warp * kMostSlots * 8, warp, lane);
  if (threadIdx.x < kZeroBytes / 4) reinterpret_cast<uint32_t*>(shared + at.zero)[threadIdx.x] = 0;
  FourGroups norm{};
  if (a.norm_weight != nullptr) norm.load(a.norm_weight, warp * 4, lane, m.columns);

  if (!a.input_given) wait_for_inputs();
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
  if (a.epilogue == Epilogue::kAddTo && !a.input_given &&
      static_cast<int>(threadIdx.x) < n_outputs && row_of(static_cast<int>(threadIdx.x)) < m.rows)
    before = __ldcg(target_of(static_cast<int>(threadIdx.x)));
  prepare_inputs<kWarps>(a, m.columns, m.groups, at, norm, shared);

  uint32_t worst = 0;
  const Inputs inputs(shared, at.inputs, m.groups, kSingle ? 0 : min(lane / 8, a.tokens - 1),
                      kSingle ? 0 : min(lane % 4, a.tokens - 1), at.zero, lane);
  dispatch_kind(m, [&]<MatrixKind kKind, int kPieces>() {
    run_units<kKind, kPieces, kSingle, kWarps>(a, m, ring, inputs, n_units, segment_sums, worst);
  });
  if (worst >= 0x7f800000u)
    report_fault(a.fault, a.fault_op, share.begin * kTileRows, __uint_as_float(worst));
  __syncthreads();
  if (a.input_given) wait_for_inputs();

  const auto total = [&](int token, int row_tile, int row) {
    return ascending_sum(segment_sums + (token * n_units + row_tile * m.segments) * kTileRows + row,
                         m.segments, kTileRows);
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
      if (i >= kThreads || a.input_given) before = __ldcg(target);
      y = __fadd_rn(before, y);
    }
    *target = y;
  }
}

constexpr int kQuantizeThreads = 256;

__global__ __launch_bounds__(kQuantizeThreads) void norm_quantize_kernel(
    const float* x, int x_stride, const float* norm_weight, float eps, float inverse_n, int columns,
    DeviceActivations out, int32_t fault_op, DeviceFault* fault) {
  extern __shared__ float row[];
  const int token = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kQuantizeThreads)
    row[i] = __ldcg(x + static_cast<size_t>(token) * x_stride + i);
  __syncthreads();
  float r = 1.0f;
  if (norm_weight != nullptr) r = inverse_rms(row, columns, eps, inverse_n, row + columns);
  const size_t groups = static_cast<size_t>(out.groups);
  const GroupTarget target{reinterpret_cast<uint32_t*>(out.planes) + token * groups * 64,
                           out.sums16 + token * groups * 8, out.sums32 + token * groups * 4,
                           out.sums128 + token * groups, out.scales + token * groups};
  for (int group = warp; group < out.groups; group += kQuantizeThreads / 32) {
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

/// The largest ring in `bytes`; slots is 0 if there is no room for one.
RingShape ring_shape(const DeviceMatrix& m, int bytes) {
  const int groups = part_groups(m.kind), parts = kSegmentGroups / groups;
  RingShape ring{0, 0, groups * words_per_group(m.kind) * 16, m.header_bytes};
  for (int slots = 1; slots <= kMostSlots; ++slots) {
    // A header stays until the last part of its unit was used.
    const RingShape larger{slots, (slots + parts - 2) / parts + 1, ring.part_bytes,
                           ring.header_bytes};
    if (larger.bytes() > bytes) break;
    ring = larger;
  }
  return ring;
}

/// What a thread block of `n_warps` keeps in at most `limit` bytes; nothing if that is too little.
std::optional<SharedLayout> shared_layout(const GemvArguments& a, int n_warps, int limit) {
  const DeviceMatrix& first = a.matrices[0];
  SharedLayout at{};
  int offset = 0, most_tiles = 0;
  bool has_sums16 = false;
  for (int i = 0; i < n_matrices(a); ++i) {
    const DeviceMatrix& m = a.matrices[i];
    most_tiles = std::max(most_tiles, (m.tiles + a.n_blocks[i] - 1) / a.n_blocks[i]);
    has_sums16 = has_sums16 || m.kind == MatrixKind::kSuper6;
  }
  const auto take = [&offset](int bytes) {
    const int here = offset;
    offset += (bytes + 15) / 16 * 16;
    return here;
  };
  at.inputs = input_layout(offset, first.groups, a.tokens, has_sums16);
  at.zero = take(kZeroBytes);
  at.partial = take((first.columns + 255) / 256 * 4);
  at.segment_sums = take(most_tiles * first.segments * kTileRows * 4 * a.tokens);
  at.barriers = take(n_warps * kMostSlots * 8);
  at.rings = (offset + 127) / 128 * 128;
  const int room = (limit - at.rings) / n_warps / 128 * 128;
  for (int i = 0; i < n_matrices(a); ++i) {
    at.shapes[i] = ring_shape(a.matrices[i], room);
    if (at.shapes[i].slots == 0) return std::nullopt;
    at.ring_bytes = std::max(at.ring_bytes, (at.shapes[i].bytes() + 127) / 128 * 128);
  }
  at.bytes = at.rings + n_warps * at.ring_bytes;
  return at;
}

template <bool kSingle, int kWarps>
void launch_with(const GemvArguments& a, const SharedLayout& at, bool dependent,
                 cudaStream_t stream) {
  const auto kernel = gemv_kernel<kSingle, kWarps>;
  allow_shared(reinterpret_cast<const void*>(kernel), at.bytes, "the vector kernel");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(
      std::accumulate(std::begin(a.n_blocks), std::begin(a.n_blocks) + n_matrices(a), int32_t{0})));
  config.blockDim = dim3(kWarps * 32);
  config.dynamicSmemBytes = static_cast<size_t>(at.bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  ASSAY_CUDA(cudaLaunchKernelEx(&config, kernel, a, at));
}

}  // namespace

void launch_gemv(const GemvArguments& a, bool dependent, cudaStream_t stream) {
  const DeviceLimits& limits = current_limits();
  const auto share = [&](int n) {
    return std::min(limits.block_shared, limits.multi_shared / n - limits.reserved_shared);
  };
  if (a.tokens == 1 && a.input_given && dependent) {
    if (const auto at = shared_layout(a, kGivenWarps, share(16 / kGivenWarps)))
      return launch_with<true, kGivenWarps>(a, *at, dependent, stream);
  }
  for (const int bytes : {share(16 / kWarps), limits.block_shared}) {
    const auto at = shared_layout(a, kWarps, bytes);
    if (!at) continue;
    if (a.tokens == 1) return launch_with<true, kWarps>(a, *at, dependent, stream);
    return launch_with<false, kWarps>(a, *at, dependent, stream);
  }
  throw UnsupportedError("cuda: a matrix of " + std::to_string(a.matrices[0].columns) +
                         " columns does not fit the vector kernel on this GPU; use --device cpu");
}

void launch_norm_quantize(const float* x, int32_t x_stride, const float* norm_weight, float eps,
                          float inverse_n, int32_t columns, int32_t tokens, DeviceActivations out,
                          int32_t fault_op, DeviceFault* fault, cudaStream_t stream) {
  const int shared_bytes = (columns + (columns + 255) / 256) * 4;
  allow_shared(reinterpret_cast<const void*>(norm_quantize_kernel), shared_bytes,
               "the norm of so wide a vector");
  norm_quantize_kernel<<<static_cast<unsigned>(tokens), kQuantizeThreads,
                         static_cast<size_t>(shared_bytes), stream>>>(
      x, x_stride, norm_weight, eps, inverse_n, columns, out, fault_op, fault);
  ASSAY_CUDA(cudaGetLastError());
}

}  // namespace assay::cuda
