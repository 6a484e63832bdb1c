// The linears of whole models in the kernel for decode steps, without attention: norm + q/k/v; o of
// q + residual; norm + gate/up + SwiGLU; down + residual; for each layer, with weights of its own.
// Every stage reads what the one before it computed. The residual after the last layer is compared
// with the host's bits before it is timed; norms, quantization and all waiting are inside the time.
// Prints JSON: per stack the microseconds of one layer, its share of the read bandwidth that the
// same run measured, and the microseconds of each stage, from the last thread block of the one
// before to its own last (medians over layers); from the same start the medians, over thread blocks
// too, until the input is there, it is quantized, the products are done, the results are stored.
//
//   stack_cuda_bench [FORMAT [STACK]]      of the weights, W4_ASYM in groups of 128 if not given;
//                                          12B, 8B or 1B, all if not given

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/formats/format.h"
#include "runtime/device/cuda_support.h"
#include "runtime/math.h"
#include "runtime/ops/linear_cuda.h"
#include "runtime/ops/read_bandwidth_cuda.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/ops/step_tables_cuda.h"
#include "tests/bench/cuda_bench.h"
#include "tests/support/random.h"

namespace assay::cuda {
namespace {

constexpr float kEps = 1e-6f;

struct StackShape {
  const char* name;
  int64_t layers, hidden, intermediate, q, kv;  // columns of q; of k and of v
};

/// The matrices of one linear of all layers, one after the other.
class Weights {
 public:
  Weights(const WeightFormat& format, int64_t rows, int64_t columns, int64_t layers, uint64_t seed)
      : pattern_(format, format.fold() == Fold::kGroup && format.fixed_group() == 0 ? 128 : 0,
                 columns, seed),
        shape_(pattern_.shape(rows)),
        units_(pattern_.repeat(int64_t{shape_.tiles} * layers)) {}

  DeviceMatrix of_layer(int64_t layer) const {
    DeviceMatrix m = shape_;
    m.units = units_.data() + matrix_bytes(m) * static_cast<size_t>(layer);
    return m;
  }

  std::vector<float> multiply(int64_t layer, const std::vector<float>& x) const {
    const std::vector<float> distinct = pattern_.multiply(x);
    std::vector<float> y(static_cast<size_t>(shape_.rows));
    for (size_t r = 0; r < y.size(); ++r)
      y[r] = distinct[(static_cast<size_t>(layer) * y.size() + r) % Pattern::kRows];
    return y;
  }

 private:
  Pattern pattern_;
  DeviceMatrix shape_;
  DeviceBuffer units_;
};

class Stack {
 public:
  Stack(const StackShape& shape, const WeightFormat& format)
      : shape_(shape),
        q_(format, shape.q, shape.hidden, shape.layers, 11),
        k_(format, shape.kv, shape.hidden, shape.layers, 12),
        v_(format, shape.kv, shape.hidden, shape.layers, 13),
        o_(format, shape.hidden, shape.q, shape.layers, 14),
        gate_up_(format, 2 * shape.intermediate, shape.hidden, shape.layers, 15),
        down_(format, shape.hidden, shape.intermediate, shape.layers, 16),
        norm_(test::random_floats(static_cast<size_t>(shape.hidden), 17)),
        x_(test::random_floats(static_cast<size_t>(shape.hidden), 18)) {}

  /// The residual after all layers, computed by the host.
  std::vector<float> on_host() const {
    std::vector<float> x = x_, normed(x.size());
    const auto norm = [&] {
      rms_norm(x.data(), norm_.data(), kEps, 1, shape_.hidden, normed.data());
    };
    const auto add = [&](const std::vector<float>& y) {
      for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] + y[i];
    };
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      norm();
      add(o_.multiply(layer, q_.multiply(layer, normed)));
      norm();
      const std::vector<float> both = gate_up_.multiply(layer, normed);
      std::vector<float> y(both.size() / 2);
      for (size_t i = 0; i < y.size(); ++i) {
        const size_t row = i / 8 * 16 + i % 8;
        y[i] = silu_canonical(both[row]) * both[row + 8];
      }
      add(down_.multiply(layer, y));
    }
    return x;
  }

  void run(double read_gbps, cudaStream_t stream) const;

