#include "runtime/ops/step_tables_cuda.h"

#include <algorithm>

#include "convert/core/error.h"

namespace assay::cuda {

std::vector<int32_t> deal_blocks(const std::vector<DeviceMatrix>& all, int n_blocks, int granule) {
  std::vector<DeviceMatrix> matrices = all;
  for (DeviceMatrix& m : matrices) m.tiles /= granule;
  const auto cost = [](const DeviceMatrix& m) { return int64_t{m.segments} * m.unit_bytes; };
  const auto blocks_for = [&](const DeviceMatrix& m, int64_t most) {
    const int64_t tiles = most / cost(m);
    return (m.tiles + tiles - 1) / tiles;
  };
  std::vector<int64_t> candidates;
  int64_t least = 0;
  for (const DeviceMatrix& m : matrices) {
    least = std::max(least, cost(m));
    for (int64_t tiles = 1; tiles <= m.tiles; ++tiles) candidates.push_back(tiles * cost(m));
  }
  std::erase_if(candidates, [least](int64_t bytes) { return bytes < least; });
  std::sort(candidates.begin(), candidates.end());
  const auto enough = [&](int64_t most) {
    int64_t total = 0;
    for (const DeviceMatrix& m : matrices) total += blocks_for(m, most);
    return total <= n_blocks;
  };
  const auto most = std::partition_point(candidates.begin(), candidates.end(),
                                         [&](int64_t bytes) { return !enough(bytes); });
  std::vector<int32_t> blocks;
  int64_t left = n_blocks;
  for (const DeviceMatrix& m : matrices) {
    blocks.push_back(most == candidates.end() ? 1 : static_cast<int32_t>(blocks_for(m, *most)));
    left -= blocks.back();
  }
  for (; left > 0; --left) {  // the rest where the shares are largest
    size_t largest = matrices.size();
    for (size_t i = 0; i < matrices.size(); ++i) {
      const auto share = [&](size_t k) {
        return matrices[k].tiles * cost(matrices[k]) / blocks[k];
      };
      if (blocks[i] < matrices[i].tiles &&
          (largest == matrices.size() || share(i) > share(largest)))
        largest = i;
    }
    if (largest == matrices.size()) break;
    ++blocks[largest];
  }
  return blocks;
}

int32_t independent_blocks(int32_t tiles, int n_multiprocessors) {
  const int32_t most = (tiles + n_multiprocessors - 1) / n_multiprocessors;
  const bool is_even = tiles * 20 >= most * n_multiprocessors * 19;
  return is_even ? std::min(n_multiprocessors, tiles) : (tiles + most - 1) / most;
}

std::vector<BlockShare> deal_tiles(const std::vector<DeviceMatrix>& matrices, int n_blocks,
                                   int granule) {
  const std::vector<int32_t> blocks = deal_blocks(matrices, n_blocks, granule);
  std::vector<BlockShare> shares;
  for (size_t i = 0; i < matrices.size(); ++i)
    for (int64_t b = 0; b < blocks[i]; ++b)
      shares.push_back(
          {static_cast<int32_t>(i),
           static_cast<int32_t>(matrices[i].tiles / granule * b / blocks[i]) * granule,
           static_cast<int32_t>(matrices[i].tiles / granule * (b + 1) / blocks[i]) * granule});
  return shares;
}

/// Whether the last stage can quantize what `reader` reads: whole groups of 128 columns lie in one
/// thread block, and so dealt they keep most of the card busy.
bool StepTables::can_quantize_for(const GemvArguments& reader) const {
  if (stages_.empty() || reader.norm_weight != nullptr) return false;
  const StepStage& writer = stages_.back();
  if (writer.is_attention != 0) {
    const AttentionArguments& a = writer.attention;
    return reader.x == a.out && a.n_heads / a.n_kv_heads * a.head_dim % kGroupColumns == 0;
  }
  const DeviceMatrix& m = writer.linear.matrices[0];
  return writer.linear.epilogue == Epilogue::kSwiGlu && reader.x == writer.linear.out &&
         m.rows % (2 * kGroupColumns) == 0 &&
         m.rows / (2 * kGroupColumns) * 5 >= limits_.multiprocessors * 4;
}

std::byte* StepTables::take(uint64_t bytes) {
  std::byte* taken = vectors_ + used_;
  used_ += (bytes + 127) / 128 * 128;
  ASSAY_CHECK(used_ <= capacity_);
  return taken;
}

/// The last stage is followed by another: it writes to memory of its own.
void StepTables::hand_on(bool quantized) {
  StepStage& writer = stages_.back();
  const bool is_attention = writer.is_attention != 0;
  float*& out = is_attention ? writer.attention.out : writer.linear.out;
  uint64_t columns = 0;
  if (is_attention) {
    columns = static_cast<uint64_t>(writer.attention.n_heads) *
              static_cast<uint64_t>(writer.attention.head_dim);
  } else {
    for (int i = 0; i < n_matrices(writer.linear); ++i)
      columns = std::max(columns, static_cast<uint64_t>(writer.linear.out_offset[i] +
                                                        writer.linear.matrices[i].rows));
    if (writer.linear.epilogue == Epilogue::kSwiGlu) columns /= 2;
  }
  if (quantized) {
    handed_.erase(out);
    writer.quantized_output = take(columns / kGroupColumns * kHandedGroupBytes);
  } else {
    auto* to = reinterpret_cast<float*>(take(columns * sizeof(float)));
    handed_[out] = to;
    out = to;
  }
}

/// Where a vector lies; `handed`: whether a stage writes it.
const float* StepTables::current(const float* vector, int32_t& handed) const {
  const auto found = handed_.find(vector);
  handed = found == handed_.end() ? 0 : 1;
  return found == handed_.end() ? vector : found->second;
}

void StepTables::add_linear(const GemvArguments& linear) {
  StepStage stage;
  stage.index = static_cast<int32_t>(stages_.size());
  stage.linear = linear;
  const bool quantized = can_quantize_for(linear);
  if (!stages_.empty()) hand_on(quantized);
  if (quantized) {
    StepStage& writer = stages_.back();
    writer.output_fault_op = linear.fault_op;
    stage.quantized_input = writer.quantized_output;
    if (writer.is_attention == 0)
      deal_last(kTileRows);  // 16 tiles of 8 results are a group
    else
      writer.most_parts = step_most_parts(writer.attention, true);
  } else {
    stage.linear.x = current(linear.x, stage.input_handed);
  }
  stage.residual = current(linear.out, stage.residual_handed);
  stages_.push_back(stage);
  shares_.resize(shares_.size() + static_cast<size_t>(limits_.multiprocessors));
  streams_.resize(streams_.size() + static_cast<size_t>(limits_.multiprocessors));
  deal_last(1);
}

/// Deals the tiles of the last stage, a linear, in multiples of `granule`.
void StepTables::deal_last(int granule) {
  StepStage& stage = stages_.back();
  std::vector<DeviceMatrix> matrices;
  int chunk_tiles = 0;
  for (const DeviceMatrix& m : stage.linear.matrices) {
    if (m.units == nullptr) break;
    matrices.push_back(m);
    has_kernels_ = has_kernels_ && m.columns % 4 == 0;
    const int chunk = step_chunk_tiles(m, granule);
    chunk_tiles = matrices.size() == 1 ? chunk : std::min(chunk_tiles, chunk);
    part_bytes_ = std::max(part_bytes_, step_part_bytes(m));
  }
  std::vector<BlockShare> shares = deal_tiles(matrices, limits_.multiprocessors, granule);
  // Thread blocks without a share lie evenly between the others, as some multiprocessors have a
  // path to memory in common.
  const auto blocks = static_cast<size_t>(limits_.multiprocessors);
  std::fill(shares_.end() - limits_.multiprocessors, shares_.end(), BlockShare{});
  std::fill(streams_.end() - limits_.multiprocessors, streams_.end(), WeightStream{});
  int most_tiles = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const BlockShare& share = shares[i];
    const size_t b = i * blocks / shares.size();
    shares_[shares_.size() - blocks + b] = share;
    streams_[streams_.size() - blocks + b] =
        step_stream(matrices[static_cast<size_t>(share.matrix)], share.begin, share.end, halves_);
    most_tiles = std::max(most_tiles, share.end - share.begin);
  }
  const bool has_sums16 = std::any_of(matrices.begin(), matrices.end(), [](const DeviceMatrix& m) {
    return m.kind == MatrixKind::kSuper6;
  });
  stage.layout = step_linear_layout(matrices.front(), std::min(chunk_tiles, most_tiles),
                                    stage.linear.norm_weight != nullptr, has_sums16);
  stage.layout.halves = halves_ ? 1 : 0;
  stage.layout.stream = static_cast<int32_t>(streams_.size() / blocks) - 1;
  uint64_t bytes = 0;
  for (const DeviceMatrix& m : matrices) bytes += bytes_read(m);
  // Where a stage has far more than the rings hold, those that are through early would else fill
  // theirs with the next stage's before the last have their own.
  stage.layout.held = bytes > 2 * rings_ ? 4 : 0;
  work_bytes_ = std::max(work_bytes_, step_work_bytes(stage));
}

