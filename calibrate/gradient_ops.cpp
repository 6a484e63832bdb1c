#include "calibrate/gradient_ops.h"

#include <algorithm>
#include <cmath>

#include "calibrate/gradient_kernels.h"
#include "convert/core/parallel.h"
#include "runtime/math.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {
namespace {

constexpr int64_t kRowTile = 48;  // rows of a product that one turn of a thread takes
constexpr int64_t kElementGrain = 1 << 13;
constexpr int64_t kQueryTile = 48;      // queries whose scores are held at once
constexpr int64_t kStateChunk = 32;     // tokens whose recurrent states are held at once
constexpr float kDeltaNormEps = 1e-6f;  // of ops/delta_net.h

size_t size(int64_t n) { return static_cast<size_t>(n); }

// One key/value head of one sequence.
class AttentionTask {
 public:
  AttentionTask(const AttentionShape& shape, int64_t rows)
      : shape_(shape),
        rows_(rows),
        keys_(size(rows * shape.head_dim)),
        values_(keys_.size()),
        probabilities_(size(kQueryTile * rows)),
        d_scores_(probabilities_.size()) {}

  void run(int kv_head, const float* q, const float* k, const float* v, const float* dy, float* dq,
           float* dk, float* dv) {
    const int64_t d = shape_.head_dim;
    const int64_t kv_row = shape_.n_kv_heads * d;
    const int64_t q_row = shape_.n_heads * d;
    const int64_t at = kv_head * d;
    transpose(k + at, kv_row, keys_);
    transpose(v + at, kv_row, values_);
    const int group = shape_.n_heads / shape_.n_kv_heads;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t first = 0; first < rows_; first += kQueryTile) {
        const int64_t from = first * q_row + head * d;
        run_tile(first, q + from, k + at, dy + from, dq + from, dk + at, dv + at);
      }
    }
  }

 private:
  void transpose(const float* x, int64_t stride, std::vector<float>& out) const {
    for (int64_t t = 0; t < rows_; ++t) {
      for (int64_t i = 0; i < shape_.head_dim; ++i) out[size(i * rows_ + t)] = x[t * stride + i];
    }
  }

  void run_tile(int64_t first, const float* q, const float* k, const float* dy, float* dq,
                float* dk, float* dv) {
    const int64_t d = shape_.head_dim;
    const int64_t q_row = shape_.n_heads * d;
    const int64_t kv_row = shape_.n_kv_heads * d;
    const int64_t n = std::min(kQueryTile, rows_ - first);
    const int64_t begin = shape_.window > 0 ? std::max<int64_t>(0, first - shape_.window + 1) : 0;
    const int64_t seen = first + n - begin;  // keys that some query of the tile sees
    const auto& kernels = gradient_kernels();
    std::fill_n(probabilities_.begin(), n * seen, 0.0f);
    std::fill_n(d_scores_.begin(), n * seen, 0.0f);
    kernels.multiply(q, q_row, 1, keys_.data() + begin, rows_, n, d, seen, probabilities_.data(),
                     seen);
    kernels.multiply(dy, q_row, 1, values_.data() + begin, rows_, n, d, seen, d_scores_.data(),
                     seen);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t last = first + i - begin;
      const int64_t own =
          shape_.window > 0 ? std::max<int64_t>(0, first + i - shape_.window + 1 - begin) : 0;
      differentiate_row(own, last + 1 - own, seen, probabilities_.data() + i * seen,
                        d_scores_.data() + i * seen);
    }
    for (int64_t i = 0; i < n; ++i) std::fill_n(dq + i * q_row, d, 0.0f);
    kernels.multiply(d_scores_.data(), seen, 1, k + begin * kv_row, kv_row, n, seen, d, dq, q_row);
    kernels.multiply(d_scores_.data(), 1, seen, q, q_row, seen, n, d, dk + begin * kv_row, kv_row);
    kernels.multiply(probabilities_.data(), 1, seen, dy, q_row, seen, n, d, dv + begin * kv_row,
                     kv_row);
  }

  // Scores become probabilities, derivatives of those derivatives of q·k.
  void differentiate_row(int64_t own, int64_t n, int64_t seen, float* p, float* ds) const {
    const VectorKernels& kernels = vector_kernels();
    float* scores = p + own;
    float* d = ds + own;
    kernels.scale(scores, shape_.scale, n, scores);
    const float most = kernels.largest(scores, n);
    for (int64_t j = 0; j < n; ++j) scores[j] = scores[j] - most;
    kernels.exp(scores, n, scores);
    const float sum = kernels.lane_sum(scores, n);
    for (int64_t j = 0; j < n; ++j) scores[j] = scores[j] / sum;
    const float mean = kernels.lane_dot(scores, d, n);
    for (int64_t j = 0; j < n; ++j) d[j] = (scores[j] * (d[j] - mean)) * shape_.scale;
    std::fill(p, p + own, 0.0f);
    std::fill(ds, ds + own, 0.0f);
    std::fill(p + own + n, p + seen, 0.0f);
    std::fill(ds + own + n, ds + seen, 0.0f);
  }

  const AttentionShape& shape_;
  int64_t rows_;
  std::vector<float> keys_, values_;             // (head_dim, rows)
  std::vector<float> probabilities_, d_scores_;  // (queries of a tile, keys that they see)
};

