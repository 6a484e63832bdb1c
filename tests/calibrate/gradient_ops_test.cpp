#include "calibrate/gradient_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "calibrate/gradient_kernels.h"
#include "convert/core/parallel.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/causal_conv.h"
#include "runtime/ops/delta_net.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/rms_norm.h"
#include "tests/calibrate/every_isa.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::bits_equal;
using test::random_floats;
using test::with_every_isa;

using Values = std::vector<float>;
using Function = std::function<Values(const Values&)>;

double inner(const Values& a, const Values& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Σ dy·f(x + s·v) for small s of both signs against Σ dx·v, for several directions v.
void expect_gradient(const Function& f, const Values& x, const Values& dy, const Values& dx,
                     float step = 0x1p-7f) {
  double error = 0.0;
  double size = 0.0;
  for (uint64_t seed = 100; seed < 106; ++seed) {
    const Values v = random_floats(x.size(), seed);
    Values above = x;
    Values below = x;
    for (size_t i = 0; i < x.size(); ++i) {
      above[i] += step * v[i];
      below[i] -= step * v[i];
    }
    const double found = (inner(dy, f(above)) - inner(dy, f(below))) / (2.0 * step);
    error += std::pow(found - inner(dx, v), 2);
    size += found * found;
  }
  EXPECT_GT(size, 0.0);
  EXPECT_LT(std::sqrt(error / size), 2e-3);
}

TEST(GradientKernels, MultiplyEqualsPlainChainsWithEveryInstructionSet) {
  struct Sizes {
    int rows, inner_size, columns;
  };
  for (const Sizes& sizes :
       {Sizes{1, 1, 1}, {5, 3, 17}, {7, 300, 33}, {13, 20, 66}, {6, 2, 32}, {2, 0, 20}}) {
    const int rows = sizes.rows, inner_size = sizes.inner_size, columns = sizes.columns;
    const auto n_a = static_cast<size_t>(rows) * static_cast<size_t>(inner_size);
    const Values a = random_floats(n_a, 1);  // stored by columns
    const Values b = random_floats(static_cast<size_t>(inner_size * columns), 2);
    const Values start = random_floats(static_cast<size_t>(rows * columns), 3);
    Values expected = start;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        float& sum = expected[static_cast<size_t>(i * columns + j)];
        for (int k = 0; k < inner_size; ++k) {
          sum = std::fma(a[static_cast<size_t>(k * rows + i)],
                         b[static_cast<size_t>(k * columns + j)], sum);
        }
      }
    }
    with_every_isa([&] {
      Values actual = start;
      gradient_kernels().multiply(a.data(), 1, rows, b.data(), columns, rows, inner_size, columns,
                                  actual.data(), columns);
      EXPECT_TRUE(bits_equal(actual, expected));
    });
  }
}

TEST(GradientOps, RmsNorm) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kColumns = 37;
  const Values x = random_floats(kRows * kColumns, 1);
  const Values dy = random_floats(kRows * kColumns, 2);
  const Values weights = random_floats(kColumns, 3);
  for (const float* w : {weights.data(), static_cast<const float*>(nullptr)}) {
    Values dx = dy;
    rms_norm_gradient(x.data(), w, 1e-3f, kRows, kColumns, dx.data(), dx.data());

    const Function f = [&](const Values& in) {
      Values y(in.size());
      rms_norm_reference(in.data(), w, 1e-3f, kRows, kColumns, y.data());
      return y;
    };
    expect_gradient(f, x, dy, dx);
  }
}

// Gate and up are the two halves of one vector here.
void expect_activation_gradient(void (*forward)(const float*, const float*, int64_t, float*),
                                void (*gradient)(const float*, const float*, const float*, int64_t,
                                                 float*, float*)) {
  constexpr size_t kSize = 333;
  const Values x = random_floats(2 * kSize, 1);
  const Values dy = random_floats(kSize, 2);
  Values dx(2 * kSize);

  gradient(x.data(), x.data() + kSize, dy.data(), kSize, dx.data(), dx.data() + kSize);

  const Function f = [&](const Values& in) {
    Values y(kSize);
    forward(in.data(), in.data() + kSize, kSize, y.data());
    return y;
  };
  expect_gradient(f, x, dy, dx);
}

TEST(GradientOps, SwiGlu) { expect_activation_gradient(swiglu_reference, swiglu_gradient); }
TEST(GradientOps, GeGlu) { expect_activation_gradient(geglu_reference, geglu_gradient); }

