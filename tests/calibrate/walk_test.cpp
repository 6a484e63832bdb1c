#include "calibrate/walk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <tuple>

#include "convert/core/error.h"
#include "tests/calibrate/small_program.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

using test::bits_equal;

constexpr int64_t kLength = 9;
constexpr int64_t kWindows = 5;
constexpr int64_t kHidden = 64;
constexpr int kLayers = 2;

bool every_linear(const MatrixSlot&) { return true; }

TokenWindows make_windows() {
  TokenWindows windows;
  windows.n_windows = kWindows;
  windows.window_length = kLength;
  windows.ids.assign(kWindows * kLength, 1);
  return windows;
}

// The stream into layer 0, in place of an embedding.
std::vector<float> make_stream() {
  return test::random_floats(static_cast<size_t>(kWindows * kLength * kHidden), 5);
}

void feed(StreamWalk& walk, const Program& program, const std::vector<float>& stream) {
  size_t at = 0;
  walk.restore({program.residual.index}, [&](std::span<float> out) {
    std::copy_n(stream.begin() + static_cast<int64_t>(at), out.size(), out.begin());
    at += out.size();
  });
}

std::vector<float> stream_of(const StreamWalk& walk) {
  std::vector<float> out;
  walk.save(
      [&](std::span<const float> values) { out.insert(out.end(), values.begin(), values.end()); });
  return out;
}

// Each window alone, op after op, with nothing stored between them. `captured` gets the register
// `r` of every window before op `op`.
std::vector<float> run_directly(const test::SmallModel& model, const std::vector<float>& stream,
                                int op, Register r, std::vector<float>& captured) {
  std::vector<float> out;
  for (int64_t w = 0; w < kWindows; ++w) {
    CpuContext context;
    context.weights = &model.weights;
    KvCache cache(model.program.cache_layers, KvType::kF16, 1, kLength);
    context.cache = &cache;
    const int begin = model.program.layers.front().begin;
    const int end = model.program.layers.back().end;
    prepare_registers(model.program, begin, end, kLength, context);
    for (int64_t t = 0; t < kLength; ++t) context.rows.push_back({0, t});
    auto& h = context.registers.f32[static_cast<size_t>(model.program.residual.index)];
    const auto first = stream.begin() + w * kLength * kHidden;
    std::copy(first, first + kLength * kHidden, h.begin());
    for (int i = begin; i < end; ++i) {
      if (i == op) {
        const auto& values = context.registers.f32[static_cast<size_t>(r.index)];
        captured.insert(captured.end(), values.begin(), values.end());
      }
      run_op(model.program.ops[static_cast<size_t>(i)], context);
    }
    out.insert(out.end(), h.begin(), h.end());
  }
  return out;
}

struct Walked {
  std::vector<float> stream;
  Hessian hessian;  // of the last stop of layer 1
  uint64_t most_spilled = 0;
};

Walked walk_through(const test::SmallModel& model, const std::vector<float>& stream,
                    int64_t batch_tokens, uint64_t memory_limit) {
  const test::TemporaryDirectory folder;
  ActivationMemory memory(memory_limit, folder.path());
  const TokenWindows windows = make_windows();
  Walked out;
  {
    StreamWalk walk(model.program, model.weights, windows, {KvType::kF16, batch_tokens}, memory);
    feed(walk, model.program, stream);
    for (int layer = 0; layer < kLayers; ++layer) {
      const LayerPlan plan = plan_layer(model.program, layer, every_linear);
      for (size_t s = 0; s < plan.segments.size(); ++s) {
        walk.run_segment(plan, s);
        if (layer == 1 && s + 2 == plan.segments.size()) {
          out.hessian = walk.products(plan.stops[s], "last", nullptr, false).hessian;
        }
      }
    }
    out.stream = stream_of(walk);
    out.most_spilled = memory.most_spilled_bytes();
  }
  EXPECT_EQ(memory.spilled_bytes(), 0u);
  return out;
}

Hessian hessian_of(const std::vector<float>& x, int64_t n) {
  ChannelMaxima maxima(n);
  maxima.add(x.data(), static_cast<int64_t>(x.size()) / n);
  Gram gram(maxima.exponents());
  gram.add(x.data(), static_cast<int64_t>(x.size()) / n);
  return gram.finish();
}

