#include "verify/token_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/json.h"
#include "convert/safetensors.h"
#include "convert/tokenizer/unicode.h"

namespace assay {
namespace {

constexpr int64_t kDefaultTextWindows = 16;
constexpr size_t kGreedyPromptTokens = 300;  // longer prompts are not continued by default
constexpr std::array<int64_t, 6> kPromptLengths = {1, 7, 33, 70, 130, 257};
constexpr int64_t kAllPositionsLength = 160;

std::string plural(size_t n, std::string_view word) {
  return fmt::format("{} {}{}", n, word, n == 1 ? "" : "s");
}

/// Counter-based and so the same everywhere (SplitMix64, Steele et al. 2014).
uint64_t mix(uint64_t counter) {
  uint64_t z = (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

ReferencePrompt make_prompt(std::vector<int32_t> ids, bool all_positions, std::string source) {
  ReferencePrompt prompt;
  prompt.id = fmt::format("{}{:04}", all_positions ? "all" : "len", ids.size());
  prompt.kind = all_positions ? "all_positions" : "length";
  prompt.source = std::move(source);
  prompt.token_ids = std::move(ids);
  return prompt;
}

std::vector<ReferencePrompt> generate_prompts(int64_t vocab_size, std::optional<int32_t> bos_id) {
  std::vector<ReferencePrompt> prompts;
  uint64_t counter = 0;
  const auto add = [&](int64_t length, bool all_positions) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(mix(counter++) % static_cast<uint64_t>(vocab_size));
    }
    if (bos_id) ids.front() = *bos_id;
    prompts.push_back(make_prompt(std::move(ids), all_positions, "generated"));
  };
  for (const int64_t length : kPromptLengths) add(length, false);
  add(kAllPositionsLength, true);
  return prompts;
}

/// The first ids of one window after another, so that prompts show different places of the text.
std::vector<ReferencePrompt> cut_prompts(const EvaluationWindows& windows,
                                         const std::string& source) {
  std::vector<ReferencePrompt> prompts;
  size_t next = 0;
  const auto add = [&](int64_t length, bool all_positions) {
    const auto& window = windows.windows[next++ % windows.windows.size()];
    if (static_cast<int64_t>(window.size()) < length) return;
    prompts.push_back(
        make_prompt({window.begin(), window.begin() + length}, all_positions, source));
  };
  for (const int64_t length : kPromptLengths) add(length, false);
  add(kAllPositionsLength, true);
  return prompts;
}

/// Throws where two bundles have one prompt id for different tokens, or different windows.
void require_same_tokens(const ReferenceBundle& a, const ReferenceBundle& b) {
  for (const ReferencePrompt& prompt : a.prompts()) {
    const ReferencePrompt* other = b.find_prompt(prompt.id);
    if (other == nullptr) continue;
    const auto divergence = first_divergence(std::span<const int32_t>(prompt.token_ids),
                                             std::span<const int32_t>(other->token_ids));
    if (divergence) {
      throw FormatError(fmt::format(
          "prompt \"{}\": token ids differ at index {}: {} in {}, {} in {}; results over other "
          "tokens cannot be compared",
          prompt.id, divergence->step, divergence->a, a.path(), divergence->b, b.path()));
    }
  }
}

void require_same_windows(const EvaluationWindows& a, const std::string& name_a,
                          const EvaluationWindows& b, const std::string& name_b) {
  const size_t n = std::min(a.windows.size(), b.windows.size());
  for (size_t i = 0; i < n; ++i) {
    const auto divergence = first_divergence(std::span<const int32_t>(a.windows[i]),
                                             std::span<const int32_t>(b.windows[i]));
    if (divergence) {
      throw FormatError(fmt::format(
          "evaluation window {}: token ids differ at index {}: {} in {}, {} in {}; NLL over other "
          "tokens cannot be compared. Use the same text, tokenizer and window length",
          i, divergence->step, divergence->a, name_a, divergence->b, name_b));
    }
  }
}

/// Throws where there are fewer windows than are to be scored: ids that nobody compared.
void require_as_many_windows(const EvaluationWindows& found, const std::string& name,
                             const EvaluationWindows& scored, const std::string& scored_name) {
  if (found.windows.size() >= scored.windows.size()) return;
  throw FormatError(
      fmt::format("{} windows from {}, {} from {}: they are not of the same text, tokenizer and "
                  "window length",
                  found.windows.size(), name, scored.windows.size(), scored_name));
}

void limit_windows(EvaluationWindows& windows, int64_t n) {
  if (n <= 0 || static_cast<size_t>(n) >= windows.windows.size()) return;
  windows.windows.resize(static_cast<size_t>(n));
  if (windows.n_text_tokens > 0) {
    windows.n_unused_tokens = windows.n_text_tokens - n * windows.window_length;
  }
}

EvaluationWindows windows_of_both(const Side& a, const Side& b, const TokenPlanOptions& options,
                                  int64_t n_windows) {
  const std::string text = read_evaluation_text(options.text_file);
  const auto cut = [&](const Tokenizer& tokenizer) {
    return windows_of_text(tokenizer, text, options.window_length, n_windows);
  };
  if (!options.tokenizer.empty()) return cut(Tokenizer::open(options.tokenizer));
  const auto tokenizer_a = a.tokenizer(), tokenizer_b = b.tokenizer();
  if (!tokenizer_a && !tokenizer_b) {
    throw UsageError(fmt::format(
        "{}: neither side has a tokenizer to encode it with: give --tokenizer PATH or --token-ids "
        "FILE",
        options.text_file));
  }
  EvaluationWindows windows = cut(tokenizer_a ? *tokenizer_a : *tokenizer_b);
  if (tokenizer_a && tokenizer_b) {
    const EvaluationWindows windows_b = cut(*tokenizer_b);
    require_same_windows(windows, a.path(), windows_b, b.path());
    require_as_many_windows(windows_b, b.path(), windows, a.path());
  }
  return windows;
}

/// Notes what only one of two bundles holds, which is therefore not compared.
void note_what_one_lacks(const ReferenceBundle& a, const ReferenceBundle& b,
                         std::vector<std::string>& notes) {
  const auto note = [&](std::string_view what, const std::vector<std::string>& of_a,
                        const std::vector<std::string>& of_b) {
    const auto only = [&](std::string_view where, const auto& here, const auto& there) {
      for (const std::string& name : here) {
        if (std::find(there.begin(), there.end(), name) != there.end()) continue;
        notes.push_back(fmt::format("{}{} is only in {}: not compared", what, name, where));
      }
    };
    only("A", of_a, of_b);
    only("B", of_b, of_a);
  };
  const auto prompts = [](const ReferenceBundle& bundle) {
    std::vector<std::string> ids;
    for (const ReferencePrompt& prompt : bundle.prompts()) ids.push_back(prompt.id);
    return ids;
  };
  const auto runs = [](const ReferenceBundle& bundle) {
    std::vector<std::string> ids;
    for (const ReferenceGreedy& greedy : bundle.greedy()) ids.push_back(greedy.id);
    return ids;
  };
  const auto windows = [](const ReferenceBundle& bundle) {
    std::vector<std::string> numbers;
    const size_t n = bundle.windows() ? bundle.windows()->windows.size() : 0;
    for (size_t i = 0; i < n; ++i) numbers.push_back(std::to_string(i));
    return numbers;
  };
  note("prompt ", prompts(a), prompts(b));
  note("greedy run of ", runs(a), runs(b));
  note("window ", windows(a), windows(b));
  note("hidden state ", a.hidden_names(), b.hidden_names());
}

void add_bundle_tokens(const Side& a, const Side& b, TokenPlan& plan) {
  const ReferenceBundle& bundle = a.is_bundle() ? a.bundle() : b.bundle();
  plan.prompts = bundle.prompts();
  plan.prompts_source = fmt::format("prompts of {}", bundle.path());
  for (const ReferenceGreedy& greedy : bundle.greedy()) plan.greedy_ids.push_back(greedy.id);
  plan.windows = bundle.windows();
  plan.windows_source = fmt::format("windows of {}", bundle.path());
  if (!a.is_bundle() || !b.is_bundle()) return;

  require_same_tokens(a.bundle(), b.bundle());
  std::erase_if(plan.prompts, [&](const ReferencePrompt& prompt) {
    return b.bundle().find_prompt(prompt.id) == nullptr;
  });
  if (plan.prompts.empty()) {
    throw FormatError(fmt::format("{} and {} have no prompt id in common", a.path(), b.path()));
  }
  std::erase_if(plan.greedy_ids, [&](const std::string& id) {
    const auto& runs = b.bundle().greedy();
    return std::none_of(runs.begin(), runs.end(), [&](const auto& run) { return run.id == id; });
  });
  note_what_one_lacks(a.bundle(), b.bundle(), plan.notes);
  const auto& windows_b = b.bundle().windows();
  if (!plan.windows || !windows_b) {
    plan.windows.reset();
    return;
  }
  require_same_windows(*plan.windows, a.path(), *windows_b, b.path());
  limit_windows(*plan.windows, static_cast<int64_t>(windows_b->windows.size()));
}

void add_model_tokens(const Side& a, const Side& b, const TokenPlanOptions& options,
                      TokenPlan& plan) {
  if (!options.prompts_file.empty()) {
    plan.prompts = read_prompts(options.prompts_file).prompts;
    plan.prompts_source = fmt::format("prompts of {}", options.prompts_file);
  } else if (plan.windows) {
    // The name alone: bundles of one text are equal wherever it lay.
    plan.prompts =
        cut_prompts(*plan.windows, std::filesystem::path(plan.windows_source).filename().string());
    plan.prompts_source = fmt::format("cut from {}", plan.windows_source);
  }
  if (plan.prompts.empty()) {
    plan.prompts = generate_prompts(std::min(a.vocab_size(), b.vocab_size()), a.bos_id());
    plan.prompts_source = "generated from counters";
  }
  for (const ReferencePrompt& prompt : plan.prompts) {
    const bool fits = prompt.token_ids.size() <= kGreedyPromptTokens;
    if (fits && !prompt.keeps_all_positions()) plan.greedy_ids.push_back(prompt.id);
  }
}

void require_ids_below(std::span<const int32_t> ids, int64_t vocab_size, const std::string& where) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    throw FormatError(fmt::format("{}: token id {} at index {} is outside the vocabulary of {}",
                                  where, ids[i], i, vocab_size));
  }
}

