#pragma once

#include <cstdint>

namespace assay {

/// How the experts of one token are chosen.
struct RouteOptions {
  int n_experts = 0;
  int top_k = 0;          // 1 to n_experts
  bool normalize = true;  // weights of the chosen are divided by their sum
};

/// p = softmax over all experts, in fp32: m = max; p_i = exp(logit_i − m); each divided by their
/// lane sum. The top_k largest are chosen, ties to the lowest id, and stand in ascending order of
/// ids: their weights are p, divided by their sum (one chain of additions in that order) where
/// `normalize` says so, times scales[id] where there are scales.
/// logits   (n_experts)
/// scales   (n_experts), or nullptr
/// ids      (top_k), whole numbers
/// weights  (top_k)
/// Returns −1, or the index of the first logit that is NaN or infinite.
/// Source: transformers' modeling_qwen3_moe.py, modeling_gemma4.py; ties by arithmetic.md §1.
int64_t route(const float* logits, const RouteOptions& options, const float* scales, float* ids,
              float* weights);

/// out = Σ weights[j]·x_j in the order of j: the first product starts the sum, each further product
/// is rounded and added. x (n, columns), out (columns).
void weighted_sum(const float* weights, const float* x, int64_t n, int64_t columns, float* out);

}  // namespace assay