 private:
  uint64_t layer_bytes() const {
    uint64_t bytes = 0;
    for (const Weights* weights : {&q_, &k_, &v_, &o_, &gate_up_, &down_})
      bytes += bytes_read(weights->of_layer(0));
    return bytes;
  }

  StackShape shape_;
  Weights q_, k_, v_, o_, gate_up_, down_;
  std::vector<float> norm_, x_;
};

void Stack::run(double read_gbps, cudaStream_t stream) const {
  const DeviceLimits limits = device_limits();
  const auto floats = [](int64_t n) { return DeviceBuffer(static_cast<size_t>(n) * 4); };
  const DeviceBuffer start = upload(x_), norm = upload(norm_), x = floats(shape_.hidden),
                     qkv = floats(shape_.q + 2 * shape_.kv), y = floats(shape_.intermediate),
                     fault = upload(std::vector<int32_t>(4)),
                     zero = upload(std::vector<int32_t>(1));
  const DeviceBuffer vectors(static_cast<size_t>(shape_.layers) *
                             (step_vector_bytes(shape_.q + 2 * shape_.kv) +
                              2 * step_vector_bytes(shape_.hidden) +
                              step_vector_bytes(shape_.intermediate)));
  const auto as_floats = [](const DeviceBuffer& b) { return reinterpret_cast<float*>(b.data()); };

  StepTables tables(limits, vectors.data(), vectors.bytes(), layer_bytes() / 4);
  const auto bytes = static_cast<double>(layer_bytes());
  const auto add = [&](std::vector<DeviceMatrix> matrices, const DeviceBuffer& from, bool normed,
                       const DeviceBuffer& to, Epilogue epilogue) {
    GemvArguments a;
    int32_t offset = 0;
    for (size_t i = 0; i < matrices.size(); ++i) {
      a.matrices[i] = matrices[i];
      a.out_offset[i] = offset;
      offset += matrices[i].rows;
    }
    a.x = as_floats(from);
    if (normed) a.norm_weight = as_floats(norm);
    a.eps = kEps;
    a.inverse_n = 1.0f / static_cast<float>(matrices[0].columns);
    a.out = as_floats(to);
    a.epilogue = epilogue;
    a.fault_op = 1;
    a.fault = reinterpret_cast<DeviceFault*>(fault.data());
    tables.add_linear(a);
  };
  for (int64_t layer = 0; layer < shape_.layers; ++layer) {
    add({q_.of_layer(layer), k_.of_layer(layer), v_.of_layer(layer)}, x, true, qkv,
        Epilogue::kStore);
    add({o_.of_layer(layer)}, qkv, false, x, Epilogue::kAddTo);
    add({gate_up_.of_layer(layer)}, x, true, y, Epilogue::kSwiGlu);
    add({down_.of_layer(layer)}, y, false, x, Epilogue::kAddTo);
  }
  if (!tables.can_run())
    throw UnsupportedError("stack_cuda_bench needs compute capability 9.0 and its shared memory");
  const size_t n_stages = tables.stages().size();
  const auto grid = static_cast<size_t>(limits.multiprocessors);
  const DeviceBuffer stages = upload(tables.stages()), shares = upload(tables.shares()),
                     streams = upload(tables.streams()),
                     device_times(n_stages * grid * sizeof(StageTimes));
  StepArguments a = tables.sizes();
  a.stages = reinterpret_cast<const StepStage*>(stages.data());
  a.shares = reinterpret_cast<const BlockShare*>(shares.data());
  a.streams = reinterpret_cast<const WeightStream*>(streams.data());
  a.positions = a.sequences = reinterpret_cast<const int32_t*>(zero.data());
  const auto reset = [&] {
    ASSAY_CUDA(
        cudaMemcpyAsync(x.data(), start.data(), x.bytes(), cudaMemcpyDeviceToDevice, stream));
  };
  const auto launch = [&] { launch_step(a, limits.multiprocessors, stream); };

  const std::vector<float> expected = on_host();
  std::vector<float> actual(expected.size());
  const auto check = [&] {
    ASSAY_CUDA(cudaStreamSynchronize(stream));
    ASSAY_CUDA(cudaMemcpy(actual.data(), x.data(), x.bytes(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < actual.size(); ++i)
      if (std::memcmp(&actual[i], &expected[i], sizeof(float)) != 0)
        throw Error(ExitCode::kDifference, fmt::format("{}: residual {} is {}, the host has {}",
                                                       shape_.name, i, actual[i], expected[i]));
  };
  reset();
  launch();
  check();
  const auto layers = static_cast<double>(shape_.layers);
  const double us = median_us(stream, reset, launch) / layers;
  check();

  a.times = reinterpret_cast<StageTimes*>(device_times.data());
  reset();
  launch();
  check();
  std::vector<StageTimes> times(n_stages * grid);
  ASSAY_CUDA(
      cudaMemcpy(times.data(), device_times.data(), device_times.bytes(), cudaMemcpyDeviceToHost));
  // Of the four linears: until the last thread block ended, and the medians of all until each
  // point.
  constexpr std::array<uint64_t StageTimes::*, 4> kPoints = {
      &StageTimes::arrived, &StageTimes::prepared, &StageTimes::computed, &StageTimes::end};
  std::array<std::vector<double>, 4> of_stage;
  std::array<std::array<std::vector<double>, kPoints.size()>, 4> until;
  uint64_t before = 0;
  for (size_t s = 0; s < n_stages; ++s) {
    uint64_t end = 0;
    for (size_t b = 0; b < grid; ++b) {
      const StageTimes& of_block = times[s * grid + b];
      end = std::max(end, of_block.end);
      if (s < 4 || tables.shares()[s * grid + b].begin == tables.shares()[s * grid + b].end)
        continue;
      for (size_t p = 0; p < kPoints.size(); ++p)
        until[s % 4][p].push_back(
            static_cast<double>(static_cast<int64_t>(of_block.*kPoints[p] - before)) * 1e-3);
    }
    if (s >= 4) of_stage[s % 4].push_back(static_cast<double>(end - before) * 1e-3);
    before = end;
  }
  const auto median = [](std::vector<double>& all) {
    std::nth_element(all.begin(), all.begin() + static_cast<long>(all.size() / 2), all.end());
    return all[all.size() / 2];
  };
  fmt::print(
      "{{\"stack\": \"{}\", \"layers\": {}, \"megabytes_per_layer\": {:.1f}, \"us_per_layer\": "
      "{:.2f}, \"share\": {:.3f}",
      shape_.name, shape_.layers, bytes / 1e6, us, bytes / us / 1e3 / read_gbps);
  constexpr std::array<const char*, 4> kNames = {"qkv", "o", "gate_up", "down"};
  for (size_t s = 0; s < kNames.size(); ++s) {
    fmt::print(",\n   \"{}_us\": {:.2f}, \"{}_points_us\": [", kNames[s], median(of_stage[s]),
               kNames[s]);
    for (size_t p = 0; p < kPoints.size(); ++p)
      fmt::print("{}{:.2f}", p == 0 ? "" : ", ", median(until[s][p]));
    fmt::print("]");
  }
  fmt::print("}}");
  std::fflush(stdout);
}

void run(const std::string& name, const std::string& only) {
  const WeightFormat* format = find_format(name);
  if (format == nullptr) throw UsageError(name + ": no such format");
  const Stream stream;
  const double read_gbps = measure_read_gbps(stream.get());
  fmt::print("{{\"read_gbps\": {:.0f}, \"stacks\": [\n", read_gbps);
  const char* separator = "  ";
  for (const StackShape& shape : {StackShape{"12B", 48, 3840, 15360, 4096, 2048},
                                  StackShape{"8B", 32, 4096, 14336, 4096, 1024},
                                  StackShape{"1B", 16, 2048, 8192, 2048, 512}}) {
    if (!only.empty() && only != shape.name) continue;
    fmt::print("{}", separator);
    Stack(shape, *format).run(read_gbps, stream.get());
    separator = ",\n  ";
  }
  fmt::print("\n]}}\n");
}

}  // namespace
}  // namespace assay::cuda

int main(int argc, char** argv) {
  try {
    assay::cuda::run(argc > 1 ? argv[1] : "W4_ASYM", argc > 2 ? argv[2] : "");
    return 0;
  } catch (const assay::Error& error) {
    fmt::print(stderr, "stack_cuda_bench: {}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
