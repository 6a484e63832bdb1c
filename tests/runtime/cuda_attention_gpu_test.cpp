#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "runtime/device/cuda_support.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/attention_cuda.h"
#include "runtime/ops/kv_write.h"
#include "runtime/ops/rope.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay::cuda {
namespace {

constexpr int kCapacity = 1024;
constexpr int kSequences = 3;

template <typename T>
DeviceBuffer upload(const std::vector<T>& values) {
  DeviceBuffer buffer(std::max<size_t>(values.size() * sizeof(T), 16));
  ASSAY_CUDA(
      cudaMemcpy(buffer.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return buffer;
}

struct Case {
  int head_dim = 64;
  int n_kv_heads = 2;
  int per_kv = 4;  // query heads of a KV head
  int window = 0;
  KvType type = KvType::kF16;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "d" << c.head_dim << "_kv" << c.n_kv_heads << "x" << c.per_kv << "_w" << c.window
             << "_" << kv_type_name(c.type);
}

/// Tokens of one sequence in a batch.
struct Run {
  int sequence;
  int length;
};

/// The same layer on both sides: caches, and the rows that batches add to them.
class Layer {
 public:
  explicit Layer(const Case& c)
      : case_(c),
        n_heads_(c.n_kv_heads * c.per_kv),
        row_(static_cast<size_t>((n_heads_ + 2 * c.n_kv_heads) * c.head_dim)),
        row_bytes_(static_cast<size_t>(c.head_dim) * kv_type_bytes(c.type)),
        head_bytes_(row_bytes_ * kCapacity),
        keys_(head_bytes_ * static_cast<size_t>(kSequences * c.n_kv_heads)),
        values_(keys_.size()),
        device_keys_(keys_.size()),
        device_values_(keys_.size()) {
    table_.rotary_dims = c.head_dim;
    table_.n_positions = kCapacity;
    table_.cos = test::Random(3).reals(static_cast<size_t>(kCapacity * c.head_dim / 2), 1.0f);
    table_.sin = test::Random(4).reals(table_.cos.size(), 1.0f);
    device_cos_ = upload(table_.cos);
    device_sin_ = upload(table_.sin);
    // What no token has written must not count, whatever it is.
    ASSAY_CUDA(cudaMemset(device_keys_.data(), 0xff, device_keys_.bytes()));
    ASSAY_CUDA(cudaMemset(device_values_.data(), 0xff, device_values_.bytes()));
  }

  /// Adds a batch and compares all its outputs.
  void add(const std::vector<Run>& batch, bool decode) {
    std::vector<int32_t> positions, sequences;
    for (const Run& run : batch)
      for (int i = 0; i < run.length; ++i) {
        positions.push_back(lengths_[run.sequence] + i);
        sequences.push_back(run.sequence);
        if (i + 1 == run.length) lengths_[run.sequence] += run.length;
      }
    const std::vector<float> qkv =
        test::random_floats(positions.size() * row_, 100 + static_cast<uint64_t>(seed_++));

    const std::vector<float> expected = on_host(qkv, positions, sequences);
    const std::vector<float> actual = on_device(qkv, positions, sequences, decode);

    EXPECT_TRUE(test::bits_equal(actual, expected)) << (decode ? "decode" : "prompt");
  }

 private:
  std::vector<float> on_host(std::vector<float> qkv, const std::vector<int32_t>& positions,
                             const std::vector<int32_t>& sequences) {
    const int d = case_.head_dim;
    const auto head_at = [&](int sequence, int kv_head) {
      return head_bytes_ * static_cast<size_t>(sequence * case_.n_kv_heads + kv_head);
    };
    for (size_t t = 0; t < positions.size(); ++t) {
      float* q = qkv.data() + t * row_;
      float* k = q + n_heads_ * d;
      rope_apply(table_, positions[t], q, n_heads_ + case_.n_kv_heads, d);
      for (int h = 0; h < case_.n_kv_heads; ++h) {
        const size_t at = head_at(sequences[t], h) + row_bytes_ * static_cast<size_t>(positions[t]);
        EXPECT_EQ(round_to_cache(k + h * d, d, case_.type, keys_.data() + at), -1);
        EXPECT_EQ(
            round_to_cache(k + (case_.n_kv_heads + h) * d, d, case_.type, values_.data() + at), -1);
      }
    }
    std::vector<float> out(positions.size() * static_cast<size_t>(n_heads_ * d));
    for (size_t t = 0; t < positions.size(); ++t)
      for (int h = 0; h < n_heads_; ++h) {
        const int64_t last = positions[t];
        const int64_t first = case_.window > 0 ? std::max<int64_t>(0, last - case_.window + 1) : 0;
        const size_t at = head_at(sequences[t], h / case_.per_kv);
        EXPECT_TRUE(attend(qkv.data() + t * row_ + h * d, keys_.data() + at, values_.data() + at,
                           case_.type, first, last, d, kScale,
                           out.data() + (t * static_cast<size_t>(n_heads_) + h) * d));
      }
    return out;
  }

  std::vector<float> on_device(const std::vector<float>& qkv, const std::vector<int32_t>& positions,
                               const std::vector<int32_t>& sequences, bool decode) {
    const auto n_tokens = positions.size();
    const auto width = static_cast<size_t>(n_heads_ * case_.head_dim);
    constexpr int kSegments = kCapacity / 128 + 1;
    const DeviceBuffer rows = upload(qkv), at = upload(positions), of = upload(sequences),
                       fault = upload(std::vector<int32_t>(4)),
                       counters = upload(
                           std::vector<int32_t>(n_tokens * static_cast<size_t>(case_.n_kv_heads))),
                       out(n_tokens * width * 4),
                       partial(decode ? n_tokens * kSegments *
                                            (width + 2 * static_cast<size_t>(n_heads_)) * 4
                                      : 16);
    AttentionArguments a;
    a.qkv = reinterpret_cast<const float*>(rows.data());
    a.qkv_stride = static_cast<int32_t>(row_);
    a.k_offset = n_heads_ * case_.head_dim;
    a.v_offset = a.k_offset + case_.n_kv_heads * case_.head_dim;
    a.rope_cos = reinterpret_cast<const float*>(device_cos_.data());
    a.rope_sin = reinterpret_cast<const float*>(device_sin_.data());
    a.rotary_dims = case_.head_dim;
    a.positions = reinterpret_cast<const int32_t*>(at.data());
    a.sequences = reinterpret_cast<const int32_t*>(of.data());
    a.tokens = static_cast<int32_t>(n_tokens);
    a.keys = device_keys_.data();
    a.values = device_values_.data();
    a.capacity = kCapacity;
    a.cache_type = case_.type == KvType::kF16    ? CacheType::kF16
                   : case_.type == KvType::kBF16 ? CacheType::kBF16
                                                 : CacheType::kF32;
    a.n_heads = n_heads_;
    a.n_kv_heads = case_.n_kv_heads;
    a.head_dim = case_.head_dim;
    a.scale = kScale;
    a.window = case_.window;
    a.out = reinterpret_cast<float*>(out.data());
    a.partial = reinterpret_cast<float*>(partial.data());
    a.counters = reinterpret_cast<int32_t*>(counters.data());
    a.max_segments = kSegments;
    a.splits = 3;
    a.fault_op = 1;
    a.fault = reinterpret_cast<DeviceFault*>(fault.data());
    const Stream stream;
    if (decode)
      launch_decode_attention(a, false, stream.get());
    else
      launch_prefill_attention(a, stream.get());
    ASSAY_CUDA(cudaStreamSynchronize(stream.get()));
    std::vector<float> result(n_tokens * width);
    ASSAY_CUDA(cudaMemcpy(result.data(), out.data(), out.bytes(), cudaMemcpyDeviceToHost));
    DeviceFault found;
    ASSAY_CUDA(cudaMemcpy(&found, fault.data(), sizeof(found), cudaMemcpyDeviceToHost));
    EXPECT_EQ(found.op, 0);
    return result;
  }

  static constexpr float kScale = 0.25f;  // large: some weights underflow

  Case case_;
  int n_heads_;
  size_t row_;  // floats of one token: q, k, v
  size_t row_bytes_, head_bytes_;
  std::vector<std::byte> keys_, values_;
  DeviceBuffer device_keys_, device_values_;
  RopeTable table_;
  DeviceBuffer device_cos_, device_sin_;
  int lengths_[kSequences] = {};
  int seed_ = 0;
};

class CudaAttention : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(CudaAttention, EqualsTheHostBitForBit) {
  const Case c = GetParam();
  Layer layer(c);

  layer.add({{0, 130}}, false);
  layer.add({{0, 3}, {1, 200}, {2, 1}}, false);
  layer.add({{1, 129}, {0, 260}}, false);
  layer.add({{2, 1}, {0, 1}, {1, 1}}, false);
  layer.add({{2, 64}, {0, 64}}, false);

  const bool has_decode = c.head_dim == 32 || c.head_dim == 64 || c.head_dim == 128 ||
                          (c.head_dim == 256 && c.type != KvType::kF32);
  if (!has_decode || c.per_kv > 16) return;
  layer.add({{0, 1}}, true);
  layer.add({{2, 1}, {0, 1}, {1, 1}}, true);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int d : {32, 64, 96, 128, 256}) {
    for (const int window : {0, 1, 100, 128, 200}) cases.push_back({d, 2, 4, window});
    for (const int per_kv : {1, 3, 8, 32, 71}) cases.push_back({d, 1, per_kv});
    cases.push_back({d, 2, 4, 0, KvType::kBF16});
    if (d < 256) cases.push_back({d, 2, 4, 150, KvType::kF32});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttention, testing::ValuesIn(all_cases()));

TEST(CudaSupport, RefusesMoreSharedMemoryThanTheDeviceHas) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  Case c;
  c.head_dim = 256;
  c.type = KvType::kF32;  // a segment of keys and values alone takes 256 KB
  Layer layer(c);

  try {
    layer.add({{0, 16}}, false);
    FAIL() << "accepted";
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("shared memory"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace assay::cuda
