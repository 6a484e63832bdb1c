#include "runtime/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "runtime/math.h"
#include "runtime/ops/nll.h"

namespace assay {
namespace {

struct Candidate {
  int32_t id = 0;
  float weight = 0.0f;
};

bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

bool by_id(const Candidate& a, const Candidate& b) { return a.id < b.id; }

/// fp64 chain over ascending ids.
double total_weight(const std::vector<Candidate>& candidates) {
  double total = 0.0;
  for (const Candidate& c : candidates) total = total + static_cast<double>(c.weight);
  return total;
}

std::vector<Candidate> weigh(std::span<const float> logits, float temperature) {
  const float max = logits[static_cast<size_t>(argmax(logits))] / temperature;
  std::vector<Candidate> candidates(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {static_cast<int32_t>(i), exp_canonical(logits[i] / temperature - max)};
  }
  return candidates;
}

void keep_top_k(int64_t k, std::vector<Candidate>& candidates) {
  if (k == 0 || k >= static_cast<int64_t>(candidates.size())) return;
  std::nth_element(candidates.begin(), candidates.begin() + k, candidates.end(), ranks_before);
  candidates.resize(static_cast<size_t>(k));
  std::sort(candidates.begin(), candidates.end(), by_id);
}

/// Takes the best ones off a heap: the head is short as a rule, the vocabulary is not.
void keep_top_p(float p, std::vector<Candidate>& candidates) {
  if (p >= 1.0f) return;
  const double wanted = static_cast<double>(p) * total_weight(candidates);
  const auto ranks_after = [](const Candidate& a, const Candidate& b) {
    return ranks_before(b, a);
  };
  std::make_heap(candidates.begin(), candidates.end(), ranks_after);
  std::vector<Candidate> kept;
  double reached = 0.0;
  while (!candidates.empty() && (kept.empty() || reached < wanted)) {
    std::pop_heap(candidates.begin(), candidates.end(), ranks_after);
    kept.push_back(candidates.back());
    reached = reached + static_cast<double>(candidates.back().weight);
    candidates.pop_back();
  }
  std::sort(kept.begin(), kept.end(), by_id);
  candidates = std::move(kept);
}

void keep_min_p(float min_p, std::vector<Candidate>& candidates) {
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < min_p; });
}

/// 53 random bits as a number in [0, 1).
double uniform(uint64_t seed, int64_t position) {
  const auto at = static_cast<uint64_t>(position);
  const auto words = philox4x32({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0, 0},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (static_cast<uint64_t>(words[1]) << 32) | words[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

void check_sampling_options(const SamplingOptions& options) {
  const auto refuse = [](const std::string& name, double value, const char* expected) {
    throw UsageError(fmt::format("--{}: found {}, expected {}", name, value, expected));
  };
  if (!(options.temperature >= 0.0f) || is_not_finite(options.temperature)) {
    refuse("temperature", options.temperature, "0 (greedy) or a positive number");
  }
  if (options.top_k < 0) refuse("top-k", static_cast<double>(options.top_k), "0 (off) or more");
  if (!(options.top_p > 0.0f && options.top_p <= 1.0f)) {
    refuse("top-p", options.top_p, "a number in (0, 1]");
  }
  if (!(options.min_p >= 0.0f && options.min_p <= 1.0f)) {
    refuse("min-p", options.min_p, "a number in [0, 1]");
  }
}

int32_t sample(std::span<const float> logits, const SamplingOptions& options, int64_t position) {
  if (options.temperature == 0.0f) return argmax(logits);
  std::vector<Candidate> candidates = weigh(logits, options.temperature);
  keep_top_k(options.top_k, candidates);
  keep_top_p(options.top_p, candidates);
  keep_min_p(options.min_p, candidates);
  const double threshold = uniform(options.seed, position) * total_weight(candidates);
  double reached = 0.0;
  for (const Candidate& c : candidates) {
    reached = reached + static_cast<double>(c.weight);
    if (reached > threshold) return c.id;
  }
  // u < 1 but u · total may round up to total: the last candidate with any weight.
  for (size_t i = candidates.size(); i-- > 0;) {
    if (candidates[i].weight > 0.0f) return candidates[i].id;
  }
  return argmax(logits);
}

}  // namespace assay