TEST(GradientOps, SigmoidGate) {
  constexpr size_t kSize = 65;
  const Values x = random_floats(2 * kSize, 1);
  const Values dy = random_floats(kSize, 2);
  Values dx(2 * kSize);

  sigmoid_gate_gradient(x.data(), x.data() + kSize, dy.data(), kSize, dx.data(), dx.data() + kSize);

  const Function f = [&](const Values& in) {
    Values y(in.begin(), in.begin() + kSize);
    sigmoid_gate_reference(y.data(), in.data() + kSize, kSize);
    return y;
  };
  expect_gradient(f, x, dy, dx);
}

TEST(GradientOps, Softcap) {
  const Values x = random_floats(99, 1);
  Values dx = random_floats(99, 2);
  const Values dy = dx;
  const Function f = [&](const Values& in) {
    Values y = in;
    softcap_reference(y.data(), 1.5f, static_cast<int64_t>(y.size()));
    return y;
  };

  softcap_gradient(f(x).data(), 1.5f, 99, dx.data());

  expect_gradient(f, x, dy, dx);
}

TEST(GradientOps, Rope) {
  const RopeTable table = make_rope_table({.theta = 100.0, .rotary_dims = 12}, 20);
  const Values x = random_floats(3 * 20, 1);
  Values dx = random_floats(3 * 20, 2);
  const Values dy = dx;

  rope_gradient(table, 7, dx.data(), 3, 20);

  const Function f = [&](const Values& in) {
    Values y = in;
    rope_apply(table, 7, y.data(), 3, 20);
    return y;
  };
  expect_gradient(f, x, dy, dx);
}

TEST(GradientOps, CausalConvolution) {
  constexpr int64_t kRows = 7;
  constexpr int64_t kChannels = 70;
  constexpr int kKernel = 4;
  const Values weight = random_floats(kChannels * kKernel, 1);
  const Values x = random_floats(kRows * kChannels, 2);
  const Values dy = random_floats(kRows * kChannels, 3);
  Values dx(x.size());

  causal_conv_gradient(weight.data(), kKernel, kChannels, kRows, x.data(), dy.data(), dx.data());

  const Function f = [&](const Values& in) {
    Values y(in.size());
    Values history((kKernel - 1) * kChannels);
    for (int64_t t = 0; t < kRows; ++t) {
      causal_conv_step(weight.data(), kKernel, kChannels, 0, kChannels, in.data() + t * kChannels,
                       history.data(), y.data() + t * kChannels);
    }
    return y;
  };
  expect_gradient(f, x, dy, dx);
}

// q, k and v of one sequence side by side in one vector.
struct AttentionCase {
  AttentionShape shape;
  int64_t rows;

  size_t q_size() const { return static_cast<size_t>(rows * shape.n_heads * shape.head_dim); }
  size_t k_size() const { return static_cast<size_t>(rows * shape.n_kv_heads * shape.head_dim); }
  size_t size() const { return q_size() + 2 * k_size(); }

  Values forward(const Values& x) const {
    const int64_t d = shape.head_dim;
    Values y(q_size());
    for (int64_t head = 0; head < shape.n_heads; ++head) {
      const int64_t kv = head / (shape.n_heads / shape.n_kv_heads);
      Values keys, values;
      for (int64_t t = 0; t < rows; ++t) {
        const auto k = x.begin() + static_cast<int64_t>(q_size()) + (t * shape.n_kv_heads + kv) * d;
        keys.insert(keys.end(), k, k + d);
        const auto v = k + static_cast<int64_t>(k_size());
        values.insert(values.end(), v, v + d);
      }
      for (int64_t t = 0; t < rows; ++t) {
        const int64_t at = (t * shape.n_heads + head) * d;
        const int64_t first = shape.window > 0 ? std::max<int64_t>(0, t - shape.window + 1) : 0;
        EXPECT_TRUE(attend_reference(x.data() + at, keys.data(), values.data(), KvType::kF32, first,
                                     t, static_cast<int>(d), shape.scale, y.data() + at));
      }
    }
    return y;
  }

  Values gradient(const Values& x, const Values& dy) const {
    Values dx(size());
    const float* k = x.data() + q_size();
    float* dk = dx.data() + q_size();
    attention_gradient(shape, rows, x.data(), k, k + k_size(), dy.data(), dx.data(), dk,
                       dk + k_size());
    return dx;
  }
};