// y = x / sqrt(Σx² + eps), dx from dy; returns what x was divided by.
float normalize(const float* x, int64_t n, float* y) {
  const float norm = std::sqrt(vector_kernels().lane_dot(x, x, n) + kDeltaNormEps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] / norm;
  return norm;
}
void add_normalize_gradient(const float* y, float norm, const float* dy, int64_t n, float* dx) {
  const float along = vector_kernels().lane_dot(y, dy, n);
  for (int64_t i = 0; i < n; ++i) dx[i] = dx[i] + (dy[i] - y[i] * along) / norm;
}

// One value head of one sequence. With A = α·S before the token, p = A k, u = β·(v − p): after it
// S = A + u k^T and out = S q.
class DeltaNetTask {
 public:
  DeltaNetTask(const DeltaNetSpec& spec, const DeltaNetTensors& in, int64_t rows)
      : spec_(spec),
        in_(in),
        rows_(rows),
        n_state_(int64_t{spec.value_dim} * spec.key_dim),
        starts_(size((rows + kStateChunk - 1) / kStateChunk * n_state_)),
        states_(size((kStateChunk + 1) * n_state_)),
        d_state_(size(n_state_)),
        q_(size(spec.key_dim)),
        k_(q_.size()),
        dq_(q_.size()),
        dk_(q_.size()) {}

  void run(int64_t head, const float* dy, float* d_qkv, float* d_a, float* d_b) {
    head_ = head;
    std::vector<float> state(size(n_state_));
    for (int64_t t = 0; t < rows_; ++t) {
      if (t % kStateChunk == 0) {
        std::copy(state.begin(), state.end(), starts_.begin() + t / kStateChunk * n_state_);
      }
      advance(t, state.data());
    }
    std::fill(d_state_.begin(), d_state_.end(), 0.0f);
    const int64_t n_chunks = (rows_ + kStateChunk - 1) / kStateChunk;
    for (int64_t chunk = n_chunks; chunk-- > 0;) {
      const int64_t t0 = chunk * kStateChunk;
      const int64_t t1 = std::min(rows_, t0 + kStateChunk);
      std::copy_n(starts_.begin() + chunk * n_state_, n_state_, states_.begin());
      for (int64_t t = t0; t < t1; ++t) {
        float* after = states_.data() + (t + 1 - t0) * n_state_;
        std::copy_n(after - n_state_, n_state_, after);
        advance(t, after);
      }
      for (int64_t t = t1; t-- > t0;) {
        const float* before = states_.data() + (t - t0) * n_state_;
        step_back(t, before, before + n_state_, dy, d_qkv, d_a, d_b);
      }
    }
  }

