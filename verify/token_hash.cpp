#include "verify/token_hash.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/core/error.h"
#include "convert/core/sha256.h"
#include "verify/describe.h"
#include "verify/logits.h"
#include "verify/run_model.h"

namespace assay {
namespace {

int32_t id_at(std::span<const int32_t> ids, size_t step) {
  return step < ids.size() ? ids[step] : -1;
}

std::optional<float> margin_at(const GreedyRun& run, size_t step) {
  if (step >= run.margins.size()) return std::nullopt;
  return run.margins[step];
}

std::string describe_choice(int32_t id, const std::optional<float>& margin) {
  if (id < 0) return "no token";
  if (!margin) return fmt::format("{}", id);
  return fmt::format("{} (margin {})", id, describe_figure(static_cast<double>(*margin)));
}

Json json_of(const std::optional<float>& value) {
  return value ? Json(static_cast<double>(*value)) : Json(nullptr);
}

}  // namespace

std::string GreedyRun::sha256() const { return sha256_of_token_ids(token_ids); }

GreedyRun run_greedy(Executor& executor, std::span<const int32_t> prompt, int64_t n_new_tokens) {
  GreedyRun run;
  std::vector<float> logits = logits_of_last_position(executor, prompt);
  for (int64_t step = 0; step < n_new_tokens; ++step) {
    const Margin margin = margin_of(logits);
    const int32_t id = margin.best;
    run.token_ids.push_back(id);
    run.margins.push_back(margin.margin);
    run.runner_up.push_back(margin.runner_up);
    if (step + 1 == n_new_tokens) break;
    const BatchItem item{0, {&id, 1}, LogitRows::kLast};
    executor.forward({&item, 1}, logits);
  }
  return run;
}

Json TokenDivergence::to_json() const {
  Json json = Json::object();
  json.set("step", step);
  json.set("a", int64_t{a});
  json.set("b", int64_t{b});
  json.set("margin_a", json_of(margin_a));
  json.set("margin_b", json_of(margin_b));
  return json;
}

std::string TokenDivergence::describe() const {
  return fmt::format("step {}: {} against {}", step, describe_choice(a, margin_a),
                     describe_choice(b, margin_b));
}

std::optional<TokenDivergence> first_divergence(std::span<const int32_t> a,
                                                std::span<const int32_t> b) {
  const size_t n = std::max(a.size(), b.size());
  for (size_t step = 0; step < n; ++step) {
    const int32_t id_a = id_at(a, step), id_b = id_at(b, step);
    if (id_a != id_b) {
      return TokenDivergence{static_cast<int64_t>(step), id_a, id_b, std::nullopt, std::nullopt};
    }
  }
  return std::nullopt;
}

std::optional<TokenDivergence> first_divergence(const GreedyRun& a, const GreedyRun& b) {
  auto divergence = first_divergence(std::span(a.token_ids), std::span(b.token_ids));
  if (divergence) {
    divergence->margin_a = margin_at(a, static_cast<size_t>(divergence->step));
    divergence->margin_b = margin_at(b, static_cast<size_t>(divergence->step));
  }
  return divergence;
}

}  // namespace assay
