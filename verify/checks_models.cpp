// Checks of models as files and of a model against itself.

#include <fmt/format.h>

#include <algorithm>

#include "convert/core/error.h"
#include "verify/checks.h"
#include "verify/describe.h"
#include "verify/locate.h"
#include "verify/self_equality.h"

namespace assay {
namespace {

constexpr size_t kMostDetails = 8;
constexpr int64_t kSelfTokens = 160;  // longest prompt of the self-equality check

/// Whether the policy wants these two tensors to be equal.
bool must_be_equal(const TensorComparison& tensor, const Policy& policy) {
  if (policy.bitwise || policy.weights == Policy::Weights::kAll) return true;
  if (policy.weights == Policy::Weights::kNone) return false;
  return !tensor.fault.empty() ||
         (tensor.plain_a && tensor.plain_b && tensor.format_a == tensor.format_b);
}

void add_capped(std::vector<std::string>& details, std::string line, size_t& n_hidden) {
  if (details.size() < kMostDetails) {
    details.push_back(std::move(line));
  } else {
    ++n_hidden;
  }
}

}  // namespace

Check check_weights(const WeightsComparison& comparison, const Policy& policy) {
  Check check;
  check.name = "weights";
  const size_t n = comparison.tensors.size();
  uint64_t n_wrong = 0;
  size_t n_hidden = 0;
  std::optional<double> worst;
  uint64_t n_faults = 0;
  Json tensors = Json::array();
  for (const std::string& difference : comparison.spec_differences) {
    add_capped(check.details, difference, n_hidden);
  }
  for (const TensorComparison& tensor : comparison.tensors) {
    if (tensor.equal()) continue;
    tensors.push(tensor.to_json());
    if (tensor.fault.empty()) {
      worst = std::max(worst.value_or(0.0), tensor.relative_difference);
    } else {
      ++n_faults;
    }
    const bool wrong = must_be_equal(tensor, policy);
    n_wrong += wrong ? 1 : 0;
    if (wrong) add_capped(check.details, tensor.describe(), n_hidden);
  }
  if (n_hidden > 0) check.details.push_back(fmt::format("… and {} more", n_hidden));
  const uint64_t n_different = comparison.n_different();
  if (n_wrong > 0 || !comparison.spec_differences.empty()) {
    check.outcome = Outcome::kDifferent;
  } else if (n_different > 0) {
    check.outcome = Outcome::kReported;
  }
  check.summary = n_different == 0 ? fmt::format("{} tensors hold equal values", n)
                                   : fmt::format("{} of {} tensors differ", n_different, n);
  if (worst) check.summary += fmt::format(", rms up to {} of the values", describe_figure(*worst));
  if (n_faults > 0) check.summary += fmt::format(", {} cannot be compared", n_faults);
  if (check.outcome == Outcome::kReported) check.summary += "; quantized ones, as expected";
  if (!comparison.spec_differences.empty()) {
    check.summary +=
        fmt::format("; {} settings of the models differ", comparison.spec_differences.size());
  }
  check.data.set("n_tensors", uint64_t{n});
  check.data.set("n_different", n_different);
  Json specs = Json::array();
  for (const std::string& difference : comparison.spec_differences) specs.push(difference);
  check.data.set("spec_differences", std::move(specs));
  check.data.set("different_tensors", std::move(tensors));
  return check;
}

Check check_self_equality_of(std::string_view name, Executor& executor, const TokenPlan& plan) {
  // The longest prompt that is still quick one token at a time; four of its kind fit into a call.
  int64_t most =
      std::min<int64_t>(kSelfTokens, executor.options().max_batch_tokens / kSelfEqualitySequences);
  if (executor.options().context > 0) {
    most = std::min(most, executor.options().context - kSelfEqualityDecodeSteps);
  }
  const ReferencePrompt* best = nullptr;
  for (const ReferencePrompt& prompt : plan.prompts) {
    const auto n = static_cast<int64_t>(prompt.token_ids.size());
    if (n > most) continue;
    if (best == nullptr || prompt.token_ids.size() > best->token_ids.size()) best = &prompt;
  }
  std::span<const int32_t> ids;
  if (best != nullptr) {
    ids = best->token_ids;
  } else {
    ids = std::span<const int32_t>(plan.prompts.front().token_ids)
              .first(static_cast<size_t>(std::max<int64_t>(1, most)));
  }
  const SelfEquality result = check_self_equality(executor, ids);

  Check check;
  check.name = fmt::format("self-equality {}", name);
  check.judges = false;
  size_t n_different = 0;
  for (const ServingMode& mode : result.modes) {
    if (mode.equal()) continue;
    ++n_different;
    check.details.push_back(fmt::format("{}: {}", mode.name, mode.first_difference));
  }
  check.outcome = n_different == 0 ? Outcome::kEqual : Outcome::kDifferent;
  check.summary =
      n_different == 0
          ? fmt::format(
                "{} tokens give the same bits in {} ways: whole, chunks of 1, 7, 64, after "
                "a reset, several sequences together",
                result.n_tokens, result.modes.size() + 1)
          : fmt::format("{} of {} ways of feeding {} tokens give other bits", n_different,
                        result.modes.size(), result.n_tokens);
  check.data = result.to_json();
  return check;
}

void add_location(Side& a, Side& b, const TokenPlan& plan, Check& check) {
  const Json* id = check.data.find("first_different_prompt");
  if (id == nullptr || !id->is_string() || !a.has_executor() || !b.has_executor()) return;
  const ReferencePrompt* prompt = plan.find_prompt(id->as_string());
  ASSAY_CHECK(prompt != nullptr);
  const Location location = locate_first_difference(a.executor(), b.executor(), prompt->token_ids,
                                                    a.checkpoint().get(), b.checkpoint().get());
  if (!location.difference) {
    check.details.push_back(
        fmt::format("prompt \"{}\" run op by op: {}", prompt->id, location.reason));
    return;
  }
  check.details.push_back(fmt::format("prompt \"{}\" run op by op:", prompt->id));
  for (std::string& line : location.difference->describe()) {
    check.details.push_back("  " + std::move(line));
  }
  check.data.set("location", location.difference->to_json());
}

}  // namespace assay
