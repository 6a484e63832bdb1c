#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/formats/format.h"
#include "runtime/device/cuda_support.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/linear_cuda.h"
#include "runtime/ops/linear_cuda_pack.h"
#include "runtime/ops/step_tables_cuda.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"
#include "tests/support/weight_matrix.h"

namespace assay::cuda {
namespace {

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

template <typename T>
DeviceBuffer upload(const std::vector<T>& values) {
  DeviceBuffer buffer(std::max<size_t>(values.size() * sizeof(T), 16));
  if (!values.empty())
    ASSAY_CUDA(cudaMemcpy(buffer.data(), values.data(), values.size() * sizeof(T),
                          cudaMemcpyHostToDevice));
  return buffer;
}

std::vector<float> download(const DeviceBuffer& buffer, size_t n) {
  std::vector<float> values(n);
  ASSAY_CUDA(cudaMemcpy(values.data(), buffer.data(), n * 4, cudaMemcpyDeviceToHost));
  return values;
}

/// A matrix of random codes in one of the formats, as rows of integers.
struct Case {
  std::string format;
  int64_t group_size;
  int64_t rows, columns, tokens;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.format << "_g" << c.group_size << "_" << c.rows << "x" << c.columns << "_t"
             << c.tokens;
}

/// Runs `linear` twice in one launch of the kernel for whole steps; the second waits for the first.
void run_as_stages(const GemvArguments& linear, cudaStream_t stream) {
  const DeviceLimits limits = device_limits();
  StepTables tables(limits, nullptr);
  tables.add_linear(linear, true);
  tables.add_linear(linear, true);
  ASSERT_TRUE(tables.can_run());
  const DeviceBuffer stages = upload(tables.stages()), shares = upload(tables.shares()),
                     streams = upload(tables.streams()), arrivals(2 * sizeof(int32_t)),
                     zero = upload(std::vector<int32_t>(1));
  StepArguments a = tables.sizes();
  a.stages = reinterpret_cast<const StepStage*>(stages.data());
  a.shares = reinterpret_cast<const BlockShare*>(shares.data());
  a.streams = reinterpret_cast<const WeightStream*>(streams.data());
  a.positions = a.sequences = reinterpret_cast<const int32_t*>(zero.data());
  a.arrivals = reinterpret_cast<int32_t*>(arrivals.data());
  launch_step(a, limits.multiprocessors, stream);
  ASSAY_CUDA(cudaStreamSynchronize(stream));
}

class CudaLinear : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(CudaLinear, EqualsTheHostBitForBit) {
  const Case c = GetParam();
  const WeightFormat& format = *find_format(c.format);
  const int64_t group = c.group_size > 0           ? c.group_size
                        : format.fixed_group() > 0 ? format.fixed_group()
                                                   : c.columns;
  const test::WeightMatrix matrix =
      test::random_weight_matrix(format, c.rows, c.columns, c.group_size, 1);
  const auto read = [&](int64_t row, IntegerRow& integers) {
    format.read_integers(matrix.view, row, integers);
  };
  const std::vector<float> x = test::random_floats(static_cast<size_t>(c.tokens * c.columns), 77);
  BlockInt16 block;
  ASSERT_EQ(quantize_block_int16(x.data(), c.tokens, c.columns, c.columns, block), -1);
  std::vector<float> expected(static_cast<size_t>(c.tokens * c.rows));
  linear(PackedMatrix::pack(format, c.rows, c.columns, group, read), block, {}, expected.data(),
         c.rows);

