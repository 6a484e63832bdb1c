// Cold GEMV on one GPU: every launch reads a matrix that no cache holds. Each result is compared
// with the host's bits before it is timed. Prints JSON: per format and shape GB/s and the share of
// the read bandwidth that the same run measured.
//
//   gemv_cuda_bench [--quick]

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "convert/formats/format.h"
#include "runtime/device/cuda_support.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/linear_cuda.h"
#include "runtime/ops/linear_cuda_pack.h"
#include "runtime/ops/read_bandwidth_cuda.h"
#include "tests/support/random.h"
#include "tests/support/weight_matrix.h"

namespace assay::cuda {
namespace {

struct Events {
  Events() {
    ASSAY_CUDA(cudaEventCreate(&begin));
    ASSAY_CUDA(cudaEventCreate(&end));
  }
  ~Events() {
    static_cast<void>(cudaEventDestroy(begin));
    static_cast<void>(cudaEventDestroy(end));
  }
  cudaEvent_t begin = nullptr, end = nullptr;
};

/// Median milliseconds of `repeats` runs of `body`, after one to warm up.
template <typename Body>
double median_ms(cudaStream_t stream, int repeats, const Body& body) {
  const Events events;
  std::vector<float> times;
  for (int i = 0; i < repeats + 1; ++i) {
    ASSAY_CUDA(cudaEventRecord(events.begin, stream));
    body();
    ASSAY_CUDA(cudaEventRecord(events.end, stream));
    ASSAY_CUDA(cudaEventSynchronize(events.end));
    float ms = 0;
    ASSAY_CUDA(cudaEventElapsedTime(&ms, events.begin, events.end));
    if (i > 0) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
  return static_cast<double>(times[times.size() / 2]);
}

constexpr int64_t kPatternRows = 64;  // distinct rows; larger matrices repeat them

/// Matrices whose tiles repeat those of a pattern.
struct Repeated {
  DeviceBuffer units;
  std::vector<DeviceMatrix> matrices;
};

DeviceBuffer repeat(const std::vector<std::byte>& blob, int pattern_tiles, int tiles, int copies) {
  const size_t tile_bytes = blob.size() / static_cast<size_t>(pattern_tiles);
  DeviceBuffer buffer(tile_bytes * static_cast<size_t>(tiles) * static_cast<size_t>(copies));
  size_t done = std::min(blob.size(), buffer.bytes());
  ASSAY_CUDA(cudaMemcpy(buffer.data(), blob.data(), done, cudaMemcpyHostToDevice));
  while (done < buffer.bytes()) {
    const size_t n = std::min(done, buffer.bytes() - done);
    ASSAY_CUDA(cudaMemcpy(buffer.data() + done, buffer.data(), n, cudaMemcpyDeviceToDevice));
    done += n;
  }
  return buffer;
}

Repeated make_repeated(const HostMatrix& pattern, int64_t rows, int copies) {
  Repeated result;
  const int tiles = static_cast<int>(rows / kTileRows);
  result.units = repeat(pattern.units, pattern.shape.tiles, tiles, copies);
  for (int i = 0; i < copies; ++i) {
    DeviceMatrix m = pattern.shape;
    m.rows = static_cast<int32_t>(rows);
    m.tiles = tiles;
    m.units = result.units.data() +
              result.units.bytes() / static_cast<size_t>(copies) * static_cast<size_t>(i);
    result.matrices.push_back(m);
  }
  return result;
}

class Bench {
 public:
  Bench() {
    ASSAY_CUDA(cudaDeviceGetAttribute(&n_multiprocessors_, cudaDevAttrMultiProcessorCount, 0));
    read_gbps_ = measure_read_gbps(stream_.get());
    fmt::print("{{\"read_gbps\": {:.0f}, \"gemv\": [\n", read_gbps_);
  }
  ~Bench() { fmt::print("\n]}}\n"); }

  void run(const WeightFormat& format, int64_t group_size, int64_t rows, int64_t columns);

 private:
  Stream stream_;
  double read_gbps_ = 0;
  int n_multiprocessors_ = 0;
  bool first_ = true;
};

void Bench::run(const WeightFormat& format, int64_t group_size, int64_t rows, int64_t columns) {
  const int64_t group = group_size > 0             ? group_size
                        : format.fixed_group() > 0 ? format.fixed_group()
                                                   : columns;
  const test::WeightMatrix weights =
      test::random_weight_matrix(format, kPatternRows, columns, group_size, 3);
  const auto read = [&](int64_t row, IntegerRow& out) {
    format.read_integers(weights.view, row, out);
  };
  const HostMatrix pattern = pack_matrix("bench", format, kPatternRows, columns, group, read);
  const double bytes =
      static_cast<double>(pattern.units.size()) * static_cast<double>(rows) / kPatternRows;
  const int copies = std::max(2, static_cast<int>(400e6 / bytes) + 1);
  const Repeated repeated = make_repeated(pattern, rows, copies);

  const std::vector<float> x = test::random_floats(static_cast<size_t>(columns), 4);
  BlockInt16 block;
  quantize_block_int16(x.data(), 1, columns, columns, block);
  std::vector<float> expected(kPatternRows), actual(static_cast<size_t>(rows));
  linear(PackedMatrix::pack(format, kPatternRows, columns, group, read), block, {}, expected.data(),
         kPatternRows);

  const int tiles = repeated.matrices[0].tiles, blocks = std::min(n_multiprocessors_, tiles);
  std::vector<BlockShare> host_shares;
  GemvArguments a;
  for (int b = 0; b < blocks; ++b) {
    host_shares.push_back({0, static_cast<int32_t>(int64_t{tiles} * b / blocks),
                           static_cast<int32_t>(int64_t{tiles} * (b + 1) / blocks)});
    a.most_tiles = std::max(a.most_tiles, host_shares.back().end - host_shares.back().begin);
  }
  const DeviceBuffer device_x(x.size() * 4), out(actual.size() * 4), fault(sizeof(DeviceFault)),
      shares(sizeof(BlockShare) * host_shares.size());
  ASSAY_CUDA(cudaMemcpy(device_x.data(), x.data(), x.size() * 4, cudaMemcpyHostToDevice));
  ASSAY_CUDA(cudaMemset(fault.data(), 0, sizeof(DeviceFault)));
  ASSAY_CUDA(cudaMemcpy(shares.data(), host_shares.data(), shares.bytes(), cudaMemcpyHostToDevice));
  a.shares = reinterpret_cast<const BlockShare*>(shares.data());
  a.x = reinterpret_cast<const float*>(device_x.data());
  a.out = reinterpret_cast<float*>(out.data());
  a.out_stride = static_cast<int32_t>(rows);
  a.fault_op = 1;
  a.fault = reinterpret_cast<DeviceFault*>(fault.data());
  for (const int i : {0, copies - 1}) {
    a.matrices[0] = repeated.matrices[static_cast<size_t>(i)];
    launch_gemv(a, blocks, false, stream_.get());
    ASSAY_CUDA(cudaStreamSynchronize(stream_.get()));
    ASSAY_CUDA(cudaMemcpy(actual.data(), out.data(), actual.size() * 4, cudaMemcpyDeviceToHost));
    for (size_t r = 0; r < actual.size(); ++r)
      if (std::memcmp(&actual[r], &expected[r % kPatternRows], 4) != 0)
        throw Error(ExitCode::kDifference,
                    fmt::format("{} {}x{}: row {} is {}, the host has {}", format.name(), rows,
                                columns, r, actual[r], expected[r % kPatternRows]));
  }
  const auto sweep = [&](bool dependent) {
    return median_ms(stream_.get(), 7,
                     [&] {
                       for (int round = 0; round < 4; ++round)
                         for (const DeviceMatrix& m : repeated.matrices) {
                           a.matrices[0] = m;
                           launch_gemv(a, blocks, dependent, stream_.get());
                         }
                     }) /
           (4 * copies);
  };
  const double ms = sweep(false), dependent_ms = sweep(true);
  const double gbps = bytes / ms / 1e6, dependent_gbps = bytes / dependent_ms / 1e6;
  fmt::print(
      "{}  {{\"format\": \"{}\", \"group\": {}, \"rows\": {}, \"columns\": {}, \"megabytes\": "
      "{:.1f}, "
      "\"us\": {:.2f}, \"gbps\": {:.0f}, \"share\": {:.3f}, \"dependent_us\": {:.2f}, "
      "\"dependent_share\": {:.3f}}}",
      first_ ? "" : ",\n", format.name(), group, rows, columns, bytes / 1e6, ms * 1e3, gbps,
      gbps / read_gbps_, dependent_ms * 1e3, dependent_gbps / read_gbps_);
  first_ = false;
  std::fflush(stdout);
}

void run(bool quick) {
  Bench bench;
  struct Shape {
    int64_t rows, columns;
  };
  std::vector<Shape> shapes = {{4096, 4096}, {28672, 4096}, {4096, 14336}};
  if (!quick)
    shapes.insert(shapes.end(),
                  {{8192, 2048}, {30720, 3840}, {3840, 15360}, {34816, 5120}, {5120, 17408}});
  for (const Shape& shape : shapes) {
    for (const auto& [name, group] : std::vector<std::pair<const char*, int64_t>>{{"W4", 128},
                                                                                  {"W4_ASYM", 128},
                                                                                  {"W4_ASYM", 32},
                                                                                  {"Q4_0", 0},
                                                                                  {"Q4_1", 0},
                                                                                  {"Q8_0", 0},
                                                                                  {"Q4_K", 0},
                                                                                  {"Q6_K", 0},
                                                                                  {"BF16", 0}}) {
      bench.run(*find_format(name), group, shape.rows, shape.columns);
    }
  }
}

}  // namespace
}  // namespace assay::cuda

int main(int argc, char** argv) {
  try {
    assay::cuda::run(argc > 1 && std::string(argv[1]) == "--quick");
    return 0;
  } catch (const assay::Error& error) {
    fmt::print(stderr, "gemv_cuda_bench: {}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