 private:
  int64_t key_head() const { return head_ / (spec_.n_value_heads / spec_.n_key_heads); }
  int64_t q_at(int64_t t) const { return t * spec_.conv_columns() + key_head() * spec_.key_dim; }
  int64_t k_at(int64_t t) const { return q_at(t) + spec_.key_columns(); }
  int64_t v_at(int64_t t) const {
    return t * spec_.conv_columns() + 2 * spec_.key_columns() + head_ * spec_.value_dim;
  }
  int64_t head_at(int64_t t) const { return t * spec_.n_value_heads + head_; }

  // q_, k_, alpha_, beta_ of token t.
  void load_token(int64_t t) {
    q_norm_ = normalize(in_.qkv + q_at(t), spec_.key_dim, q_.data());
    k_norm_ = normalize(in_.qkv + k_at(t), spec_.key_dim, k_.data());
    slope_ = in_.decay[head_] * sigmoid_canonical(in_.a[head_at(t)] + in_.step_bias[head_]);
    alpha_ = exp_canonical(in_.decay[head_] *
                           softplus_canonical(in_.a[head_at(t)] + in_.step_bias[head_]));
    beta_ = sigmoid_canonical(in_.b[head_at(t)]);
  }

  void advance(int64_t t, float* state) {
    const VectorKernels& kernels = vector_kernels();
    load_token(t);
    for (int64_t j = 0; j < spec_.value_dim; ++j) {
      float* row = state + j * spec_.key_dim;
      kernels.scale(row, alpha_, spec_.key_dim, row);
      const float predicted = kernels.lane_dot(row, k_.data(), spec_.key_dim);
      const float update = beta_ * (in_.qkv[v_at(t) + j] - predicted);
      kernels.multiply_add(row, k_.data(), update, spec_.key_dim);
    }
  }

  void step_back(int64_t t, const float* before, const float* after, const float* dy, float* d_qkv,
                 float* d_a, float* d_b) {
    const VectorKernels& kernels = vector_kernels();
    const int64_t n = spec_.key_dim;
    load_token(t);
    std::fill(dq_.begin(), dq_.end(), 0.0f);
    std::fill(dk_.begin(), dk_.end(), 0.0f);
    const float q_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
    float d_alpha = 0.0f;
    float d_beta = 0.0f;
    for (int64_t j = 0; j < spec_.value_dim; ++j) {
      const float* s0 = before + j * n;
      const float* s1 = after + j * n;
      float* ds = d_state_.data() + j * n;
      const float d_out = dy[head_at(t) * spec_.value_dim + j] * q_scale;
      kernels.multiply_add(ds, q_.data(), d_out, n);
      kernels.multiply_add(dq_.data(), s1, d_out, n);
      const float du = kernels.lane_dot(ds, k_.data(), n);
      const float along = kernels.lane_dot(s0, k_.data(), n);
      const float left = in_.qkv[v_at(t) + j] - alpha_ * along;  // v − p
      d_beta = fused(du, left, d_beta);
      d_qkv[v_at(t) + j] = beta_ * du;
      const float dp = -(beta_ * du);
      kernels.multiply_add(dk_.data(), ds, beta_ * left, n);
      kernels.multiply_add(dk_.data(), s0, dp * alpha_, n);
      kernels.multiply_add(ds, k_.data(), dp, n);
      d_alpha = d_alpha + kernels.lane_dot(ds, s0, n);
      kernels.scale(ds, alpha_, n, ds);
    }
    add_normalize_gradient(q_.data(), q_norm_, dq_.data(), n, d_qkv + q_at(t));
    add_normalize_gradient(k_.data(), k_norm_, dk_.data(), n, d_qkv + k_at(t));
    d_a[head_at(t)] = (d_alpha * alpha_) * slope_;
    d_b[head_at(t)] = (d_beta * beta_) * (1.0f - beta_);
  }

