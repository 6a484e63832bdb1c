// Cold GEMV on one GPU: many launches one after the other, of one format and shape, each on a
// matrix of its own that no cache holds (they are 4 GB together) and with a result of its own. The
// input is one fp32 vector; that every launch quantizes it for itself is inside the time. Every
// result is compared with the host's bits before it is timed. Prints JSON: per format and shape the
// microseconds of one GEMV and its share of the read bandwidth that the same run measured, launched
//   alone        each launch begins when the one before has ended;
//   dependent    as programmatic dependent launches: each loads weights while the one before runs,
//                and reads its input when that has ended, as if it were its result;
//   independent  the same, but the input was there from the start, so that launches overlap.
//
//   gemv_cuda_bench [--quick]      three shapes instead of eight

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/formats/format.h"
#include "runtime/device/cuda_support.h"
#include "runtime/ops/linear_cuda.h"
#include "runtime/ops/read_bandwidth_cuda.h"
#include "runtime/ops/step_tables_cuda.h"
#include "tests/bench/cuda_bench.h"
#include "tests/support/random.h"

namespace assay::cuda {
namespace {

constexpr double kAllBytes = 4e9;  // of the matrices that are read in turn

class Bench {
 public:
  Bench() : limits_(device_limits()) {
    read_gbps_ = measure_read_gbps(stream_.get());
    fmt::print("{{\"read_gbps\": {:.0f}, \"gemv\": [\n", read_gbps_);
  }
  ~Bench() { fmt::print("\n]}}\n"); }

  void run(const WeightFormat& format, int64_t group_size, int64_t rows, int64_t columns);

 private:
  Stream stream_;
  DeviceLimits limits_;
  double read_gbps_ = 0;
  bool first_ = true;
};

void Bench::run(const WeightFormat& format, int64_t group_size, int64_t rows, int64_t columns) {
  const Pattern pattern(format, group_size, columns, 3);
  const DeviceMatrix shape = pattern.shape(rows);
  const auto bytes = static_cast<double>(bytes_read(shape));
  const int copies = std::max(2, static_cast<int>(kAllBytes / bytes) + 1);
  const DeviceBuffer units = pattern.repeat(int64_t{shape.tiles} * copies);
  const std::vector<float> x = test::random_floats(static_cast<size_t>(columns), 4);
  const std::vector<float> expected = pattern.multiply(x);

  const DeviceBuffer device_x = upload(x), fault = upload(std::vector<int32_t>(4));
  std::vector<float> actual(static_cast<size_t>(rows) * static_cast<size_t>(copies));
  const DeviceBuffer out(actual.size() * sizeof(float));
  GemvArguments a;
  a.matrices[0] = shape;
  a.x = reinterpret_cast<const float*>(device_x.data());
  a.out_stride = static_cast<int32_t>(rows);
  a.fault_op = 1;
  a.fault = reinterpret_cast<DeviceFault*>(fault.data());
  const auto measure = [&](const char* how, bool dependent, bool input_given) {
    a.n_blocks[0] = input_given ? independent_blocks(shape.tiles, limits_.multiprocessors)
                                : std::min(limits_.multiprocessors, shape.tiles);
    a.input_given = input_given;
    cudaGraph_t graph = nullptr;
    ASSAY_CUDA(cudaMemsetAsync(out.data(), 0xff, out.bytes(), stream_.get()));
    ASSAY_CUDA(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    for (size_t i = 0; i < static_cast<size_t>(copies); ++i) {
      a.matrices[0].units = units.data() + matrix_bytes(shape) * i;
      a.out = reinterpret_cast<float*>(out.data()) + static_cast<size_t>(rows) * i;
      launch_gemv(a, dependent, stream_.get());
    }
    ASSAY_CUDA(cudaStreamEndCapture(stream_.get(), &graph));
    const GraphExec exec(graph);
    ASSAY_CUDA(cudaGraphDestroy(graph));
    exec.launch(stream_.get());
    ASSAY_CUDA(cudaStreamSynchronize(stream_.get()));
    ASSAY_CUDA(cudaMemcpy(actual.data(), out.data(), out.bytes(), cudaMemcpyDeviceToHost));
    for (size_t r = 0; r < actual.size(); ++r)
      if (std::memcmp(&actual[r], &expected[r % Pattern::kRows], sizeof(float)) != 0)
        throw Error(ExitCode::kDifference,
                    fmt::format("{} {}x{}, {}: result {} is {}, the host has {}", format.name(),
                                rows, columns, how, r, actual[r], expected[r % Pattern::kRows]));
    const double us = median_us(
                          stream_.get(), [] {}, [&] { exec.launch(stream_.get()); }) /
                      copies;
    fmt::print(", \"{}_us\": {:.2f}, \"{}\": {:.3f}", how, us, how, bytes / us / 1e3 / read_gbps_);
  };
  fmt::print(
      "{}  {{\"format\": \"{}\", \"group\": {}, \"rows\": {}, \"columns\": {}, \"megabytes\": "
      "{:.1f}",
      first_ ? "" : ",\n", format.name(), pattern.group_size(), rows, columns, bytes / 1e6);
  first_ = false;
  measure("alone", false, false);
  measure("dependent", true, false);
  measure("independent", true, true);
  fmt::print("}}");
  std::fflush(stdout);
}

struct Form {
  const char* format;
  int64_t group_size;
};

void run(bool quick) {
  Bench bench;
  struct Shape {
    int64_t rows, columns;
  };
  std::vector<Shape> shapes = {{4096, 4096}, {28672, 4096}, {4096, 14336}};
  if (!quick)
    shapes.insert(shapes.end(),
                  {{8192, 2048}, {30720, 3840}, {3840, 15360}, {34816, 5120}, {5120, 17408}});
  for (const Shape& shape : shapes)
    for (const auto& [format, group_size] :
         {Form{"W4", 32}, Form{"W4", 64}, Form{"W4", 128}, Form{"W4", 0}, Form{"W4_ASYM", 32},
          Form{"W4_ASYM", 64}, Form{"W4_ASYM", 128}, Form{"W4_ASYM", 0}, Form{"Q4_0", 0},
          Form{"Q4_1", 0}, Form{"Q8_0", 0}, Form{"Q4_K", 0}, Form{"Q6_K", 0}, Form{"BF16", 0}})
      bench.run(*find_format(format), group_size, shape.rows, shape.columns);
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