TEST(StreamWalk, EqualsRunningEachWindowAloneOpByOp) {
  const test::SmallModel model = test::make_small_model(kLayers, 3);
  const std::vector<float> stream = make_stream();
  const LayerPlan last = plan_layer(model.program, 1, every_linear);
  std::vector<float> captured;
  const std::vector<float> expected =
      run_directly(model, stream, last.stops.back().op, last.stops.back().input, captured);

  const Walked walked = walk_through(model, stream, 1, uint64_t{1} << 30);

  EXPECT_TRUE(bits_equal(walked.stream, expected));
  EXPECT_EQ(walked.hessian.n_tokens, kWindows * kLength);
  EXPECT_TRUE(bits_equal(walked.hessian.values, hessian_of(captured, 96).values));
}

TEST(StreamWalk, BatchesAndSpillingChangeNothing) {
  const test::SmallModel model = test::make_small_model(kLayers, 3);
  const std::vector<float> stream = make_stream();
  const Walked expected = walk_through(model, stream, 1, uint64_t{1} << 30);

  for (const int64_t batch_tokens : {2 * kLength, 100 * kLength}) {
    for (const uint64_t limit : {uint64_t{0}, uint64_t{20000}, uint64_t{1} << 30}) {
      const Walked actual = walk_through(model, stream, batch_tokens, limit);

      EXPECT_TRUE(bits_equal(actual.stream, expected.stream));
      EXPECT_TRUE(bits_equal(actual.hessian.values, expected.hessian.values));
      EXPECT_EQ(actual.most_spilled > 0, limit < 1000000) << limit;
    }
  }
}

TEST(StreamWalk, AForkLeavesTheFirstWalkWhereItWas) {
  const test::SmallModel model = test::make_small_model(kLayers, 3);
  const test::SmallModel other = test::make_small_model(kLayers, 4);
  const test::TemporaryDirectory folder;
  ActivationMemory memory(uint64_t{1} << 30, folder.path());
  const TokenWindows windows = make_windows();
  StreamWalk walk(model.program, model.weights, windows, {}, memory);
  feed(walk, model.program, make_stream());
  const LayerPlan plan = plan_layer(model.program, 0, every_linear);

  std::vector<float> forked;
  {
    StreamWalk fork = walk.fork(other.weights);
    for (size_t s = 0; s < plan.segments.size(); ++s) fork.run_segment(plan, s);
    forked = stream_of(fork);
  }
  const std::vector<float> before = stream_of(walk);
  for (size_t s = 0; s < plan.segments.size(); ++s) walk.run_segment(plan, s);

  EXPECT_TRUE(bits_equal(before, make_stream()));
  EXPECT_FALSE(bits_equal(stream_of(walk), forked));
}

std::vector<float> values_of(const StreamWalk& walk, Register r) {
  std::vector<float> out;
  std::vector<float> scratch;
  for (int64_t b = 0; b < walk.n_batches(); ++b) {
    const std::span<const float> batch = walk.values(r).view(b, scratch);
    out.insert(out.end(), batch.begin(), batch.end());
  }
  return out;
}

class ProductsOfTwoWalks : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

