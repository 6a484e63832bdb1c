#include <algorithm>
#include <vector>

#include "runtime/math.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/ops/route.h"

namespace assay {

int64_t route(const float* logits, const RouteOptions& options, const float* scales, float* ids,
              float* weights) {
  const int n = options.n_experts;
  for (int i = 0; i < n; ++i) {
    if (is_not_finite(logits[i])) return i;
  }
  const float most = *std::max_element(logits, logits + n);
  std::vector<float> shares(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) shares[static_cast<size_t>(i)] = exp_canonical(logits[i] - most);
  const float all = lane_sum(shares.data(), n);
  for (float& share : shares) share = share / all;

  std::vector<int> chosen;
  for (int j = 0; j < options.top_k; ++j) {
    int best = -1;
    for (int i = 0; i < n; ++i) {
      if (std::find(chosen.begin(), chosen.end(), i) != chosen.end()) continue;
      if (best < 0 || shares[static_cast<size_t>(i)] > shares[static_cast<size_t>(best)]) best = i;
    }
    chosen.push_back(best);
  }
  std::sort(chosen.begin(), chosen.end());
  float sum = shares[static_cast<size_t>(chosen.front())];
  for (size_t j = 1; j < chosen.size(); ++j) sum = sum + shares[static_cast<size_t>(chosen[j])];
  for (size_t j = 0; j < chosen.size(); ++j) {
    const float share = shares[static_cast<size_t>(chosen[j])];
    ids[j] = static_cast<float>(chosen[j]);
    weights[j] = options.normalize ? share / sum : share;
    if (scales != nullptr) weights[j] = weights[j] * scales[chosen[j]];
  }
  return -1;
}

void weighted_sum(const float* weights, const float* x, int64_t n, int64_t columns, float* out) {
  for (int64_t c = 0; c < columns; ++c) out[c] = weights[0] * x[c];
  for (int64_t j = 1; j < n; ++j) {
    const float* row = x + j * columns;
    for (int64_t c = 0; c < columns; ++c) {
      const float product = weights[j] * row[c];
      out[c] = out[c] + product;
    }
  }
}

}  // namespace assay
