#include "calibrate/backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "calibrate/sensitivity.h"
#include "calibrate/walk.h"
#include "convert/core/parallel.h"
#include "tests/calibrate/every_isa.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::bits_equal;
using test::random_floats;

constexpr int64_t kLength = 40;

TokenWindows make_windows(int64_t n_windows, int64_t vocab_size) {
  TokenWindows windows;
  windows.n_windows = n_windows;
  windows.window_length = kLength;
  const test::Random random(9);
  for (int64_t i = 0; i < n_windows * kLength; ++i) {
    windows.ids.push_back(static_cast<int32_t>(
        random.below_at(static_cast<uint64_t>(vocab_size), static_cast<uint64_t>(i))));
  }
  return windows;
}

// The layers of a model on one window, from values of the registers that live before them.
class Layers {
 public:
  explicit Layers(const std::string& folder)
      : checkpoint_(Checkpoint::open(folder)),
        program_(build_program(checkpoint_->spec(), checkpoint_->tensors())),
        windows_(make_windows(1, checkpoint_->spec().vocab_size)),
        memory_(uint64_t{1} << 30, temporary_.path()),
        walk_(program_, weights_, windows_, {KvType::kF32, 1}, memory_) {
    bind_weights(program_, checkpoint_, 0, end(), kLength, weights_);
    walk_.embed();
    registers_ = walk_.held_registers();
    walk_.save([&](std::span<const float> values) {
      start_.insert(start_.end(), values.begin(), values.end());
    });
  }

  const std::vector<float>& start() const { return start_; }
  size_t n_out() const {
    return static_cast<size_t>(kLength * program_.registers[residual()].columns);
  }

  /// The residual stream after the layers. `backward`: records.
  std::vector<float> forward(const std::vector<float>& from, Backward* backward = nullptr) {
    size_t at = 0;
    StreamWalk walk = walk_.fork(weights_);
    walk.restore(registers_, [&](std::span<float> out) {
      std::copy_n(from.begin() + static_cast<int64_t>(at), out.size(), out.begin());
      at += out.size();
    });
    std::vector<float> out;
    // The op behind the layers shows what they left.
    walk.replay(begin(), end() + 1, 0, [&](int op, const CpuContext& context) {
      if (op == end()) {
        out = context.registers.f32[residual()];
      } else if (backward != nullptr) {
        backward->record(op, context);
      }
    });
    out.resize(n_out());
    return out;
  }

  std::vector<float> gradient(const std::vector<float>& dy) {
    Backward backward(program_, weights_);
    forward(start_, &backward);
    backward.gradient(program_.residual) = dy;
    backward.run(begin(), end(), kLength, nullptr);
    std::vector<float> dx;
    for (const int r : registers_) {
      std::vector<float>& d = backward.gradient({r});
      d.resize(static_cast<size_t>(kLength * program_.registers[static_cast<size_t>(r)].columns));
      dx.insert(dx.end(), d.begin(), d.end());
    }
    return dx;
  }

 private:
  size_t residual() const { return static_cast<size_t>(program_.residual.index); }
  int begin() const { return program_.layers.front().begin; }
  int end() const { return program_.layers.back().end; }

  test::TemporaryDirectory temporary_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  Program program_;
  TokenWindows windows_;
  ActivationMemory memory_;
  CpuWeights weights_;
  StreamWalk walk_;
  std::vector<int> registers_;
  std::vector<float> start_;
};

