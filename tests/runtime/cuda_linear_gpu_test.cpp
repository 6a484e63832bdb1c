#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "convert/core/dtype.h"
#include "convert/core/error.h"
#include "convert/formats/format.h"
#include "runtime/device/cuda_support.h"
#include "runtime/ops/block_int16.h"
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

/// Runs `linear` twice in one launch of the kernel for whole steps.
/// `smallest_ring`: a warp's ring has room for one piece of the matrix. `average_bytes`: see
/// StepTables.
void run_as_stages(const GemvArguments& linear, bool smallest_ring, uint64_t average_bytes,
                   cudaStream_t stream) {
  const DeviceLimits limits = device_limits();
  const DeviceBuffer vectors(step_vector_bytes(linear.matrices[0].rows));
  StepTables tables(limits, vectors.data(), vectors.bytes(), average_bytes);
  tables.add_linear(linear);
  tables.add_linear(linear);
  ASSERT_TRUE(tables.can_run());
  const DeviceBuffer stages = upload(tables.stages()), shares = upload(tables.shares()),
                     streams = upload(tables.streams()), zero = upload(std::vector<int32_t>(1));
  StepArguments a = tables.sizes();
  if (smallest_ring) a.ring_bytes = step_part_bytes(linear.matrices[0]);
  a.stages = reinterpret_cast<const StepStage*>(stages.data());
  a.shares = reinterpret_cast<const BlockShare*>(shares.data());
  a.streams = reinterpret_cast<const WeightStream*>(streams.data());
  a.positions = a.sequences = reinterpret_cast<const int32_t*>(zero.data());
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
    GemvArguments a;
    a.matrices[0] = m;
    a.n_blocks[0] = std::min(3, m.tiles);
    a.x = reinterpret_cast<const float*>(device_x.data());
    a.out = reinterpret_cast<float*>(out.data());
    a.out_stride = static_cast<int32_t>(c.rows);
    a.tokens = static_cast<int32_t>(c.tokens);
    a.fault_op = 1;
    a.fault = device_fault;
    for (const bool input_given : {false, true}) {
      ASSAY_CUDA(cudaMemsetAsync(out.data(), 0xff, expected.size() * 4, stream.get()));
      a.input_given = input_given;
      for (int i = 0; i < 3; ++i) launch_gemv(a, i > 0, stream.get());
      ASSAY_CUDA(cudaStreamSynchronize(stream.get()));
      actual = download(out, expected.size());
      EXPECT_TRUE(test::bits_equal(actual, expected))
          << "vector kernel" << (input_given ? ", input given" : "");
    }
    if (c.tokens == 1 && device_limits().major >= 9) {
      for (const bool smallest_ring : {false, true})
        for (const uint64_t average_bytes : {uint64_t{0}, ~uint64_t{0}}) {
          ASSAY_CUDA(cudaMemsetAsync(out.data(), 0xff, expected.size() * 4, stream.get()));
          run_as_stages(a, smallest_ring, average_bytes, stream.get());
          actual = download(out, expected.size());
          EXPECT_TRUE(test::bits_equal(actual, expected))
              << "step kernel" << (smallest_ring ? ", smallest ring" : "")
              << (average_bytes == 0 ? "" : ", units in halves");
        }
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

/// A matrix of 512 columns that nobody reads.
DeviceMatrix unread_matrix(int rows) {
  static const std::byte units{};
  DeviceMatrix m;
  m.kind = MatrixKind::kSuper4;
  m.rows = rows;
  m.columns = 512;
  m.tiles = rows / kTileRows;
  m.groups = 4;
  m.segments = 1;
  set_unit_layout(m);
  m.units = &units;
  return m;
}

TEST(StepTables, DealsAllTilesEvenlyToTheThreadBlocks) {
  const DeviceMatrix m = unread_matrix(112 * kTileRows);
  GemvArguments linear;
  linear.matrices[0] = m;
  DeviceLimits limits;
  limits.major = 9;
  limits.multiprocessors = 132;
  limits.block_shared = 227 * 1024;
  StepTables tables(limits, nullptr, 0, 0);
  tables.add_linear(linear);
  ASSERT_TRUE(tables.can_run());
  int next = 0, idle = 0, idle_in_a_row = 0;
  for (size_t b = 0; b < 132; ++b) {
    const BlockShare& share = tables.shares()[b];
    idle_in_a_row = share.begin == share.end ? idle_in_a_row + 1 : 0;
    idle += idle_in_a_row > 0 ? 1 : 0;
    EXPECT_LE(idle_in_a_row, 1);
    EXPECT_EQ(tables.streams()[b].n_units, share.end - share.begin);
    if (share.begin == share.end) continue;
    EXPECT_EQ(share.begin, next);
    EXPECT_EQ(tables.streams()[b].units, unit_at(m, share.begin, 0));
    next = share.end;
  }
  EXPECT_EQ(next, 112);
  EXPECT_EQ(idle, 20);
}

TEST(StepTables, HandsResultsOnThroughMemoryOfTheirOwn) {
  std::vector<float> x(512), y(512), z(1);
  std::vector<std::byte> vectors(2 * step_vector_bytes(512));
  DeviceLimits limits;
  limits.multiprocessors = 4;
  limits.block_shared = 227 * 1024;
  StepTables tables(limits, vectors.data(), vectors.size(), 0);
  GemvArguments linear;
  linear.matrices[0] = unread_matrix(512);
  linear.x = x.data(), linear.out = y.data();
  tables.add_linear(linear);
  linear.x = y.data(), linear.out = x.data(), linear.epilogue = Epilogue::kAddTo;
  tables.add_linear(linear);
  linear.x = x.data(), linear.out = z.data(), linear.epilogue = Epilogue::kStore;
  tables.add_linear(linear);

  const std::vector<StepStage>& stages = tables.stages();
  EXPECT_EQ(stages[0].linear.x, x.data());
  EXPECT_EQ(stages[0].input_handed, 0);
  EXPECT_EQ(reinterpret_cast<std::byte*>(stages[0].linear.out), vectors.data());
  EXPECT_EQ(stages[1].linear.x, stages[0].linear.out);
  EXPECT_EQ(stages[1].input_handed, 1);
  EXPECT_EQ(stages[1].residual, x.data());
  EXPECT_EQ(stages[1].residual_handed, 0);
  EXPECT_EQ(reinterpret_cast<std::byte*>(stages[1].linear.out), vectors.data() + 2048);
  EXPECT_EQ(stages[2].linear.x, stages[1].linear.out);
  EXPECT_EQ(stages[2].linear.out, z.data());
  EXPECT_EQ(tables.sizes().vector_bytes, 4096u);
}

/// A result with the very bits of kNotThere would be waited for for ever.
TEST(StepKernel, ANanOfTheBitsOfNothingThereIsHandedOnAndReported) {
  if (!has_gpu()) GTEST_SKIP() << "no CUDA device";
  if (device_limits().major < 9) GTEST_SKIP() << "needs compute capability 9.0";
  const WeightFormat& format = *find_format("Q8_0");
  const test::WeightMatrix weights = test::random_weight_matrix(format, 512, 512, 0, 1);
  const HostMatrix host = pack_matrix(
      "test", format, 512, 512, 32,
      [&](int64_t row, IntegerRow& out) { format.read_integers(weights.view, row, out); });
  const DeviceBuffer units = upload(host.units), x = upload(test::random_floats(512, 2)),
                     y(512 * 4), z(512 * 4), fault = upload(std::vector<int32_t>(4)),
                     bias = upload(std::vector<uint32_t>(512, kNotThere)),
                     vectors(step_vector_bytes(512)), zero = upload(std::vector<int32_t>(1));
  const auto floats = [](const DeviceBuffer& b) { return reinterpret_cast<float*>(b.data()); };
  GemvArguments linear;
  linear.matrices[0] = host.shape;
  linear.matrices[0].units = units.data();
  linear.bias[0] = floats(bias);
  linear.x = floats(x);
  linear.out = floats(y);
  linear.fault = reinterpret_cast<DeviceFault*>(fault.data());
  linear.fault_op = 1;
  StepTables tables(device_limits(), vectors.data(), vectors.bytes(), 0);
  tables.add_linear(linear);
  linear.x = floats(y);
  linear.out = floats(z);
  linear.fault_op = 2;
  tables.add_linear(linear);
  const DeviceBuffer stages = upload(tables.stages()), shares = upload(tables.shares()),
                     streams = upload(tables.streams());
  StepArguments a = tables.sizes();
  a.stages = reinterpret_cast<const StepStage*>(stages.data());
  a.shares = reinterpret_cast<const BlockShare*>(shares.data());
  a.streams = reinterpret_cast<const WeightStream*>(streams.data());
  a.positions = a.sequences = reinterpret_cast<const int32_t*>(zero.data());

  const Stream stream;
  launch_step(a, device_limits().multiprocessors, stream.get());
  ASSAY_CUDA(cudaStreamSynchronize(stream.get()));

  DeviceFault found;
  ASSAY_CUDA(cudaMemcpy(&found, fault.data(), sizeof(found), cudaMemcpyDeviceToHost));
  EXPECT_EQ(found.op, 2);
  EXPECT_TRUE(std::isnan(found.value));
}

TEST(StepTables, LeavesNoOverlappingThreadBlockWithLessThanOthers) {
  EXPECT_EQ(independent_blocks(100, 132), 100);
  EXPECT_EQ(independent_blocks(130, 132), 130);
  EXPECT_EQ(independent_blocks(256, 132), 132);   // 1.94 tiles each, at most 2
  EXPECT_EQ(independent_blocks(240, 132), 120);   // 1.82
  EXPECT_EQ(independent_blocks(320, 132), 107);   // 2.42, at most 3
  EXPECT_EQ(independent_blocks(1792, 132), 132);  // 13.6
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

/// The units of a matrix byte by byte, as DeviceMatrix describes them.
class ExpectedUnits {
 public:
  explicit ExpectedUnits(const DeviceMatrix& shape) : shape_(shape), units_(matrix_bytes(shape)) {}

  const std::vector<std::byte>& units() const { return units_; }

  void put_row(int row, const IntegerRow& integers, int64_t group_size) {
    row_ = row % kTileRows;
    tile_ = row / kTileRows;
    for (int column = 0; column < shape_.columns; ++column) put_code(column, integers);
    const int piece_columns = kGroupColumns / shape_.pieces;
    for (int first = 0; first < shape_.columns; first += piece_columns) {
      if (shape_.kind == MatrixKind::kSuper4) {
        put_super4(first, integers);
      } else if (shape_.kind == MatrixKind::kSuper6) {
        put_super6(first, integers);
      } else if (shape_.kind != MatrixKind::kFloat16) {
        put_piece(first, first / piece_columns % shape_.pieces, integers,
                  static_cast<size_t>(first / group_size));
      }
    }
  }

 private:
  std::byte* header(int column) {
    const auto unit = static_cast<size_t>(tile_ * shape_.segments + column / 512);
    return units_.data() + unit * static_cast<size_t>(shape_.unit_bytes);
  }
  static int inside(int column) { return column % 512 / kGroupColumns; }

  void put_code(int column, const IntegerRow& integers) {
    uint8_t* group = reinterpret_cast<uint8_t*>(header(column)) + shape_.header_bytes +
                     inside(column) * words_per_group(shape_.kind) * 16;
    const int j = column % 128 / 32, half = column % 32 / 16, t = column % 16 / 4, i = column % 4;
    const int lane = row_ % 8 * 4 + t, lower = row_ / 8;
    if (shape_.kind == MatrixKind::kFloat16) {
      // Planes of block int16, and the scale with the first column of a group.
      BlockInt16 block;
      ASSERT_EQ(
          quantize_block_int16(integers.values.data(), 1, shape_.columns, shape_.columns, block),
          -1);
      const int at = ((lower * 2 + j / 2) * 32 + lane) * 16 + (j % 2 * 2 + half) * 4 + i;
      group[at] = static_cast<uint8_t>(block.high[static_cast<size_t>(column)]);
      group[2048 + at] = static_cast<uint8_t>(block.low[static_cast<size_t>(column)]);
      const uint16_t scale = f32_to_bf16(block.scales[static_cast<size_t>(column / 128)]);
      std::memcpy(header(column) + 2 * (row_ * 4 + inside(column)), &scale, 2);
      return;
    }
    const uint8_t code = integers.codes[static_cast<size_t>(column)];
    if (shape_.kind == MatrixKind::kGroup8) {
      group[((lower * 2 + j / 2) * 32 + lane) * 16 + (j % 2 * 2 + half) * 4 + i] = code;
      return;
    }
    // The nibbles of a word are two blocks, in kSuper6 the halves of one.
    const bool pairs = shape_.kind != MatrixKind::kSuper6;
    const int word = pairs ? j / 2 * 2 + half : j, nibble = pairs ? j % 2 : half;
    uint8_t& both = group[(lower * 32 + lane) * 16 + word * 4 + i];
    both = static_cast<uint8_t>(both | (code & 15) << (4 * nibble));
    if (shape_.kind != MatrixKind::kSuper6) return;
    uint8_t& four = group[(64 + lane) * 16 + (lower * 2 + j / 2) * 4 + i];
    four = static_cast<uint8_t>(four | (code >> 4) << (2 * (j % 2 * 2 + half)));
  }

  void put_number(std::byte* to, int index, float value) const {
    if (shape_.scale_type == ScaleType::kF32) {
      std::memcpy(to + 4 * index, &value, 4);
      return;
    }
    const uint16_t bits =
        shape_.scale_type == ScaleType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
    std::memcpy(to + 2 * index, &bits, 2);
  }

  void put_piece(int column, int piece, const IntegerRow& integers, size_t group) {
    const int index = (row_ * 4 + inside(column)) * shape_.pieces + piece;
    put_number(header(column), index, integers.scales[group]);
    if (shape_.kind == MatrixKind::kAffine4) {
      put_number(header(column) + shape_.extra_at, index, integers.mins[group]);
    } else if (shape_.zero_constant < 0) {
      header(column)[shape_.extra_at + index] = static_cast<std::byte>(integers.zeros[group]);
    } else if (integers.scales[group] != 0.0f) {
      EXPECT_EQ(integers.zeros[group], shape_.zero_constant);
    }
  }

  /// Words: d | dmin; sub-scales of both halves, 6 bits each, in words 1 and 3; minima of the first
  /// half in word 2, of the second in the highest bytes of words 1 to 3.
  void put_super4(int column, const IntegerRow& integers) {
    auto* words = reinterpret_cast<uint32_t*>(header(column)) + row_ * 8 + inside(column) / 2 * 4;
    const auto block = static_cast<size_t>(column / 256);
    words[0] = f32_to_f16(integers.scales[block]) |
               static_cast<uint32_t>(f32_to_f16(integers.mins[block])) << 16;
    for (int j = 0; j < 4; ++j) {
      const auto sub = static_cast<size_t>(column / 32 + j);
      const auto scale = static_cast<uint32_t>(integers.sub_scales[sub]);
      const auto minimum = static_cast<uint32_t>(integers.sub_mins[sub]);
      const bool second = inside(column) % 2 == 1;
      words[second ? 3 : 1] |= scale << (6 * j);
      for (int bit = 0; bit < 6; ++bit) {
        const int at = 6 * j + bit;
        const uint32_t value = minimum >> bit & 1;
        if (second)
          words[1 + at / 8] |= value << (24 + at % 8);
        else
          words[2] |= value << at;
      }
    }
  }

  void put_super6(int column, const IntegerRow& integers) {
    for (int j = 0; j < 8; ++j)
      header(column)[row_ * 32 + inside(column) * 8 + j] =
          static_cast<std::byte>(integers.sub_scales[static_cast<size_t>(column / 16 + j)]);
    const uint16_t d = f32_to_f16(integers.scales[static_cast<size_t>(column / 256)]);
    std::memcpy(header(column) + shape_.extra_at + 2 * (row_ * 2 + inside(column) / 2), &d, 2);
  }

  DeviceMatrix shape_;
  std::vector<std::byte> units_;
  int row_ = 0, tile_ = 0;
};

class CudaPackTest : public testing::TestWithParam<const WeightFormat*> {};

TEST_P(CudaPackTest, PutsEveryByteWhereDeviceMatrixSays) {
  const WeightFormat& format = *GetParam();
  std::vector<int64_t> groups = {format.fixed_group()};
  if (groups[0] == 0) groups = {32, 64, 128, 256, 0};
  if (format.fold() == Fold::kFloat) groups = {0};
  for (const int64_t group : groups) {
    if (!has_kernels(format, group)) continue;
    for (const DType scale_type : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, 256},
                                                                                  {15, 512},
                                                                                  {16, 768},
                                                                                  {17, 1280},
                                                                                  {50, 1792},
                                                                                  {32, 1024},
                                                                                  {3, 96},
                                                                                  {20, 160}}) {
        const int64_t whole = std::max<int64_t>(group, 1);
        if (columns % std::max(format.block_columns(), whole) != 0) continue;
        const test::WeightMatrix matrix =
            test::random_weight_matrix(format, rows, columns, group, 3, scale_type);
        const auto read = [&](int64_t row, IntegerRow& out) {
          format.read_integers(matrix.view, row, out);
        };
        const int64_t per_scale = group > 0 ? group : columns;

        const MatrixPacker packer("test", format, rows, columns, per_scale, read);
        std::vector<std::byte> units(matrix_bytes(packer.shape()), std::byte{0xa5});
        packer.pack(0, packer.shape().tiles, units.data());

        ExpectedUnits expected(packer.shape());
        IntegerRow row;
        for (int64_t r = 0; r < rows; ++r) {
          read(r, row);
          expected.put_row(static_cast<int>(r), row, per_scale);
        }
        EXPECT_EQ(units, expected.units())
            << rows << " x " << columns << ", group " << group << ", " << dtype_name(scale_type);
      }
    }
  }
}

std::vector<const WeightFormat*> formats_with_kernels() {
  std::vector<const WeightFormat*> formats;
  for (const WeightFormat* format : all_formats())
    if (has_kernels(*format, format->fixed_group())) formats.push_back(format);
  return formats;
}

INSTANTIATE_TEST_SUITE_P(AllFormats, CudaPackTest, testing::ValuesIn(formats_with_kernels()),
                         [](const auto& format) { return std::string(format.param->name()); });

}  // namespace
}  // namespace assay::cuda
