#pragma once

#include <span>
#include <string>

#include "verify/equivalence.h"
#include "verify/weights.h"

namespace assay {

// The single checks of verify_equivalence; each returns one Check and judges it by the policy.

/// Whether both sides have what check_tokenizer compares.
bool can_check_tokenizer(const Side& a, const Side& b);
/// Of two models: whether text becomes the same ids and ids the same text, the chat templates, and
/// what ends a text. Of a model and a bundle: whether the texts of the bundle's prompts become the
/// ids beside them. Reported where a tokenizer cannot be read because Assay does not support it;
/// throws FormatError for one that does not hold together.
Check check_tokenizer(const Side& a, const Side& b);
Check check_weights(const WeightsComparison& comparison, const Policy& policy);
Check check_logits(Side& a, Side& b, const TokenPlan& plan, const Policy& policy, WorkMeter& meter);
/// Hidden states of the all-positions prompt, where one side is a bundle that has them. Names the
/// first layer that is farther off than the limit for logits.
std::optional<Check> check_hidden(Side& a, Side& b, const TokenPlan& plan, const Policy& policy);
Check check_greedy(Side& a, Side& b, const TokenPlan& plan, int64_t n_new_tokens,
                   const Policy& policy, WorkMeter& meter);
Check check_nll(Side& a, Side& b, const EvaluationWindows& windows, const Policy& policy,
                WorkMeter& meter);
Check check_self_equality_of(std::string_view name, Executor& executor, const TokenPlan& plan);

/// Adds where two models' logits first differ (op, layer, module, index, both values) to a check.
/// `prompt_id` is a prompt whose logits differ.
void add_location(Side& a, Side& b, const TokenPlan& plan, Check& check);

}  // namespace assay