  if (c.format == "Q5_1") {  // no kernel: refused by name
    EXPECT_THROW(pack_matrix("test", format, c.rows, c.columns, group, read), UnsupportedError);
    return;
  }
  const HostMatrix host = pack_matrix("test", format, c.rows, c.columns, group, read);
  const DeviceBuffer units = upload(host.units);
  DeviceMatrix m = host.shape;
  m.units = units.data();
  const DeviceBuffer device_x = upload(x), fault = upload(std::vector<int32_t>(4));
  const DeviceBuffer out(expected.size() * 4);
  auto* const device_fault = reinterpret_cast<DeviceFault*>(fault.data());
  const Stream stream;
  std::vector<float> actual;
  if (c.tokens <= kMaxGemvTokens) {
    std::vector<BlockShare> shares;
    const int blocks = std::min(3, m.tiles);
    GemvArguments a;
    for (int b = 0; b < blocks; ++b) {
      shares.push_back({0, m.tiles * b / blocks, m.tiles * (b + 1) / blocks});
      a.most_tiles = std::max(a.most_tiles, shares.back().end - shares.back().begin);
    }
    const DeviceBuffer device_shares = upload(shares);
    a.matrices[0] = m;
    a.shares = reinterpret_cast<const BlockShare*>(device_shares.data());
    a.x = reinterpret_cast<const float*>(device_x.data());
    a.out = reinterpret_cast<float*>(out.data());
    a.out_stride = static_cast<int32_t>(c.rows);
    a.tokens = static_cast<int32_t>(c.tokens);
    a.fault_op = 1;
    a.fault = device_fault;
    launch_gemv(a, blocks, false, stream.get());
    ASSAY_CUDA(cudaStreamSynchronize(stream.get()));
    actual = download(out, expected.size());
    EXPECT_TRUE(test::bits_equal(actual, expected)) << "vector kernel";
    if (c.tokens == 1 && device_limits().major >= 9) {
      ASSAY_CUDA(cudaMemsetAsync(out.data(), 0xff, expected.size() * 4, stream.get()));
      run_as_stages(a, stream.get());
      actual = download(out, expected.size());
      EXPECT_TRUE(test::bits_equal(actual, expected)) << "step kernel";
    }
  }
  const auto groups = static_cast<size_t>(m.groups);
  const auto tokens = static_cast<size_t>(c.tokens);
  const DeviceBuffer planes(tokens * groups * 256), sums16(tokens * groups * 32),
      sums32(tokens * groups * 16), sums128(tokens * groups * 4), x_scales(tokens * groups * 4);
  DeviceActivations activations{
      reinterpret_cast<int8_t*>(planes.data()),  reinterpret_cast<int32_t*>(sums16.data()),
      reinterpret_cast<int32_t*>(sums32.data()), reinterpret_cast<int32_t*>(sums128.data()),
      reinterpret_cast<float*>(x_scales.data()), m.groups};
  launch_norm_quantize(reinterpret_cast<const float*>(device_x.data()),
                       static_cast<int32_t>(c.columns), nullptr, 0, 0,
                       static_cast<int32_t>(c.columns), static_cast<int32_t>(c.tokens), activations,
                       1, device_fault, stream.get());
  ASSAY_CUDA(cudaMemsetAsync(out.data(), 0xff, expected.size() * 4, stream.get()));
  launch_gemm(m, activations, nullptr, reinterpret_cast<float*>(out.data()),
              static_cast<int32_t>(c.rows), static_cast<int32_t>(c.tokens), Epilogue::kStore, 1,
              device_fault, stream.get());
  ASSAY_CUDA(cudaStreamSynchronize(stream.get()));
  actual = download(out, expected.size());
  EXPECT_TRUE(test::bits_equal(actual, expected)) << "matrix kernel";
  DeviceFault found;
  ASSAY_CUDA(cudaMemcpy(&found, fault.data(), sizeof(found), cudaMemcpyDeviceToHost));
  EXPECT_EQ(found.op, 0);
}

/// Whether the kernels know the format; if not, there is one clear error.
bool has_kernels(const WeightFormat& format, int64_t group_size) {
  try {
    packed_bytes(format, 16, 1024, group_size);
    return true;
  } catch (const UnsupportedError&) {
    return false;
  }
}

TEST(CudaPack, NamesTheFormatThatItHasNoKernelsFor) {
  int n_refused = 0;
  for (const WeightFormat* format : all_formats()) {
    try {
      packed_bytes(*format, 16, 1024, format->fixed_group());
    } catch (const UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find("(" + std::string(format->name()) + ")"),
                std::string::npos)
          << error.what();
      ++n_refused;
    }
  }
  EXPECT_GT(n_refused, 0);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const WeightFormat* format : all_formats()) {
    if (!has_kernels(*format, format->fixed_group())) continue;
    const std::string name(format->name());
    std::vector<int64_t> groups = {format->fixed_group()};
    if (format->fold() == Fold::kGroup && format->fixed_group() == 0) groups = {32, 64, 128, 0};
    if (format->fold() == Fold::kFloat) groups = {0};
    for (const int64_t group : groups) {
      const bool super = format->fold() == Fold::kSuperBlock;
      for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
               {16, 256}, {1, 512}, {17, 768}, {48, 1024}, {130, 2048}, {33, 14336}}) {
        cases.push_back({name, group, rows, columns, 1});
      }
      for (const int64_t tokens : {2, 3, 4, 5, 63, 64, 65, 130})
        cases.push_back({name, group, 144, format->block_columns() == 256 ? 768 : 640, tokens});
      if (!super && format->fixed_group() == 0 && group == 0)
        cases.push_back({name, group, 20, 96, 7});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(AllFormats, CudaLinear, testing::ValuesIn(all_cases()));

}  // namespace
}  // namespace assay::cuda