/// Leaves out what the models have no room for, and checks every id.
void fit_to_models(int64_t vocab_size, int64_t most_positions, TokenPlan& plan) {
  std::erase_if(plan.prompts, [&](const ReferencePrompt& prompt) {
    const auto n = static_cast<int64_t>(prompt.token_ids.size());
    if (n <= most_positions) return false;
    plan.notes.push_back(fmt::format("prompt \"{}\" is left out: {} tokens, the context is {}",
                                     prompt.id, n, most_positions));
    return true;
  });
  std::erase_if(plan.greedy_ids,
                [&](const std::string& id) { return plan.find_prompt(id) == nullptr; });
  for (const ReferencePrompt& prompt : plan.prompts) {
    require_ids_below(prompt.token_ids, vocab_size, fmt::format("prompt \"{}\"", prompt.id));
  }
  if (!plan.windows) return;
  for (size_t i = 0; i < plan.windows->windows.size(); ++i) {
    require_ids_below(plan.windows->windows[i], vocab_size, fmt::format("evaluation window {}", i));
  }
  if (plan.windows->window_length > most_positions) {
    throw UsageError(
        fmt::format("windows of {} tokens do not fit a context of {}: take a smaller "
                    "--window-length",
                    plan.windows->window_length, most_positions));
  }
}

