#pragma once

#include <span>

namespace assay {

/// KLD(A ‖ B) in nats of the two next-token distributions of a row, in fp64 from the fp32 logits:
/// Σ p_A·(a − b) − (lse_A − lse_B), where differences of logits are exact or rounded once and equal
/// rows give exactly 0. Never negative (what rounding leaves below 0 counts as 0). Own exp and log
/// and eight fixed accumulators: the same bits on every machine.
double kld_of_rows(std::span<const float> a, std::span<const float> b);

/// log Σ exp(l) in fp64.
double log_sum_exp_fp64(std::span<const float> logits);

/// e^mean_nll, for mean_nll ≥ 0.
double perplexity(double mean_nll);

}  // namespace assay
