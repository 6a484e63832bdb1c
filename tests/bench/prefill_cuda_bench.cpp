// The kernels of a prompt of 2,048 tokens on one GPU: matrices of real shapes, and attention. Every
// matrix result is compared with the host's bits before it is timed (attention has a test of its
// own). Prints JSON: microseconds of one launch, and billions of products per second.
//
//   prefill_cuda_bench

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>
#include <string>
#include <vector>

#include "convert/formats/format.h"
#include "runtime/device/cuda_support.h"
#include "runtime/ops/attention_cuda.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/linear_cuda.h"
#include "runtime/ops/linear_cuda_pack.h"
#include "tests/bench/cuda_bench.h"
#include "tests/support/random.h"
#include "tests/support/weight_matrix.h"

namespace assay::cuda {
namespace {

constexpr int kTokens = 2048;
constexpr int64_t kPatternRows = 64;  // distinct rows; matrices repeat them

DeviceBuffer zeros(size_t bytes) {
  DeviceBuffer buffer(bytes);
  ASSAY_CUDA(cudaMemset(buffer.data(), 0, bytes));
  return buffer;
}

void report(const std::string& what, double us, double products) {
  fmt::print("{{\"what\": \"{}\", \"us\": {:.1f}, \"giga_products_per_s\": {:.0f}}}\n", what, us,
             products / us * 1e-3);
  std::fflush(stdout);
}

void run_matrix(cudaStream_t stream, const std::string& name, int64_t rows, int64_t columns) {
  const WeightFormat& format = *find_format(name);
  const int64_t group = format.fixed_group() > 0        ? format.fixed_group()
                        : format.fold() == Fold::kFloat ? columns
                                                        : 128;
  const test::WeightMatrix weights = test::random_weight_matrix(
      format, kPatternRows, columns, format.fold() == Fold::kFloat ? 0 : group, 3);
  const auto read = [&](int64_t row, IntegerRow& out) {
    format.read_integers(weights.view, row, out);
  };
  const HostMatrix pattern = pack_matrix("bench", format, kPatternRows, columns, group, read);
  const auto repeats = static_cast<size_t>(rows / kPatternRows);
  const DeviceBuffer units(pattern.units.size() * repeats);
  for (size_t i = 0; i < repeats; ++i)
    ASSAY_CUDA(cudaMemcpy(units.data() + i * pattern.units.size(), pattern.units.data(),
                          pattern.units.size(), cudaMemcpyHostToDevice));
  DeviceMatrix m = pattern.shape;
  m.units = units.data();
  m.rows = static_cast<int32_t>(rows);
  m.tiles = m.rows / kTileRows;

  const std::vector<float> x = test::random_floats(static_cast<size_t>(kTokens * columns), 4);
  const DeviceBuffer device_x = upload(x), fault = zeros(sizeof(DeviceFault));
  const auto groups = static_cast<size_t>(m.groups);
  const DeviceBuffer planes(kTokens * groups * 256), sums16(kTokens * groups * 32),
      sums32(kTokens * groups * 16), sums128(kTokens * groups * 4), scales(kTokens * groups * 4),
      out(static_cast<size_t>(kTokens * rows) * 4);
  const DeviceActivations activations{
      reinterpret_cast<int8_t*>(planes.data()),  reinterpret_cast<int32_t*>(sums16.data()),
      reinterpret_cast<int32_t*>(sums32.data()), reinterpret_cast<int32_t*>(sums128.data()),
      reinterpret_cast<float*>(scales.data()),   m.groups};
  auto* const device_fault = reinterpret_cast<DeviceFault*>(fault.data());
  const auto quantize = [&] {
    launch_norm_quantize(
        reinterpret_cast<const float*>(device_x.data()), static_cast<int32_t>(columns), nullptr, 0,
        0, static_cast<int32_t>(columns), kTokens, activations, 1, device_fault, stream);
  };
  const auto multiply = [&] {
    launch_gemm(m, activations, nullptr, reinterpret_cast<float*>(out.data()), m.rows, kTokens,
                Epilogue::kStore, 1, device_fault, stream);
  };
  quantize();
  multiply();
  ASSAY_CUDA(cudaStreamSynchronize(stream));
  for (const int64_t token : {0, 31, 32, kTokens - 1}) {
    BlockInt16 block;
    quantize_block_int16(x.data() + token * columns, 1, columns, columns, block);
    std::vector<float> expected(kPatternRows), actual(static_cast<size_t>(rows));
    linear(PackedMatrix::pack(format, kPatternRows, columns, group, read), block, {},
           expected.data(), kPatternRows);
    ASSAY_CUDA(cudaMemcpy(actual.data(), out.data() + token * rows * 4, actual.size() * 4,
                          cudaMemcpyDeviceToHost));
    for (size_t r = 0; r < actual.size(); ++r)
      if (std::memcmp(&actual[r], &expected[r % kPatternRows], 4) != 0)
        throw Error(ExitCode::kDifference,
                    fmt::format("{} {}x{}, token {}: row {} is {}, the host has {}", name, rows,
                                columns, token, r, actual[r], expected[r % kPatternRows]));
  }
  report(fmt::format("{} {}x{}", name, rows, columns), median_us(stream, multiply),
         static_cast<double>(rows) * static_cast<double>(columns) * kTokens);
  if (name == "Q4_K") report(fmt::format("quantize {}", columns), median_us(stream, quantize), 0);
}

void run_attention(cudaStream_t stream, const std::string& name, int n_heads, int n_kv_heads,
                   int head_dim) {
  const auto width = static_cast<size_t>((n_heads + 2 * n_kv_heads) * head_dim);
  const auto cache_bytes = static_cast<size_t>(kTokens * n_kv_heads * head_dim * 2);
  std::vector<int32_t> positions(kTokens);
  for (int i = 0; i < kTokens; ++i) positions[static_cast<size_t>(i)] = i;
  const DeviceBuffer qkv = upload(test::random_floats(kTokens * width, 5)),
                     angles = upload(
                         test::Random(6).reals(static_cast<size_t>(kTokens * head_dim / 2), 1.0f)),
                     at = upload(positions), sequences = zeros(kTokens * 4),
                     fault = zeros(sizeof(DeviceFault)), keys(cache_bytes), values(cache_bytes),
                     out(static_cast<size_t>(kTokens * n_heads * head_dim) * 4);
  AttentionArguments a;
  a.qkv = reinterpret_cast<const float*>(qkv.data());
  a.qkv_stride = static_cast<int32_t>(width);
  a.k_offset = n_heads * head_dim;
  a.v_offset = a.k_offset + n_kv_heads * head_dim;
  a.rope_cos = a.rope_sin = reinterpret_cast<const float*>(angles.data());
  a.rotary_dims = head_dim;
  a.positions = reinterpret_cast<const int32_t*>(at.data());
  a.sequences = reinterpret_cast<const int32_t*>(sequences.data());
  a.tokens = kTokens;
  a.keys = keys.data();
  a.values = values.data();
  a.capacity = kTokens;
  a.n_heads = n_heads;
  a.n_kv_heads = n_kv_heads;
  a.head_dim = head_dim;
  a.scale = 0.1f;
  a.out = reinterpret_cast<float*>(out.data());
  a.fault_op = 1;
  a.fault = reinterpret_cast<DeviceFault*>(fault.data());
  report(fmt::format("attention {} ({} heads, {} of keys, {} dimensions)", name, n_heads,
                     n_kv_heads, head_dim),
         median_us(stream, [&] { launch_prefill_attention(a, stream); }),
         double{kTokens} * (kTokens + 1) * n_heads * head_dim);
}

void run() {
  const Stream stream;
  run_attention(stream.get(), "8B", 32, 8, 128);
  run_attention(stream.get(), "1B", 32, 8, 64);
  run_matrix(stream.get(), "Q4_K", 28672, 4096);
  run_matrix(stream.get(), "Q6_K", 4096, 14336);
  run_matrix(stream.get(), "Q4_K", 4096, 14336);
  run_matrix(stream.get(), "Q4_K", 4096, 4096);
  run_matrix(stream.get(), "Q4_K", 1024, 4096);
  run_matrix(stream.get(), "Q4_K", 16384, 2048);
  run_matrix(stream.get(), "Q6_K", 2048, 8192);
  for (const char* format : {"W4", "Q4_0", "Q8_0", "BF16"})
    run_matrix(stream.get(), format, 4096, 4096);
}

}  // namespace
}  // namespace assay::cuda

int main() {
  try {
    assay::cuda::run();
    return 0;
  } catch (const assay::Error& error) {
    fmt::print(stderr, "prefill_cuda_bench: {}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