EvaluationWindows windows_of_lists(const Json& json, const std::string& path, int64_t n_windows) {
  EvaluationWindows windows;
  for (const Json& list : json.as_array()) {
    const std::string where = fmt::format("{}: window {}", path, windows.windows.size());
    const auto& window = windows.windows.emplace_back(read_token_ids(list, where));
    if (window.size() < 2) {
      throw FormatError(fmt::format("{}: window {} has {}; an NLL needs at least 2", path,
                                    windows.windows.size() - 1, plural(window.size(), "token")));
    }
    windows.window_length = std::max(windows.window_length, static_cast<int64_t>(window.size()));
  }
  limit_windows(windows, n_windows);
  return windows;
}

EvaluationWindows windows_of_safetensors(const std::string& path, int64_t n_windows) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const SafetensorsEntry* entry = file.find("token_ids");
  if (entry == nullptr || entry->view.dtype != DType::kI32 || entry->view.shape.size() != 2 ||
      entry->view.shape[0] < 1 || entry->view.shape[1] < 2) {
    throw FormatError(
        fmt::format("{}: expected a tensor \"token_ids\", I32, [windows, length ≥ 2]", path));
  }
  EvaluationWindows windows;
  windows.window_length = entry->view.shape[1];
  const auto length = static_cast<size_t>(windows.window_length);
  for (int64_t i = 0; i < entry->view.shape[0]; ++i) {
    auto& window = windows.windows.emplace_back(length);
    std::memcpy(window.data(), &entry->view.bytes[static_cast<size_t>(i) * length * 4], length * 4);
  }
  limit_windows(windows, n_windows);
  return windows;
}

}  // namespace

