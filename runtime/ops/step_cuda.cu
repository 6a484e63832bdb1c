#include <algorithm>

#include "runtime/ops/step_cuda.h"
#include "runtime/ops/step_kernel_cuda.cuh"

namespace assay::cuda {

#define ASSAY_STEP_KERNEL(type, head_dim)                                                   \
  extern template void launch_step_as<CacheType::type, head_dim>(const StepArguments&, int, \
                                                                 cudaStream_t)
ASSAY_STEP_KERNEL(kF16, 32);
ASSAY_STEP_KERNEL(kF16, 64);
ASSAY_STEP_KERNEL(kF16, 128);
ASSAY_STEP_KERNEL(kF16, 256);
ASSAY_STEP_KERNEL(kBF16, 32);
ASSAY_STEP_KERNEL(kBF16, 64);
ASSAY_STEP_KERNEL(kBF16, 128);
ASSAY_STEP_KERNEL(kBF16, 256);
ASSAY_STEP_KERNEL(kF32, 32);
ASSAY_STEP_KERNEL(kF32, 64);
ASSAY_STEP_KERNEL(kF32, 128);
#undef ASSAY_STEP_KERNEL

namespace {

constexpr int kSumBytes = 8 * 1024;  // segment sums, about
constexpr int kRowBytes = 1024;      // of a warp's block of the norm

}  // namespace

StepLinearLayout step_linear_layout(const DeviceMatrix& m, int chunk_tiles, bool has_norm,
                                    bool has_sums16) {
  StepLinearLayout at;
  int offset = 0;
  at.inputs = input_layout(offset, m.groups, 1, has_sums16);
  at.partial = offset;
  at.sums = step::align_up(offset + (m.columns + 255) / 256 * 4, 16);
  at.outputs = at.sums + chunk_tiles * m.segments * kTileRows * 4;
  at.bytes = at.outputs + chunk_tiles * kTileRows * 4;
  if (has_norm) at.bytes = std::max(at.bytes, at.sums + step::kWarps * kRowBytes);
  at.columns = m.columns;
  at.groups = m.groups;
  at.segments = m.segments;
  at.segment_step = step::kWarps % m.segments;
  at.inverse_segments = (65536 + m.segments - 1) / m.segments;
  at.chunk_tiles = chunk_tiles;
  return at;
}

int step_work_bytes(const StepStage& stage) {
  if (stage.is_attention == 0) return stage.layout.bytes;
  const AttentionArguments& a = stage.attention;
  return step::attention_layout(a.n_heads / a.n_kv_heads, a.head_dim,
                                a.cache_type == CacheType::kF32 ? 4 : 2)
      .bytes;
}

int step_ring_bytes(int shared_bytes, int work_bytes, int n_streams) {
  const int left = shared_bytes - step::rings_at(work_bytes) -
                   n_streams * static_cast<int>(sizeof(WeightStream));
  return std::clamp(left / step::kWarps / 128 * 128, 0, step::kEntries * step::kLeastPiece);
}

int step_part_bytes(const DeviceMatrix& m) {
  return m.header_bytes + part_groups(m.kind) * words_per_group(m.kind) * 16;
}

WeightStream step_stream(const DeviceMatrix& m, int begin, int end, bool halves) {
  const int groups = halves ? std::min(part_groups(m.kind), 2) : part_groups(m.kind);
  const int group_bytes = words_per_group(m.kind) * 16;
  WeightStream stream;
  stream.units = unit_at(m, begin, 0);
  stream.n_units = (end - begin) * m.segments;
  stream.unit_bytes = m.unit_bytes;
  stream.first_bytes = static_cast<uint16_t>(m.header_bytes + groups * group_bytes);
  stream.rest_bytes = static_cast<uint16_t>(groups * group_bytes);
  stream.last_bytes = static_cast<uint16_t>(((m.groups - 1) % kSegmentGroups + 1) * group_bytes);
  stream.segments = static_cast<uint16_t>(m.segments);
  stream.segment_step = static_cast<uint8_t>(step::kWarps % m.segments);
  stream.parts = static_cast<uint8_t>(kSegmentGroups / groups);
  return stream;
}

int step_chunk_tiles(const DeviceMatrix& m, int granule) {
  return std::max(1, kSumBytes / (m.segments * kTileRows * 4) / granule) * granule;
}

uint64_t step_vector_bytes(int64_t columns) {
  const auto groups = static_cast<uint64_t>((columns + kGroupColumns - 1) / kGroupColumns);
  return groups * kGroupColumns * 4;  // more than quantized
}

bool step_has_attention(const AttentionArguments& a) {
  const bool has_size = a.head_dim == 32 || a.head_dim == 64 || a.head_dim == 128 ||
                        (a.head_dim == 256 && a.cache_type != CacheType::kF32);
  return has_size && a.n_heads % a.n_kv_heads == 0;
}

int step_most_parts(const AttentionArguments& a, bool whole_groups) {
  const int per_kv = a.n_heads / a.n_kv_heads;
  for (int parts = per_kv; parts > 1; --parts)
    if (per_kv % parts == 0 && (!whole_groups || per_kv / parts * a.head_dim % kGroupColumns == 0))
      return parts;
  return 1;
}

namespace {

constexpr int kResetThreads = 256;

/// No result is there.
__global__ __launch_bounds__(kResetThreads) void reset_kernel(uint4* vectors, uint64_t n) {
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * kResetThreads;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * kResetThreads + threadIdx.x; i < n;
       i += step)
    vectors[i] = make_uint4(kNotThere, kNotThere, kNotThere, kNotThere);
}

template <CacheType kType>
void launch_with(const StepArguments& arguments, int grid, cudaStream_t stream) {
  switch (arguments.head_dim) {
    case 32:
      return launch_step_as<kType, 32>(arguments, grid, stream);
    case 64:
      return launch_step_as<kType, 64>(arguments, grid, stream);
    case 128:
      return launch_step_as<kType, 128>(arguments, grid, stream);
    default:
      if constexpr (kType != CacheType::kF32) launch_step_as<kType, 256>(arguments, grid, stream);
  }
}

}  // namespace

void launch_step(const StepArguments& arguments, int grid, cudaStream_t stream) {
  reset_kernel<<<static_cast<unsigned>(2 * grid), kResetThreads, 0, stream>>>(
      reinterpret_cast<uint4*>(arguments.vectors), arguments.vector_bytes / sizeof(uint4));
  ASSAY_CUDA(cudaGetLastError());
  switch (arguments.cache_type) {
    case CacheType::kF16:
      return launch_with<CacheType::kF16>(arguments, grid, stream);
    case CacheType::kBF16:
      return launch_with<CacheType::kBF16>(arguments, grid, stream);
    case CacheType::kF32:
      return launch_with<CacheType::kF32>(arguments, grid, stream);
  }
}

}  // namespace assay::cuda
