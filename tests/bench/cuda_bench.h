#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "convert/formats/format.h"
#include "runtime/device/cuda_support.h"
#include "runtime/ops/block_int16.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/linear_cuda.h"
#include "runtime/ops/linear_cuda_pack.h"
#include "tests/support/random.h"
#include "tests/support/weight_matrix.h"

// What the benchmarks of CUDA kernels share.

namespace assay::cuda {

template <typename T>
DeviceBuffer upload(const std::vector<T>& values) {
  DeviceBuffer buffer(values.size() * sizeof(T));
  ASSAY_CUDA(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice));
  return buffer;
}

/// Median microseconds of 7 runs of `body`, after one to warm up; `before` each, not timed.
template <typename Before, typename Body>
double median_us(cudaStream_t stream, const Before& before, const Body& body) {
  cudaEvent_t begin = nullptr, end = nullptr;
  ASSAY_CUDA(cudaEventCreate(&begin));
  ASSAY_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 8; ++i) {
    before();
    ASSAY_CUDA(cudaEventRecord(begin, stream));
    body();
    ASSAY_CUDA(cudaEventRecord(end, stream));
    ASSAY_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    ASSAY_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms);
  }
  ASSAY_CUDA(cudaEventDestroy(begin));
  ASSAY_CUDA(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + 3, times.end());
  return static_cast<double>(times[3]) * 1e3;
}

/// The same with nothing to do before.
template <typename Body>
double median_us(cudaStream_t stream, const Body& body) {
  return median_us(
      stream, [] {}, body);
}

/// A matrix of few rows that larger ones are made of, so that the host computes few results. Eleven
/// tiles: matrices that lie one after the other each begin with another of them.
class Pattern {
 public:
  static constexpr int64_t kTiles = 11;
  static constexpr int64_t kRows = kTiles * kTileRows;

  /// `group_size`: of a format that leaves it open; 0: the whole row.
  Pattern(const WeightFormat& format, int64_t group_size, int64_t columns, uint64_t seed)
      : columns_(columns), group_(group_of(format, group_size, columns)) {
    const test::WeightMatrix weights =
        test::random_weight_matrix(format, kRows, columns, group_size, seed);
    const auto read = [&](int64_t row, IntegerRow& out) {
      format.read_integers(weights.view, row, out);
    };
    packed_ = pack_matrix("bench", format, kRows, columns, group_, read);
    host_ = PackedMatrix::pack(format, kRows, columns, group_, read);
  }

  int64_t group_size() const { return group_; }

  /// A matrix of so many rows, a multiple of 16; without units.
  DeviceMatrix shape(int64_t rows) const {
    DeviceMatrix m = packed_.shape;
    m.rows = static_cast<int32_t>(rows);
    m.tiles = static_cast<int32_t>(rows / kTileRows);
    return m;
  }

  /// The units of `n_tiles` tiles; tile i is the pattern's i mod kTiles.
  DeviceBuffer repeat(int64_t n_tiles) const {
    const std::vector<std::byte>& from = packed_.units;
    DeviceBuffer buffer(from.size() / kTiles * static_cast<size_t>(n_tiles));
    size_t done = std::min(from.size(), buffer.bytes());
    ASSAY_CUDA(cudaMemcpy(buffer.data(), from.data(), done, cudaMemcpyHostToDevice));
    while (done < buffer.bytes()) {
      const size_t n = std::min(done, buffer.bytes() - done);
      ASSAY_CUDA(cudaMemcpy(buffer.data() + done, buffer.data(), n, cudaMemcpyDeviceToDevice));
      done += n;
    }
    return buffer;
  }

  /// The host's results for its rows; row r of the matrix whose first tile is tile t of repeat()
  /// has that of (16 t + r) mod kRows.
  std::vector<float> multiply(const std::vector<float>& x) const {
    BlockInt16 block;
    quantize_block_int16(x.data(), 1, columns_, columns_, block);
    std::vector<float> y(kRows);
    linear(host_, block, {}, y.data(), kRows);
    return y;
  }

 private:
  static int64_t group_of(const WeightFormat& format, int64_t group_size, int64_t columns) {
    if (group_size > 0) return group_size;
    return format.fixed_group() > 0 ? format.fixed_group() : columns;
  }

  int64_t columns_, group_;
  HostMatrix packed_;
  PackedMatrix host_;
};

}  // namespace assay::cuda