// A second walk over all or some of the windows, which holds larger values.
TEST_P(ProductsOfTwoWalks, AreThoseOfTheirValuesScaledToAllWindows) {
  const auto [n_plain, batch_windows] = GetParam();
  const test::SmallModel model = test::make_small_model(kLayers, 1);
  const TokenWindows windows = make_windows();
  const TokenWindows some = spread_windows(windows, n_plain);
  const test::TemporaryDirectory folder;
  ActivationMemory memory(0, folder.path());
  StreamWalk walk(model.program, model.weights, windows, {.batch_tokens = batch_windows * kLength},
                  memory);
  feed(walk, model.program, make_stream());
  StreamWalk other = walk.beside(model.weights, some);
  std::vector<float> stream;
  for (int64_t i = 0; i < n_plain; ++i) {
    const std::vector<float> all = make_stream();
    const auto first = all.begin() + spread_index(i, kWindows, n_plain) * kLength * kHidden;
    std::transform(first, first + kLength * kHidden, std::back_inserter(stream),
                   [](float value) { return 1.25f * value; });
  }
  feed(other, model.program, stream);
  const LayerPlan plan = plan_layer(model.program, 0, every_linear);
  for (size_t s = 0; s < 2; ++s) {
    walk.run_segment(plan, s);
    other.run_segment(plan, s);
  }
  const CaptureStop& stop = plan.stops[1];  // o_proj
  const std::vector<float> x = values_of(other, stop.input);
  const std::vector<float> y = values_of(walk, stop.input);
  const std::vector<float> a = values_of(other, stop.adds_to);
  const std::vector<float> b = values_of(walk, stop.adds_to);

  const StopProducts products = walk.products(stop, "m", &other, true);

  const CrossProduct& drift = products.drift.value();
  const CrossProduct& residual_drift = products.residual_drift.value();
  ASSERT_EQ(drift.n_columns, stop.columns);
  ASSERT_EQ(residual_drift.n_rows, kHidden);
  const auto columns = static_cast<size_t>(stop.columns);
  const double scale = static_cast<double>(kWindows) / static_cast<double>(n_plain);
  for (const size_t i : {size_t{0}, size_t{17}, columns - 1}) {
    for (const size_t j : {size_t{3}, columns - 1}) {
      double expected = 0.0;
      double expected_residual = 0.0;
      double size = 0.0;
      for (int64_t t = 0; t < n_plain * kLength; ++t) {
        const auto there = static_cast<size_t>(t);
        const auto here = static_cast<size_t>(
            spread_index(t / kLength, kWindows, n_plain) * kLength + t % kLength);
        const double at = scale * y[here * columns + j];
        expected += (x[there * columns + i] - y[here * columns + i]) * at;
        expected_residual += (a[there * kHidden + i] - b[here * kHidden + i]) * at;
        size += std::fabs(at);
      }
      EXPECT_NEAR(drift.values[i * columns + j], expected, 1e-4 * size);
      EXPECT_NEAR(residual_drift.values[i * columns + j], expected_residual, 1e-4 * size);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllOrSomeWindows, ProductsOfTwoWalks,
                         testing::Combine(testing::Values<int64_t>(kWindows, 3, 1),
                                          testing::Values<int64_t>(1, 2, kWindows)));

TEST(StreamWalk, EqualWalksHaveNoDrift) {
  const test::SmallModel model = test::make_small_model(kLayers, 1);
  const TokenWindows windows = make_windows();
  const test::TemporaryDirectory folder;
  ActivationMemory memory(uint64_t{1} << 30, folder.path());
  StreamWalk walk(model.program, model.weights, windows, {}, memory);
  feed(walk, model.program, make_stream());
  StreamWalk other = walk.fork(model.weights);
  const LayerPlan plan = plan_layer(model.program, 0, every_linear);
  walk.run_segment(plan, 0);
  other.run_segment(plan, 0);

  const StopProducts products = walk.products(plan.stops[0], "m", &other, true);

  EXPECT_FALSE(products.drift.has_value());
  EXPECT_FALSE(products.residual_drift.has_value());
}

// Two walks that route some tokens to different experts: the drift of an expert is that of the
// tokens that both send to it.
TEST(StreamWalk, DriftOfAnExpertIsThatOfTheTokensOfBothWalks) {
  const auto checkpoint = Checkpoint::open(test::source_path("tests/data/families/qwen3_moe"));
  const Program program = build_program(checkpoint->spec(), checkpoint->tensors());
  CpuWeights weights;
  const OpRange& range = program.layers.front();
  bind_weights(program, checkpoint, range.begin, range.end, kLength, weights);
  const TokenWindows windows = make_windows();
  const test::TemporaryDirectory folder;
  ActivationMemory memory(uint64_t{1} << 30, folder.path());
  StreamWalk walk(program, weights, windows, {.batch_tokens = 2 * kLength}, memory);
  feed(walk, program, make_stream());
  StreamWalk other = walk.fork(weights);
  std::vector<float> stream = make_stream();
  const std::vector<float> noise = test::random_floats(stream.size(), 6);
  for (size_t i = 0; i < stream.size(); ++i) stream[i] += 0.3f * noise[i];
  feed(other, program, stream);
  const LayerPlan plan =
      plan_layer(program, 0, [](const MatrixSlot& slot) { return slot.expert >= 0; });
  ASSERT_EQ(plan.stops.size(), 2u);  // gate and up; down
  for (size_t s = 0; s < 2; ++s) {
    walk.run_segment(plan, s);
    other.run_segment(plan, s);
    const CaptureStop& stop = plan.stops[s];
    const auto columns = static_cast<size_t>(stop.columns);
    int n_common = 0;
    int n_apart = 0;
    for (int expert = 0; expert < 6; ++expert) {
      const CrossProduct drift = walk.routed_drift(other, stop, expert, "m");

      std::vector<double> expected(columns * columns, 0.0);
      double size = 0.0;
      for (int64_t b = 0; b < walk.n_batches(); ++b) {
        std::vector<float> scratch[4];
        const auto x = other.values(stop.input).view(b, scratch[0]);
        const auto y = walk.values(stop.input).view(b, scratch[1]);
        const auto x_ids = other.values(stop.routes).view(b, scratch[2]);
        const auto y_ids = walk.values(stop.routes).view(b, scratch[3]);
        for (size_t i = 0; i < x_ids.size(); ++i) {
          if (x_ids[i] != static_cast<float>(expert)) continue;
          ++n_apart;
          for (size_t j = i / 2 * 2; j < i / 2 * 2 + 2; ++j) {
            if (y_ids[j] != static_cast<float>(expert)) continue;
            --n_apart;
            ++n_common;
            const float* from = x.data() + (stop.slots == 1 ? i / 2 : i) * columns;
            const float* to = y.data() + (stop.slots == 1 ? j / 2 : j) * columns;
            for (size_t r = 0; r < columns; ++r) {
              for (size_t c = 0; c < columns; ++c) {
                expected[r * columns + c] += static_cast<double>(from[r] - to[r]) * to[c];
                size = std::max(size, std::fabs(expected[r * columns + c]));
              }
            }
          }
        }
      }
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(drift.values[i], expected[i], 1e-3 * size) << "expert " << expert;
      }
    }
    EXPECT_GT(n_common, 0);
    EXPECT_GT(n_apart, 0);
  }
}

TEST(StreamWalk, SaveAndRestoreGiveTheSameStream) {
  const test::SmallModel model = test::make_small_model(kLayers, 3);
  const test::TemporaryDirectory folder;
  ActivationMemory memory(uint64_t{1} << 30, folder.path());
  const TokenWindows windows = make_windows();
  StreamWalk walk(model.program, model.weights, windows, {KvType::kF16, 2 * kLength}, memory);
  feed(walk, model.program, make_stream());
  const LayerPlan plan = plan_layer(model.program, 0, every_linear);
  for (size_t s = 0; s < plan.segments.size(); ++s) walk.run_segment(plan, s);
  const std::vector<float> saved = stream_of(walk);
  EXPECT_EQ(walk.held_registers(), std::vector<int>{model.program.residual.index});

  // Another batch size: the layout of what is saved does not depend on it.
  StreamWalk later(model.program, model.weights, windows, {KvType::kF16, kLength}, memory);
  feed(later, model.program, saved);

  EXPECT_TRUE(bits_equal(stream_of(later), saved));
}

TEST(StreamWalk, NamesWindowPositionAndChannelOfAnInputThatIsNotFinite) {
  const test::SmallModel model = test::make_small_model(kLayers, 3);
  const test::TemporaryDirectory folder;
  ActivationMemory memory(uint64_t{1} << 30, folder.path());
  const TokenWindows windows = make_windows();
  StreamWalk walk(model.program, model.weights, windows, {}, memory);
  std::vector<float> stream = make_stream();
  stream[static_cast<size_t>((3 * kLength + 4) * kHidden + 7)] =
      std::numeric_limits<float>::infinity();
  feed(walk, model.program, stream);
  const LayerPlan plan = plan_layer(model.program, 0, every_linear);
  walk.run_segment(plan, 0);
  try {
    walk.products(plan.stops[0], "layers.0.q_proj", nullptr, false);
    FAIL() << "expected NumericError";
  } catch (const NumericError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("layers.0.q_proj"));
    EXPECT_THAT(error.what(), testing::HasSubstr("window 3, position 4"));
  }
}

}  // namespace
}  // namespace assay