void StepTables::add_attention(const AttentionArguments& attention) {
  if (!stages_.empty()) hand_on(false);
  StepStage stage;
  stage.index = static_cast<int32_t>(stages_.size());
  stage.is_attention = 1;
  stage.attention = attention;
  stage.attention.tokens = 1;
  stage.attention.qkv = current(attention.qkv, stage.input_handed);
  stage.most_parts = step_most_parts(attention, false);
  shares_.resize(shares_.size() + static_cast<size_t>(limits_.multiprocessors));
  if (head_dim_ == 0) {
    cache_type_ = attention.cache_type;
    head_dim_ = attention.head_dim;
  }
  has_kernels_ = has_kernels_ && step_has_attention(attention) &&
                 attention.cache_type == cache_type_ && attention.head_dim == head_dim_;
  work_bytes_ = std::max(work_bytes_, step_work_bytes(stage));
  stages_.push_back(stage);
}

bool StepTables::can_run() const {
  return limits_.major >= 9 && has_kernels_ && sizes().ring_bytes >= part_bytes_;
}

StepArguments StepTables::sizes() const {
  StepArguments a;
  a.n_stages = static_cast<int32_t>(stages_.size());
  a.n_streams =
      static_cast<int32_t>(streams_.size() / static_cast<size_t>(limits_.multiprocessors));
  a.vectors = vectors_;
  a.vector_bytes = used_;
  a.work_bytes = work_bytes_;
  a.ring_bytes = step_ring_bytes(limits_.block_shared, work_bytes_, a.n_streams);
  if (head_dim_ != 0) {
    a.cache_type = cache_type_;
    a.head_dim = head_dim_;
  }
  return a;
}

}  // namespace assay::cuda