double inner(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Routes are held fixed, so routers get weights that choose the same experts whatever they read.
void hold_routes(test::TinyModel& model) {
  for (test::NamedTensor& each : model.tensors) {
    if (each.name.ends_with("mlp.gate.weight") || each.name.ends_with("router.proj.weight")) {
      std::fill(each.tensor.bytes.begin(), each.tensor.bytes.end(), std::byte{0});
    }
  }
}

float largest(const std::vector<float>& x) {
  float most = 0.0f;
  for (const float value : x) most = std::max(most, std::fabs(value));
  return most;
}

// Of Σ dy·(y(x + s·v) − y(x − s·v)) / 2s from Σ dx·v over some directions v, relative.
double difference(Layers& layers, const std::vector<float>& dy, const std::vector<float>& dx,
                  float step) {
  double error = 0.0;
  double size = 0.0;
  for (uint64_t seed = 50; seed < 56; ++seed) {
    const std::vector<float> v = random_floats(dx.size(), seed);
    std::vector<float> above = layers.start();
    std::vector<float> below = layers.start();
    for (size_t i = 0; i < v.size(); ++i) {
      above[i] += step * v[i];
      below[i] -= step * v[i];
    }
    const double found =
        (inner(dy, layers.forward(above)) - inner(dy, layers.forward(below))) / (2.0 * step);
    error += std::pow(found - inner(dx, v), 2);
    size += found * found;
  }
  return std::sqrt(error / size);
}

class BackwardFamilies : public testing::TestWithParam<std::string> {};

// Along random directions the difference of Σ dy·y is what the derivative says, for every family.
TEST_P(BackwardFamilies, EqualsDifferencesOfTheForwardPass) {
  const test::TemporaryDirectory folder;
  test::TinyModel model = test::read_model(test::family_model_path(GetParam()));
  hold_routes(model);
  Layers layers(model.write(folder.path() + "/m"));
  const std::vector<float> dy = random_floats(layers.n_out(), 3);

  const std::vector<float> dx = layers.gradient(dy);

  // Large steps see the curve of the model, small ones the rounding of its activations to 16 bits.
  double best = 1.0;
  for (const float step : {0x1p-8f, 0x1p-10f, 0x1p-12f}) {
    best = std::min(best, difference(layers, dy, dx, step * largest(layers.start())));
  }
  EXPECT_LT(best, 0.06);
}

INSTANTIATE_TEST_SUITE_P(All, BackwardFamilies, testing::ValuesIn(test::family_models()),
                         [](const auto& each) { return each.param; });

struct Measured {
  std::vector<std::vector<float>> values;  // of every matrix
  Program program;
};

Measured measure(const std::string& folder, int64_t n_windows, int64_t wanted_windows,
                 uint64_t memory_limit) {
  const test::TemporaryDirectory temporary;
  ActivationMemory memory(memory_limit, temporary.path());
  const auto checkpoint = Checkpoint::open(folder);
  Measured out;
  out.program = build_program(checkpoint->spec(), checkpoint->tensors());
  const TokenWindows windows = make_windows(n_windows, checkpoint->spec().vocab_size);
  const Sensitivities found = measure_sensitivities(
      out.program, checkpoint, [](const MatrixSlot& slot) { return slot.quantizable; }, windows,
      {wanted_windows, KvType::kF16}, memory);
  std::vector<float> scratch;
  for (size_t i = 0; i < out.program.matrices.size(); ++i) {
    const auto values = found.of(static_cast<int>(i), scratch);
    out.values.emplace_back(values.begin(), values.end());
  }
  return out;
}

TEST(Sensitivities, SameBitsForThreadsMemoryAndWithEveryInstructionSet) {
  for (const char* family : {"qwen3_5", "gemma4"}) {
    const std::string folder = test::family_model_path(family);
    set_n_threads(1);
    const Measured expected = measure(folder, 2, 2, uint64_t{1} << 30);
    for (const int threads : {1, 3}) {
      set_n_threads(threads);
      test::with_every_isa([&] {
        const Measured found = measure(folder, 2, 2, threads == 1 ? uint64_t{1} << 30 : 0);
        for (size_t i = 0; i < expected.values.size(); ++i) {
          EXPECT_TRUE(bits_equal(found.values[i], expected.values[i])) << i;
        }
      });
    }
    set_n_threads(0);
  }
}

TEST(Sensitivities, AreKnownForEveryQuantizableLinearButExperts) {
  const Measured found = measure(test::family_model_path("qwen3_moe"), 2, 1, uint64_t{1} << 30);
  for (size_t i = 0; i < found.values.size(); ++i) {
    const MatrixSlot& slot = found.program.matrices[i];
    const bool known = slot.quantizable && slot.expert < 0;
    const auto n = static_cast<size_t>(known ? RowChains(slot.out_features).n_values() : 0);
    ASSERT_EQ(found.values[i].size(), n) << slot.module;
    double trace = 0.0;
    for (int64_t row = 0; known && row < slot.out_features; ++row) {
      ASSERT_LE(slot.out_features, kChainRows);
      trace += found.values[i][static_cast<size_t>(row * slot.out_features + row)];
    }
    EXPECT_EQ(trace > 0.0, known) << slot.module;
  }
}

// With one window of two the sums of both are found: each window's derivatives are its own.
TEST(Sensitivities, TakeWindowsFromTheWholeOfTheCalibration) {
  const std::string folder = test::family_model_path("qwen3");
  const Measured first = measure(folder, 4, 1, uint64_t{1} << 30);
  const Measured spread = measure(folder, 4, 2, uint64_t{1} << 30);
  const Measured fewer = measure(folder, 2, 2, uint64_t{1} << 30);

  EXPECT_FALSE(bits_equal(first.values[1], spread.values[1]));
  EXPECT_FALSE(bits_equal(fewer.values[1], spread.values[1]));
  EXPECT_TRUE(bits_equal(measure(folder, 2, 9, uint64_t{1} << 30).values[1], fewer.values[1]));
}

TEST(RowChains, CoverAllRowsInAsFewAsHoldThem) {
  for (const int64_t rows : {1, 255, 256, 257, 768, 1000}) {
    const RowChains chains(rows);
    int64_t end = 0;
    int64_t n_values = 0;
    for (int64_t c = 0; c < chains.n_chains; ++c) {
      EXPECT_EQ(chains.begin(c), end);
      EXPECT_EQ(chains.first_value(c), n_values);
      end = chains.end(c);
      const int64_t length = end - chains.begin(c);
      EXPECT_GT(length, 0);
      EXPECT_LE(length, kChainRows);
      n_values += length * length;
    }
    EXPECT_EQ(end, rows);
    EXPECT_EQ(chains.n_values(), n_values);
    EXPECT_EQ(chains.n_chains, (rows + kChainRows - 1) / kChainRows);
  }
}

}  // namespace
}  // namespace assay