  const DeltaNetSpec& spec_;
  const DeltaNetTensors& in_;
  int64_t rows_;
  int64_t n_state_;
  int64_t head_ = 0;
  std::vector<float> starts_;   // (chunks, value_dim, key_dim): before the first token of each
  std::vector<float> states_;   // (kStateChunk + 1, …): before each token of one chunk, and after
  std::vector<float> d_state_;  // (value_dim, key_dim)
  std::vector<float> q_, k_;    // normalised
  std::vector<float> dq_, dk_;
  float q_norm_ = 0.0f, k_norm_ = 0.0f;
  float alpha_ = 0.0f, slope_ = 0.0f, beta_ = 0.0f;  // α = exp(f(a)), slope f'(a)
};

float gelu_tanh_slope(float x) {
  constexpr float kRoot = 0x1.988454p-1f;   // √(2/π)
  constexpr float kCubic = 0x1.6e4e26p-5f;  // 0.044715
  const float square = x * x;
  const float t = tanh_canonical(kRoot * (x + kCubic * (square * x)));
  const float inner = kRoot * (1.0f + (3.0f * kCubic) * square);
  return 0.5f * (1.0f + t) + ((0.5f * x) * (1.0f - t * t)) * inner;
}

}  // namespace

void multiply(const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,
              int64_t rows, int64_t inner, int64_t columns, float* c, int64_t c_row) {
  parallel_for(rows, kRowTile, [&](int64_t begin, int64_t end) {
    gradient_kernels().multiply(a + begin * a_row, a_row, a_column, b, b_row, end - begin, inner,
                                columns, c + begin * c_row, c_row);
  });
}

void rms_norm_gradient(const float* x, const float* weight, float eps, int64_t rows, int64_t n,
                       const float* dy, float* dx) {
  const float one_over_n = 1.0f / static_cast<float>(n);
  parallel_for(rows, std::max<int64_t>(1, kElementGrain / n), [&](int64_t begin, int64_t end) {
    const VectorKernels& kernels = vector_kernels();
    std::vector<float> wanted(size(n));
    for (int64_t row = begin; row < end; ++row) {
      const float* in = x + row * n;
      const float r = 1.0f / std::sqrt(kernels.lane_dot(in, in, n) * one_over_n + eps);
      for (int64_t i = 0; i < n; ++i) {
        wanted[size(i)] = weight == nullptr ? dy[row * n + i] : weight[i] * dy[row * n + i];
      }
      const float along = ((kernels.lane_dot(in, wanted.data(), n) * one_over_n) * (r * r)) * r;
      for (int64_t i = 0; i < n; ++i) dx[row * n + i] = r * wanted[size(i)] - in[i] * along;
    }
  });
}

void swiglu_gradient(const float* gate, const float* up, const float* dy, int64_t n, float* d_gate,
                     float* d_up) {
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    // silu'(x) = σ(x) + silu(x)·(1 − σ(x)), with the vector kernels' exp.
    std::vector<float> e(size(end - begin));
    for (int64_t i = begin; i < end; ++i) e[size(i - begin)] = -gate[i];
    vector_kernels().exp(e.data(), end - begin, e.data());
    for (int64_t i = begin; i < end; ++i) {
      const float s = 1.0f / (1.0f + e[size(i - begin)]);
      const float y = gate[i] * s;
      const float d = dy[i];
      d_gate[i] = (d * up[i]) * (s + y * (1.0f - s));
      d_up[i] = d * y;
    }
  });
}

void geglu_gradient(const float* gate, const float* up, const float* dy, int64_t n, float* d_gate,
                    float* d_up) {
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float d = dy[i];
      const float x = gate[i];
      d_gate[i] = (d * up[i]) * gelu_tanh_slope(x);
      d_up[i] = d * gelu_tanh_canonical(x);
    }
  });
}

