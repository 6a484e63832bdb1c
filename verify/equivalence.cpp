#include "verify/equivalence.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/core/error.h"
#include "convert/core/version.h"
#include "verify/checks.h"
#include "verify/describe.h"
#include "verify/self_equality.h"
#include "verify/weights.h"

namespace assay {
namespace {

KvType choose_kv_type(const Side& a, const Side& b, const EquivalenceOptions& options) {
  if (options.kv_type) return *options.kv_type;
  for (const Side* side : {&a, &b}) {
    if (!side->is_bundle()) continue;
    const auto type = kv_type_from_name(side->bundle().header().kv_type);
    if (type) return *type;
  }
  return KvType::kF16;
}

/// The bundle of a pair, or nullptr.
const ReferenceBundle* bundle_of(const Side& a, const Side& b) {
  if (a.is_bundle()) return &a.bundle();
  return b.is_bundle() ? &b.bundle() : nullptr;
}

bool is_canonical(const PromptFile& header, std::string_view kv_type) {
  return header.arithmetic == kArithmetic && header.kv_type == kv_type;
}

PairKind pair_kind(const Side& a, const Side& b, KvType kv_type,
                   const std::optional<WeightsComparison>& weights) {
  if (const ReferenceBundle* bundle = bundle_of(a, b)) {
    const Side& other = a.is_bundle() ? b : a;
    const bool canonical = other.is_bundle()
                               ? is_canonical(bundle->header(), other.bundle().header().kv_type) &&
                                     other.bundle().header().arithmetic == kArithmetic
                               : is_canonical(bundle->header(), kv_type_name(kv_type));
    return canonical ? PairKind::kCanonicalReference : PairKind::kForeignReference;
  }
  if (!weights || weights->same_formats()) return PairKind::kSameFormats;
  return weights->plain_a() != weights->plain_b() ? PairKind::kQuantizedOriginal
                                                  : PairKind::kSameWeightsOtherFormats;
}

/// Positions that a model's context has room for.
int64_t most_positions(const Side& side) {
  if (side.checkpoint()) return side.checkpoint()->spec().context_length;
  if (!side.has_executor()) return INT64_MAX;
  const int64_t context = side.executor_context();
  return context > 0 ? context : INT64_MAX;
}

/// New tokens of the greedy runs: what the bundles have, else what was asked for.
int64_t greedy_tokens(const Side& a, const Side& b, const EquivalenceOptions& options) {
  if (bundle_of(a, b) == nullptr) return options.n_new_tokens;
  int64_t n = 0;
  for (const Side* side : {&a, &b}) {
    if (!side->is_bundle()) continue;
    for (const ReferenceGreedy& greedy : side->bundle().greedy()) {
      n = std::max(n, static_cast<int64_t>(greedy.run.token_ids.size()));
    }
  }
  return n;
}

/// Positions per sequence that the plan needs.
int64_t needed_context(const TokenPlan& plan, int64_t n_new_tokens) {
  int64_t most = 8;  // the three decode steps of the self-equality check always fit
  for (const ReferencePrompt& prompt : plan.prompts) {
    const bool greedy = std::find(plan.greedy_ids.begin(), plan.greedy_ids.end(), prompt.id) !=
                        plan.greedy_ids.end();
    most = std::max(most, static_cast<int64_t>(prompt.token_ids.size()) +
                              (greedy ? std::max<int64_t>(n_new_tokens, 8) : 8));
  }
  if (plan.windows) most = std::max(most, plan.windows->window_length);
  return most;
}

void drop_greedy_without_room(int64_t room, int64_t n_new_tokens, TokenPlan& plan) {
  std::erase_if(plan.greedy_ids, [&](const std::string& id) {
    const auto n = static_cast<int64_t>(plan.find_prompt(id)->token_ids.size());
    if (n <= room - n_new_tokens) return false;
    plan.notes.push_back(
        fmt::format("prompt \"{}\" is not continued: {} + {} tokens, the context "
                    "is {}",
                    id, n, n_new_tokens, room));
    return true;
  });
}

/// A limit that no figure is held against would let every model pass.
void require_figures_for_limits(const Side& a, const Side& b, const EquivalenceOptions& options,
                                const TokenPlan& plan) {
  const PolicyRequest& limits = options.policy;
  if (limits.max_logit_difference && !options.logits) {
    throw UsageError("--max-logit-difference judges the logits: leave out --skip logits");
  }
  const std::string_view name = limits.max_kld                     ? "--max-kld"
                                : limits.max_delta_nll             ? "--max-delta-nll"
                                : limits.max_window_nll_difference ? "--max-window-nll-difference"
                                                                   : "";
  if (name.empty()) return;
  if (!options.nll) throw UsageError(fmt::format("{} judges the NLL: leave out --skip nll", name));
  const bool bundle = a.is_bundle() || b.is_bundle();
  if (!plan.windows) {
    throw UsageError(fmt::format("{} is a limit over windows of text, and there are none: {}", name,
                                 bundle ? "take reference bundles that have an nll.json"
                                        : "add --text FILE or --token-ids FILE"));
  }
  if (limits.max_kld && bundle) {
    throw UsageError(
        "--max-kld needs the distributions of two models, which a reference bundle does not hold: "
        "compare the models, or use --max-delta-nll");
  }
}

/// What the models are fed, and what room that takes.
struct Work {
  TokenPlan plan;
  int64_t n_new_tokens = 0;
  ExecutorOptions executor;
};

bool runs_greedy(const EquivalenceOptions& options, const Work& work) {
  return options.greedy && !work.plan.greedy_ids.empty() && work.n_new_tokens > 0;
}

/// A tokenizer that was named replaces those of the sides.
bool runs_tokenizer(const Side& a, const Side& b, const EquivalenceOptions& options) {
  return options.tokenizer && options.tokens.tokenizer.empty() && can_check_tokenizer(a, b);
}

/// Why tokenizers of models are not compared though nobody asked for that; empty: they are.
std::string tokenizer_note(const Side& a, const Side& b, const EquivalenceOptions& options) {
  if (!options.tokenizer || !a.checkpoint() || !b.checkpoint()) return {};
  if (!options.tokens.tokenizer.empty()) {
    return "tokenizers are not compared: --tokenizer replaces them";
  }
  if (a.has_tokenizer() && b.has_tokenizer()) return {};
  return fmt::format("tokenizers are not compared: {} none", a.has_tokenizer() ? "B has"
                                                             : b.has_tokenizer()
                                                                 ? "A has"
                                                                 : "the sides have");
}

/// Names of the checks in the order in which they run.
std::vector<std::string> planned_checks(const Side& a, const Side& b,
                                        const EquivalenceOptions& options, const Work& work) {
  std::vector<std::string> checks;
  if (options.weights && a.checkpoint() && b.checkpoint()) checks.emplace_back("weights");
  if (runs_tokenizer(a, b, options)) checks.emplace_back("tokenizer");
  if (options.logits) checks.emplace_back("logits");
  if (runs_greedy(options, work)) checks.emplace_back("greedy");
  if (options.nll && work.plan.windows) checks.emplace_back("nll");
  if (options.self_equality && !a.is_bundle()) checks.emplace_back("self-equality A");
  if (options.self_equality && !b.is_bundle()) checks.emplace_back("self-equality B");
  return checks;
}

/// Tokens that each model runs in them, but for self-equality.
int64_t planned_tokens(const EquivalenceOptions& options, const Work& work) {
  int64_t n = 0;
  for (const ReferencePrompt& prompt : work.plan.prompts) {
    if (options.logits) n += static_cast<int64_t>(prompt.token_ids.size());
  }
  for (const std::string& id : work.plan.greedy_ids) {
    if (!runs_greedy(options, work)) break;
    n += static_cast<int64_t>(work.plan.find_prompt(id)->token_ids.size()) + work.n_new_tokens;
  }
  if (options.nll && work.plan.windows) {
    n += static_cast<int64_t>(work.plan.windows->windows.size()) * work.plan.windows->window_length;
  }
  return n;
}

void require_checks(const Side& a, const Side& b, const EquivalenceOptions& options,
                    const Work& work) {
  if (!planned_checks(a, b, options, work).empty()) return;
  throw UsageError(
      "no check is left to run: give fewer --skip, or a text (--text, --token-ids) for the NLL");
}

Work plan_work(const Side& a, const Side& b, const EquivalenceOptions& options) {
  require_one_policy(options.policy);
  Work work;
  const int64_t room = std::min(most_positions(a), most_positions(b));
  work.n_new_tokens = greedy_tokens(a, b, options);
  work.plan = plan_tokens(a, b, options.tokens, room);
  require_figures_for_limits(a, b, options, work.plan);
  drop_greedy_without_room(room, work.n_new_tokens, work.plan);
  if (std::string note = tokenizer_note(a, b, options); !note.empty()) {
    work.plan.notes.push_back(std::move(note));
  }
  work.executor.kv_type = choose_kv_type(a, b, options);
  work.executor.n_sequences = options.self_equality ? kSelfEqualitySequences : 1;
  work.executor.context = std::min(room, needed_context(work.plan, work.n_new_tokens));
  require_checks(a, b, options, work);
  return work;
}

std::string describe_prompts(const TokenPlan& plan) {
  return fmt::format("{} prompts, {}", plan.prompts.size(), plan.prompts_source);
}

std::string different_vocabularies(const Side& a, const Side& b) {
  return fmt::format("{} tokens against {}: logits cannot be compared", a.vocab_size(),
                     b.vocab_size());
}

void load_models(Side& a, Side& b, const ExecutorOptions& executor,
                 const std::string& device_name) {
  const bool needed =
      (a.checkpoint() && !a.has_executor()) || (b.checkpoint() && !b.has_executor());
  if (!needed) return;
  const std::unique_ptr<Device> device = open_device(device_name);
  a.load(*device, executor);
  b.load(*device, executor);
}

constexpr double kSelfEqualityCost = 1200.0;  // tokens: a few passes, one of them token by token
constexpr double kLoadCost = 100.0;

/// Cost of everything that run_checks does, in the meter's unit.
double total_cost(const TokenPlan& plan, int64_t n_new_tokens, const EquivalenceOptions& options) {
  double total = kLoadCost;
  for (const ReferencePrompt& prompt : plan.prompts) {
    if (options.logits) total += static_cast<double>(prompt.token_ids.size());
  }
  for (const std::string& id : plan.greedy_ids) {
    if (!options.greedy) break;
    total += static_cast<double>(plan.find_prompt(id)->token_ids.size()) +
             WorkMeter::kDecodeCost * static_cast<double>(n_new_tokens);
  }
  if (plan.windows && options.nll) {
    total += static_cast<double>(plan.windows->n_scored()) +
             static_cast<double>(plan.windows->windows.size());
  }
  return total + (options.self_equality ? 2.0 * kSelfEqualityCost : 0.0);
}

/// Everything that runs the models.
void run_checks(Side& a, Side& b, const TokenPlan& plan, int64_t n_new_tokens,
                const EquivalenceOptions& options, WorkMeter& meter, EquivalenceReport& report) {
  const Policy& policy = report.policy;
  if (options.logits) {
    Check logits = check_logits(a, b, plan, policy, meter);
    if (logits.outcome == Outcome::kDifferent) {
      meter.begin("looking for the first differing op", 0.0);
      add_location(a, b, plan, logits);
    }
    report.checks.push_back(std::move(logits));
    if (auto hidden = check_hidden(a, b, plan, policy)) report.checks.push_back(std::move(*hidden));
  }
  if (options.greedy && !plan.greedy_ids.empty() && n_new_tokens > 0) {
    report.checks.push_back(check_greedy(a, b, plan, n_new_tokens, policy, meter));
  }
  if (options.nll && plan.windows) {
    report.checks.push_back(check_nll(a, b, *plan.windows, policy, meter));
  }
  if (!options.self_equality) return;
  for (Side* side : {&a, &b}) {
    if (!side->has_executor()) continue;
    const std::string_view name = side == &a ? "A" : "B";
    meter.begin(fmt::format("self-equality of {}", name), kSelfEqualityCost);
    report.checks.push_back(check_self_equality_of(name, side->executor(), plan));
  }
}

}  // namespace

std::string_view outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kEqual:
      return "equal";
    case Outcome::kWithin:
      return "within limit";
    case Outcome::kReported:
      return "reported";
    case Outcome::kDifferent:
      return "different";
  }
  return "different";
}