// More rows than a tile of queries, with and without a window, which is shorter or longer than one.
const AttentionCase kAttentionCases[] = {{{4, 2, 16, 0.25f, 0}, 101},
                                         {{2, 1, 20, 0.2f, 9}, 60},
                                         {{2, 2, 8, 0.3f, 70}, 110},
                                         {{1, 1, 4, 0.5f, 0}, 1}};

TEST(GradientOps, Attention) {
  for (const AttentionCase& each : kAttentionCases) {
    SCOPED_TRACE(each.rows);
    const Values x = random_floats(each.size(), 1);
    const Values dy = random_floats(each.q_size(), 2);

    const Values dx = each.gradient(x, dy);

    expect_gradient([&](const Values& in) { return each.forward(in); }, x, dy, dx);
  }
}

// qkv, a and b of one sequence side by side in one vector.
struct DeltaNetCase {
  DeltaNetSpec spec;
  int64_t rows;
  Values decay = {-0.3f, -0.1f, -0.8f, -0.5f};
  Values step_bias = {0.1f, -0.4f, 0.3f, 0.0f};

  size_t qkv_size() const { return static_cast<size_t>(rows * spec.conv_columns()); }
  size_t a_size() const { return static_cast<size_t>(rows * spec.n_value_heads); }
  size_t size() const { return qkv_size() + 2 * a_size(); }
  size_t out_size() const { return static_cast<size_t>(rows * spec.value_columns()); }

  Values forward(const Values& x) const {
    Values y(out_size());
    Values workspace(static_cast<size_t>(2 * spec.key_dim));
    const float* a = x.data() + qkv_size();
    for (int64_t head = 0; head < spec.n_value_heads; ++head) {
      Values state(static_cast<size_t>(spec.key_dim * spec.value_dim));
      for (int64_t t = 0; t < rows; ++t) {
        const float* qkv = x.data() + t * spec.conv_columns();
        const float* q = qkv + head / (spec.n_value_heads / spec.n_key_heads) * spec.key_dim;
        const int64_t at = t * spec.n_value_heads + head;
        delta_net_step(
            spec,
            {q, q + spec.key_columns(), qkv + 2 * spec.key_columns() + head * spec.value_dim, a[at],
             a[static_cast<int64_t>(a_size()) + at], decay[static_cast<size_t>(head)],
             step_bias[static_cast<size_t>(head)]},
            state.data(), y.data() + at * spec.value_dim, workspace.data());
      }
    }
    return y;
  }

  Values gradient(const Values& x, const Values& dy) const {
    Values dx(size());
    const float* a = x.data() + qkv_size();
    float* da = dx.data() + qkv_size();
    delta_net_gradient(spec, {x.data(), a, a + a_size(), decay.data(), step_bias.data()}, rows,
                       dy.data(), dx.data(), da, da + a_size());
    return dx;
  }
};

// More tokens than have their states held at once; value heads that share a key head.
const DeltaNetCase kDeltaNetCases[] = {{{2, 4, 12, 9, 4}, 70}, {{1, 1, 5, 3, 4}, 1}};

TEST(GradientOps, DeltaNet) {
  for (const DeltaNetCase& each : kDeltaNetCases) {
    SCOPED_TRACE(each.rows);
    const Values x = random_floats(each.size(), 1);
    const Values dy = random_floats(each.out_size(), 2);

    const Values dx = each.gradient(x, dy);

    expect_gradient([&](const Values& in) { return each.forward(in); }, x, dy, dx);
  }
}

TEST(GradientOps, SameBitsForThreadsAndWithEveryInstructionSet) {
  const AttentionCase& attention = kAttentionCases[0];
  const DeltaNetCase& delta = kDeltaNetCases[0];
  const Values x = random_floats(attention.size(), 1);
  const Values dy = random_floats(attention.q_size(), 2);
  const Values delta_x = random_floats(delta.size(), 3);
  const Values delta_dy = random_floats(delta.out_size(), 4);
  set_n_threads(1);
  const Values expected = attention.gradient(x, dy);
  const Values delta_expected = delta.gradient(delta_x, delta_dy);
  for (const int threads : {1, 3}) {
    set_n_threads(threads);
    with_every_isa([&] {
      EXPECT_TRUE(bits_equal(attention.gradient(x, dy), expected));
      EXPECT_TRUE(bits_equal(delta.gradient(delta_x, delta_dy), delta_expected));
    });
  }
  set_n_threads(0);
}

}  // namespace
}  // namespace assay