void sigmoid_gate_gradient(const float* x, const float* gate, const float* dy, int64_t n, float* dx,
                           float* d_gate) {
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float s = sigmoid_canonical(gate[i]);
      const float d = dy[i];
      d_gate[i] = ((d * x[i]) * s) * (1.0f - s);
      dx[i] = d * s;
    }
  });
}

void softcap_gradient(const float* y, float cap, int64_t n, float* dy) {
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float t = y[i] / cap;
      dy[i] = dy[i] * (1.0f - t * t);
    }
  });
}

void rope_gradient(const RopeTable& table, int64_t position, float* dy, int n_heads, int head_dim) {
  const int pairs = table.rotary_dims / 2;
  const float* cos = table.cos.data() + position * pairs;
  const float* sin = table.sin.data() + position * pairs;
  for (int head = 0; head < n_heads; ++head) {
    float* first = dy + static_cast<int64_t>(head) * head_dim;
    // Turned by the opposite angle: the halves change places.
    vector_kernels().rotate(first + pairs, first, cos, sin, pairs);
  }
}

void causal_conv_gradient(const float* weight, int kernel, int64_t n, int64_t rows, const float* x,
                          const float* dy, float* dx) {
  constexpr int64_t kChannels = 64;
  parallel_for(n, kChannels, [&](int64_t begin, int64_t end) {
    std::vector<float> slopes(size(rows * (end - begin)));  // dy·silu'(convolution)
    const int64_t width = end - begin;
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t c = begin; c < end; ++c) {
        float sum = 0.0f;
        for (int64_t j = std::max<int64_t>(0, kernel - 1 - t); j < kernel; ++j) {
          sum = fused(weight[c * kernel + j], x[(t - kernel + 1 + j) * n + c], sum);
        }
        const float s = sigmoid_canonical(sum);
        slopes[size(t * width + c - begin)] = dy[t * n + c] * (s + (sum * s) * (1.0f - s));
      }
    }
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t c = begin; c < end; ++c) {
        float sum = 0.0f;
        for (int64_t j = kernel - 1; j >= 0 && t + kernel - 1 - j < rows; --j) {
          sum = fused(weight[c * kernel + j],
                      slopes[size((t + kernel - 1 - j) * width + c - begin)], sum);
        }
        dx[t * n + c] = sum;
      }
    }
  });
}

void attention_gradient(const AttentionShape& shape, int64_t rows, const float* q, const float* k,
                        const float* v, const float* dy, float* dq, float* dk, float* dv) {
  parallel_for(shape.n_kv_heads, 1, [&](int64_t begin, int64_t end) {
    AttentionTask task(shape, rows);
    for (int64_t head = begin; head < end; ++head) {
      task.run(static_cast<int>(head), q, k, v, dy, dq, dk, dv);
    }
  });
}

uint64_t attention_gradient_bytes(const AttentionShape& shape, int64_t rows) {
  return size(rows * 2 * (shape.head_dim + kQueryTile)) * sizeof(float);
}

void delta_net_gradient(const DeltaNetSpec& spec, const DeltaNetTensors& in, int64_t rows,
                        const float* dy, float* d_qkv, float* d_a, float* d_b) {
  std::fill_n(d_qkv, rows * spec.conv_columns(), 0.0f);
  // The value heads of a key head add to the same derivatives, one after another.
  const int64_t per_key = spec.n_value_heads / spec.n_key_heads;
  parallel_for(spec.n_key_heads, 1, [&](int64_t begin, int64_t end) {
    DeltaNetTask task(spec, in, rows);
    for (int64_t head = begin * per_key; head < end * per_key; ++head) {
      task.run(head, dy, d_qkv, d_a, d_b);
    }
  });
}

uint64_t delta_net_gradient_bytes(const DeltaNetSpec& spec, int64_t rows) {
  const auto state = size(int64_t{spec.value_dim} * spec.key_dim) * sizeof(float);
  return (size((rows + kStateChunk - 1) / kStateChunk + kStateChunk + 3)) * state;
}

}  // namespace assay