bool EquivalenceReport::equal() const {
  return std::none_of(checks.begin(), checks.end(),
                      [](const Check& check) { return check.outcome == Outcome::kDifferent; });
}

bool EquivalenceReport::judged() const {
  return std::any_of(checks.begin(), checks.end(), [](const Check& check) {
    return check.judges && check.outcome != Outcome::kReported;
  });
}

EquivalenceReport verify_equivalence(Side& a, Side& b, const EquivalenceOptions& options,
                                     const VerifyProgress& progress) {
  EquivalenceReport report;
  const KvType kv_type = choose_kv_type(a, b, options);
  report.kv_type = std::string(kv_type_name(kv_type));
  const bool same_vocabulary = a.vocab_size() == b.vocab_size();
  // Before the weights are read, which takes long: it finds what is wrong with the options.
  const Work work = same_vocabulary ? plan_work(a, b, options) : Work{};

  std::optional<WeightsComparison> weights;
  if (a.checkpoint() && b.checkpoint()) {
    weights = compare_weights(*a.checkpoint(), *b.checkpoint(),
                              [&](size_t, size_t, const std::string& name) {
                                if (progress) progress(0.0, "weights of " + name);
                              });
  }
  const ReferenceBundle* bundle = bundle_of(a, b);
  report.policy = choose_policy(pair_kind(a, b, kv_type, weights), options.policy, kv_type,
                                bundle == nullptr ? Json() : bundle->noise());
  if (weights && options.weights) {
    report.checks.push_back(check_weights(*weights, report.policy));
  }
  if (runs_tokenizer(a, b, options)) report.checks.push_back(check_tokenizer(a, b));
  if (!same_vocabulary) {
    Check check;
    check.name = "vocabulary";
    check.outcome = Outcome::kDifferent;
    check.summary = different_vocabularies(a, b);
    report.checks.push_back(std::move(check));
    report.side_a = a.to_json();
    report.side_b = b.to_json();
    return report;
  }

  const TokenPlan& plan = work.plan;
  WorkMeter meter(progress, total_cost(plan, work.n_new_tokens, options));
  meter.begin("loading", kLoadCost);
  load_models(a, b, work.executor, options.device);

  report.side_a = a.to_json();
  report.side_b = b.to_json();
  report.prompts = describe_prompts(plan);
  if (plan.windows) report.windows = plan.windows->describe();
  for (const Side* side : {&a, &b}) {
    if (!side->checkpoint()) continue;
    for (const std::string& warning : side->checkpoint()->warnings()) {
      report.notes.push_back(fmt::format("{}: {}", side == &a ? "A" : "B", warning));
    }
  }
  report.notes.insert(report.notes.end(), plan.notes.begin(), plan.notes.end());
  run_checks(a, b, plan, work.n_new_tokens, options, meter, report);
  return report;
}