const ReferencePrompt* TokenPlan::find_prompt(const std::string& id) const {
  for (const ReferencePrompt& prompt : prompts) {
    if (prompt.id == id) return &prompt;
  }
  return nullptr;
}

std::string read_evaluation_text(const std::string& path) {
  std::string text = read_text_file(path);
  tokenization::require_utf8(text, path);
  return text;
}

EvaluationWindows windows_of_text(const Tokenizer& tokenizer, const std::string& text,
                                  int64_t window_length, int64_t n_windows) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const auto prefix = tokenizer.special_prefix();
  return cut_windows(ids, window_length, n_windows,
                     prefix.empty() ? std::nullopt : std::optional<int32_t>(prefix.front()));
}

EvaluationWindows read_windows(const std::string& path, int64_t window_length, int64_t n_windows,
                               std::optional<int32_t> bos_id) {
  if (path.ends_with(".safetensors")) return windows_of_safetensors(path, n_windows);
  const Json json = read_json_file(path);
  if (!json.is_array() || json.as_array().empty()) {
    throw FormatError(
        fmt::format("{}: expected a list of token ids, or a list of such lists", path));
  }
  if (json.as_array().front().is_array()) return windows_of_lists(json, path, n_windows);
  const std::vector<int32_t> ids = read_token_ids(json, path);
  const bool begins_with_bos = bos_id && ids.front() == *bos_id;
  return cut_windows(ids, window_length, n_windows, begins_with_bos ? bos_id : std::nullopt);
}

TokenPlan plan_tokens(const Side& a, const Side& b, const TokenPlanOptions& options,
                      int64_t most_positions) {
  TokenPlan plan;
  const bool bundle = a.is_bundle() || b.is_bundle();
  if (bundle && (!options.prompts_file.empty() || !options.token_ids_file.empty())) {
    throw UsageError(
        "a reference bundle brings its own prompts and windows: leave out --prompts and "
        "--token-ids");
  }
  if (!options.text_file.empty() && !options.token_ids_file.empty()) {
    throw UsageError("--text and --token-ids both name the evaluation text: give one");
  }
  const int64_t n_text_windows = options.n_windows.value_or(kDefaultTextWindows);
  if (bundle) {
    add_bundle_tokens(a, b, plan);
    if (plan.windows) limit_windows(*plan.windows, options.n_windows.value_or(0));
    if (!options.text_file.empty() && plan.windows) {
      TokenPlanOptions as_bundle = options;
      as_bundle.window_length = plan.windows->window_length;
      const EvaluationWindows of_text =
          windows_of_both(a, b, as_bundle, options.n_windows.value_or(0));
      require_same_windows(of_text, options.text_file, *plan.windows, plan.windows_source);
      require_as_many_windows(of_text, options.text_file, *plan.windows, plan.windows_source);
    }
  } else {
    if (!options.text_file.empty()) {
      plan.windows = windows_of_both(a, b, options, n_text_windows);
      plan.windows_source = options.text_file;
    } else if (!options.token_ids_file.empty()) {
      plan.windows =
          read_windows(options.token_ids_file, options.window_length, n_text_windows, a.bos_id());
      plan.windows_source = options.token_ids_file;
    }
    add_model_tokens(a, b, options, plan);
  }
  fit_to_models(std::min(a.vocab_size(), b.vocab_size()), most_positions, plan);
  return plan;
}

}  // namespace assay
