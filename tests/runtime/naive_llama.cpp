#include "tests/runtime/naive_llama.h"

#include <algorithm>
#include <cmath>

namespace assay::test {
namespace {

using Rows = std::vector<std::vector<double>>;  // one vector per token

class NaiveLlama {
 public:
  explicit NaiveLlama(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), spec_(checkpoint.spec()) {}

  Rows forward(std::span<const int32_t> ids) const {
    Rows h = embed(ids);
    for (size_t i = 0; i < spec_.layers.size(); ++i) layer(static_cast<int>(i), h);
    for (auto& row : h) row = norm(row, Role::kOutputNorm, -1);
    return linear(h, Role::kHead, -1, std::nullopt);
  }

 private:
  std::vector<double> weights(Role role, int layer, int64_t row, int64_t columns) const {
    std::vector<float> values(static_cast<size_t>(columns));
    checkpoint_.matrix(role, layer).decode_row(row, values);
    return {values.begin(), values.end()};
  }

  Rows embed(std::span<const int32_t> ids) const {
    Rows h;
    for (const int32_t id : ids) {
      h.push_back(weights(Role::kTokenEmbedding, -1, id, spec_.hidden_size));
    }
    return h;
  }

  std::vector<double> norm(const std::vector<double>& x, Role role, int layer) const {
    const std::vector<float> w = checkpoint_.vector(role, layer);
    double squares = 0.0;
    for (const double v : x) squares += v * v;
    const double r = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + spec_.rms_norm_eps);
    std::vector<double> y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * r * static_cast<double>(w[i]);
    return y;
  }

  Rows linear(const Rows& x, Role role, int layer, std::optional<Role> bias) const {
    const int64_t n_rows = checkpoint_.matrix(role, layer).view.rows;
    const std::vector<float> b = bias ? checkpoint_.vector(*bias, layer) : std::vector<float>();
    Rows y(x.size(), std::vector<double>(static_cast<size_t>(n_rows)));
    for (int64_t row = 0; row < n_rows; ++row) {
      const auto w = weights(role, layer, row, static_cast<int64_t>(x[0].size()));
      const auto at = static_cast<size_t>(row);
      for (size_t t = 0; t < x.size(); ++t) {
        double sum = b.empty() ? 0.0 : static_cast<double>(b[at]);
        for (size_t k = 0; k < w.size(); ++k) sum += w[k] * x[t][k];
        y[t][at] = sum;
      }
    }
    return y;
  }

  void rope(Rows& x, int n_heads, const AttentionSpec& spec) const {
    const int d = spec.head_dim;
    for (size_t t = 0; t < x.size(); ++t) {
      for (int head = 0; head < n_heads; ++head) {
        for (int i = 0; i < d / 2; ++i) {
          const double angle = static_cast<double>(t) * std::pow(spec.rope.theta, -2.0 * i / d);
          double& x1 = x[t][static_cast<size_t>(head * d + i)];
          double& x2 = x[t][static_cast<size_t>(head * d + i + d / 2)];
          const double y1 = x1 * std::cos(angle) - x2 * std::sin(angle);
          const double y2 = x2 * std::cos(angle) + x1 * std::sin(angle);
          x1 = y1;
          x2 = y2;
        }
      }
    }
  }

  Rows attention(const Rows& q, const Rows& k, const Rows& v, const AttentionSpec& spec) const {
    const int d = spec.head_dim;
    Rows out(q.size(), std::vector<double>(q[0].size(), 0.0));
    for (size_t t = 0; t < q.size(); ++t) {
      for (int head = 0; head < spec.n_heads; ++head) {
        const int kv = head / (spec.n_heads / spec.n_kv_heads);
        const auto window = static_cast<size_t>(spec.sliding_window.value_or(1 << 30));
        const size_t first = t + 1 > window ? t + 1 - window : 0;
        std::vector<double> p;
        double max = -INFINITY, sum = 0.0;
        for (size_t j = first; j <= t; ++j) {
          double score = 0.0;
          for (int i = 0; i < d; ++i) {
            score +=
                q[t][static_cast<size_t>(head * d + i)] * k[j][static_cast<size_t>(kv * d + i)];
          }
          p.push_back(score / std::sqrt(static_cast<double>(d)));
          max = std::max(max, p.back());
        }
        for (double& weight : p) sum += weight = std::exp(weight - max);
        for (size_t j = first; j <= t; ++j) {
          for (int i = 0; i < d; ++i) {
            out[t][static_cast<size_t>(head * d + i)] +=
                p[j - first] / sum * v[j][static_cast<size_t>(kv * d + i)];
          }
        }
      }
    }
    return out;
  }

  static void add(Rows& x, const Rows& y) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += y[t][i];
    }
  }

  void layer(int layer, Rows& h) const {
    const AttentionSpec& a = spec_.layers[static_cast<size_t>(layer)].attention;
    const MlpSpec& mlp = spec_.layers[static_cast<size_t>(layer)].mlp;
    const auto when = [](bool present, Role role) {
      return present ? std::optional(role) : std::nullopt;
    };
    Rows u;
    for (const auto& row : h) u.push_back(norm(row, Role::kAttentionNorm, layer));
    Rows q = linear(u, Role::kQProj, layer, when(a.qkv_bias, Role::kQBias));
    Rows k = linear(u, Role::kKProj, layer, when(a.qkv_bias, Role::kKBias));
    const Rows v = linear(u, Role::kVProj, layer, when(a.qkv_bias, Role::kVBias));
    rope(q, a.n_heads, a);
    rope(k, a.n_kv_heads, a);
    add(h, linear(attention(q, k, v, a), Role::kOProj, layer, when(a.o_bias, Role::kOBias)));
    u.clear();
    for (const auto& row : h) u.push_back(norm(row, Role::kMlpNorm, layer));
    Rows gate = linear(u, Role::kGateProj, layer, when(mlp.bias, Role::kGateBias));
    const Rows up = linear(u, Role::kUpProj, layer, when(mlp.bias, Role::kUpBias));
    for (size_t t = 0; t < gate.size(); ++t) {
      for (size_t i = 0; i < gate[t].size(); ++i) {
        gate[t][i] = gate[t][i] / (1.0 + std::exp(-gate[t][i])) * up[t][i];
      }
    }
    add(h, linear(gate, Role::kDownProj, layer, when(mlp.bias, Role::kDownBias)));
  }

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
};

}  // namespace

std::vector<double> naive_llama_logits(const Checkpoint& checkpoint, std::span<const int32_t> ids) {
  std::vector<double> logits;
  for (const auto& row : NaiveLlama(checkpoint).forward(ids)) {
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

}  // namespace assay::test
