#include "quantizer/sweep.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "quantizer/recipe.h"
#include "quantizer/run_report.h"

namespace assay {
namespace {

struct Measured {
  SweepEntry entry;
  std::vector<double> window_kld;
  std::vector<double> window_delta;
};

SweepCandidate read_candidate(const Json& json, const std::string& source) {
  if (!json.is_object()) throw FormatError(source + ": expected an object");
  SweepCandidate candidate;
  ModuleValues change{.modules = {}, .values = Json::object()};
  for (const auto& [key, value] : json.as_object()) {
    if (key == "name") {
      candidate.name = value.as_string();
    } else if (key == "modules") {
      for (const Json& pattern : value.as_array()) change.modules.push_back(pattern.as_string());
    } else {
      change.values.set(key, value);
    }
  }
  QuantizeOptions any;
  set_module_values(change.values, source, any);  // names and types
  if (candidate.name.empty()) candidate.name = change.values.dump(0);
  candidate.overrides.push_back(std::move(change));
  return candidate;
}

std::vector<double> numbers(const Json& list) {
  std::vector<double> out;
  for (const Json& value : list.as_array()) out.push_back(value.as_number());
  return out;
}

Measured measure(const std::string& name, const Json& found, double seconds) {
  Measured measured;
  measured.window_kld = numbers(found.at("window_kld"));
  measured.window_delta = numbers(found.at("window_delta_nll"));
  measured.entry.name = name;
  measured.entry.kld = interval_mean(measured.window_kld);
  measured.entry.delta_nll = interval_mean(measured.window_delta);
  measured.entry.top1_agreement = found.at("top1_agreement").as_number();
  measured.entry.seconds = seconds;
  return measured;
}

IntervalMean paired(const std::vector<double>& values, const std::vector<double>& base) {
  std::vector<double> differences(values.size());
  for (size_t i = 0; i < values.size(); ++i) differences[i] = values[i] - base[i];
  return interval_mean(differences);
}

void remove_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw_system_error(path + ": cannot remove the folder", error.value());
}

void move_folder(const std::string& from, const std::string& to) {
  remove_folder(to);
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error) throw_system_error(from + ": cannot rename to " + to, error.value());
}

RunOptions run_of(const RunOptions& options, const std::vector<SweepCandidate>& candidates,
                  size_t index) {
  RunOptions run = options;
  run.out = fmt::format("{}.sweep-{}", options.out, index + 1);
  run.overrides = candidates[index].overrides;
  run.force = true;
  run.report.clear();
  return run;
}

void tell_candidate(const std::vector<SweepCandidate>& candidates, size_t index,
                    const RunEvents& events) {
  if (!events.on_note) return;
  events.on_note(
      fmt::format("candidate {} of {}: {}", index + 1, candidates.size(), candidates[index].name));
}

}  // namespace

std::vector<SweepCandidate> read_sweep(const std::string& path) {
  const Json json = read_json_file(path);
  const Json* list = json.find("candidates");
  if (list == nullptr || !list->is_array() || list->as_array().empty()) {
    throw FormatError(path + ": expected {\"candidates\": [{\"name\": …, <value>: …}, …]}");
  }
  std::vector<SweepCandidate> candidates;
  for (const Json& item : list->as_array()) {
    const std::string source = fmt::format("{}: candidate {}", path, candidates.size() + 1);
    try {
      candidates.push_back(read_candidate(item, source));
    } catch (const FormatError& error) {
      const std::string what = error.what();
      throw FormatError(what.starts_with(source) ? what : source + ": " + what);
    }
    for (size_t i = 0; i + 1 < candidates.size(); ++i) {
      if (candidates[i].name != candidates.back().name) continue;
      throw FormatError(source + ": a second one with the name \"" + candidates[i].name + "\"");
    }
  }
  return candidates;
}

bool shares_inputs(const RunOptions& options, const std::vector<SweepCandidate>& candidates,
                   SweepInputs inputs) {
  if (inputs == SweepInputs::kOwn || options.per_module) return false;
  return std::none_of(candidates.begin(), candidates.end(), [&](const SweepCandidate& candidate) {
    QuantizeOptions all = options.quantize;  // of the modules that no later change names
    bool some = false;
    for (const ModuleValues& change : candidate.overrides) {
      QuantizeOptions named = all;
      set_module_values(change.values, candidate.name, named);
      if (change.modules.empty()) {
        all = named;
      } else {
        some = some || named.target_alpha != 0.0;
      }
    }
    return some || all.target_alpha != 0.0;
  });
}

RunOptions shared_run(const RunOptions& options, const std::vector<SweepCandidate>& candidates) {
  RunOptions run = run_of(options, candidates, 0);
  for (size_t i = 1; i < candidates.size(); ++i) run.beside.push_back(candidates[i].overrides);
  return run;
}