uint64_t EquivalencePlan::memory_bytes() const {
  uint64_t total = 0;
  for (const LedgerItem& item : memory) total += item.bytes;
  return total;
}

EquivalencePlan plan_equivalence(const Side& a, const Side& b, const EquivalenceOptions& options) {
  if (a.vocab_size() != b.vocab_size()) throw UnsupportedError(different_vocabularies(a, b));
  const Work work = plan_work(a, b, options);
  EquivalencePlan plan;
  plan.side_a = a.to_json();
  plan.side_b = b.to_json();
  plan.kv_type = std::string(kv_type_name(work.executor.kv_type));
  plan.prompts = describe_prompts(work.plan);
  if (work.plan.windows) plan.windows = work.plan.windows->describe();
  plan.notes = work.plan.notes;
  plan.context = work.executor.context;

  plan.checks = planned_checks(a, b, options, work);
  plan.n_tokens = planned_tokens(options, work);
  const std::unique_ptr<Device> device = open_device(options.device);
  for (const Side* side : {&a, &b}) {
    const std::string name = side == &a ? "A" : "B";
    if (!side->checkpoint()) continue;
    for (LedgerItem& item : device->estimate(*side->checkpoint(), work.executor)) {
      plan.memory.push_back({name + ": " + item.name, item.bytes});
    }
  }
  return plan;
}

}  // namespace assay