namespace {

size_t smallest_kld(const std::vector<Measured>& measured) {
  return static_cast<size_t>(std::min_element(measured.begin(), measured.end(),
                                              [](const Measured& a, const Measured& b) {
                                                return a.entry.kld.mean < b.entry.kld.mean;
                                              }) -
                             measured.begin());
}

// All candidates with the Gram matrices of the first, the best of them then by itself.
size_t sweep_with_shared_inputs(const RunOptions& options,
                                const std::vector<SweepCandidate>& candidates,
                                const RunEvents& events, std::vector<Measured>& measured,
                                SweepResult& result) {
  result.options = shared_run(options, candidates);
  if (events.on_note) {
    events.on_note(fmt::format("{} candidates with the calibration inputs of \"{}\"",
                               candidates.size(), candidates.front().name));
  }
  result.winner = run_quantization(result.options, events);
  result.options.beside.clear();
  double seconds = result.winner.seconds;
  for (const BesideResult& each : result.winner.beside) seconds -= each.seconds;
  measured.push_back(
      measure(candidates.front().name, result.winner.layers.back().held_out, seconds));
  for (size_t i = 1; i < candidates.size(); ++i) {
    const BesideResult& each = result.winner.beside[i - 1];
    measured.push_back(measure(candidates[i].name, each.held_out, each.seconds));
  }
  const size_t best = smallest_kld(measured);
  if (best == 0) return best;
  remove_folder(result.options.out);
  result.options = run_of(options, candidates, best);
  tell_candidate(candidates, best, events);
  result.winner = run_quantization(result.options, events);
  return best;
}

// Each candidate in a run of its own.
size_t sweep_with_own_inputs(const RunOptions& options,
                             const std::vector<SweepCandidate>& candidates, const RunEvents& events,
                             std::vector<Measured>& measured, SweepResult& result) {
  std::optional<size_t> best;
  for (size_t i = 0; i < candidates.size(); ++i) {
    RunOptions run = run_of(options, candidates, i);
    tell_candidate(candidates, i, events);
    RunResult found = run_quantization(run, events);
    measured.push_back(measure(candidates[i].name, found.layers.back().held_out, found.seconds));
    if (best && !(measured[i].entry.kld.mean < measured[*best].entry.kld.mean)) {
      remove_folder(run.out);
      continue;
    }
    if (best) remove_folder(result.options.out);
    best = i;
    result.options = std::move(run);
    result.winner = std::move(found);
  }
  return *best;
}

}  // namespace

SweepResult run_sweep(const RunOptions& options, const std::vector<SweepCandidate>& candidates,
                      SweepInputs inputs, const RunEvents& events) {
  if (options.held_out_windows < 2) {
    throw UsageError("--sweep ranks on held-out windows: found --held-out " +
                     std::to_string(options.held_out_windows) + ", expected at least 2");
  }
  refuse_what_is_there(options);
  std::vector<Measured> measured;
  SweepResult result;
  const bool shared = shares_inputs(options, candidates, inputs);
  const size_t best = shared
                          ? sweep_with_shared_inputs(options, candidates, events, measured, result)
                          : sweep_with_own_inputs(options, candidates, events, measured, result);
  move_folder(result.options.out, options.out);
  result.options.out = options.out;
  result.options.report = options.report;
  for (Measured& each : measured) {
    each.entry.kld_difference = paired(each.window_kld, measured[best].window_kld);
    each.entry.delta_nll_difference = paired(each.window_delta, measured[best].window_delta);
    result.ranking.push_back(each.entry);
  }
  std::stable_sort(
      result.ranking.begin(), result.ranking.end(),
      [](const SweepEntry& a, const SweepEntry& b) { return a.kld.mean < b.kld.mean; });
  if (!options.report.empty()) {
    Json report = run_report(result.options, result.winner);
    Json ranking = Json::array();
    for (const SweepEntry& entry : result.ranking) ranking.push(to_json(entry));
    report.set("sweep", ranking);
    write_text_file(options.report, report.dump() + "\n");
  }
  return result;
}

Json to_json(const SweepEntry& entry) {
  Json json = Json::object();
  json.set("name", entry.name)
      .set("kld", entry.kld.to_json())
      .set("delta_nll", entry.delta_nll.to_json())
      .set("kld_less_winner", entry.kld_difference.to_json())
      .set("delta_nll_less_winner", entry.delta_nll_difference.to_json())
      .set("top1_agreement", entry.top1_agreement)
      .set("seconds", entry.seconds);
  return json;
}

std::string sweep_table(const std::vector<SweepEntry>& ranking) {
  size_t width = 9;
  for (const SweepEntry& entry : ranking) width = std::max(width, entry.name.size());
  std::string text =
      fmt::format("{:<{}}  {:>17}  {:>18}  {:>18}  {:>18}  {:>6}\n", "candidate", width, "KLD",
                  "less the winner's", "delta_nll", "less the winner's", "time");
  for (const SweepEntry& entry : ranking) {
    const auto cell = [](const IntervalMean& mean) {
      return mean.half_width ? fmt::format("{:.5f} ± {:.5f}", mean.mean, *mean.half_width)
                             : fmt::format("{:.5f}", mean.mean);
    };
    text += fmt::format("{:<{}}  {:>17}  {:>18}  {:>18}  {:>18}  {:>5.0f}s\n", entry.name, width,
                        cell(entry.kld), cell(entry.kld_difference), cell(entry.delta_nll),
                        cell(entry.delta_nll_difference), entry.seconds);
  }
  return text;
}

}  // namespace assay
