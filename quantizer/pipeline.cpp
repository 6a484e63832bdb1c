#include "quantizer/pipeline.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/overwrite.h"
#include "convert/core/sha256.h"
#include "convert/core/stopwatch.h"
#include "convert/core/words.h"
#include "convert/norm_check.h"
#include "quantizer/fingerprint.h"
#include "quantizer/layer_loop.h"
#include "quantizer/result_card.h"
#include "quantizer/run_report.h"
#include "quantizer/run_state.h"
#include "runtime/host_memory.h"

namespace assay {
namespace {

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

struct Windows {
  std::optional<TokenWindows> calibration;
  std::optional<TokenWindows> held_out;
};

TokenWindows split_off(TokenWindows& windows, int64_t n) {
  if (n >= windows.n_windows) {
    throw UsageError("--held-out " + std::to_string(n) + ": the data has " +
                     std::to_string(windows.n_windows) +
                     " windows, and calibration needs at least one; use a smaller number");
  }
  TokenWindows last = windows;
  last.n_windows = n;
  last.ids.assign(windows.ids.end() - n * windows.window_length, windows.ids.end());
  windows.n_windows -= n;
  windows.ids.resize(static_cast<size_t>(windows.n_windows * windows.window_length));
  return last;
}

Windows load_windows(const RunPlan& plan, const RunOptions& options) {
  if (!plan.calibrated) return {};
  const auto encoder = [&] { return make_text_encoder(options.model); };
  const ModelSpec& spec = plan.checkpoint->spec();
  DatasetOptions dataset = options.dataset;
  dataset.n_windows += options.held_out_windows;
  TokenWindows windows = load_calibration(options.calibration, dataset, spec.vocab_size, encoder);
  if (windows.window_length > spec.context_length) {
    throw UsageError("calibration windows: found " + std::to_string(windows.window_length) +
                     " tokens, the model's context is " + std::to_string(spec.context_length) +
                     "; use a smaller --window-length");
  }
  Windows out;
  if (options.held_out_windows > 0) out.held_out = split_off(windows, options.held_out_windows);
  out.calibration = std::move(windows);
  return out;
}

Json calibration_json(const std::optional<TokenWindows>& windows) {
  if (!windows) return {};
  Json json = Json::object();
  json.set("n_windows", windows->n_windows)
      .set("window_length", windows->window_length)
      .set("n_tokens", windows->n_tokens())
      .set("token_ids_sha256", windows->sha256());
  return json;
}

void check_resources(const RunEstimate& estimate, const RunOptions& options) {
  const std::string folder = parent_of(options.out);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_system_error(folder + ": cannot make the folder", error.value());
  const bool spills_here = options.spill_folder.empty();
  require_writable(folder, estimate.output_bytes + estimate.state_bytes +
                               (spills_here ? estimate.spill_bytes : 0));
  if (!spills_here) require_writable(options.spill_folder, estimate.spill_bytes);
  if (const std::optional<uint64_t> available = available_host_memory()) {
    require_memory(estimate.memory, *available, "quantizing " + options.model);
  }
}

Json overrides_json(const RunOptions& options) {
  Json list = Json::array();
  for (const ModuleValues& change : options.overrides) {
    Json modules = Json::array();
    for (const std::string& pattern : change.modules) modules.push(pattern);
    Json entry = change.values;
    list.push(entry.set("modules", std::move(modules)));
  }
  return list.as_array().empty() ? Json() : list;
}

// What stands for the comparison until it is made: the same members.
Json no_comparison_yet(const TokenWindows& windows) {
  const Json interval = Json::object()
                            .set("mean", 0.0)
                            .set("half_width_95", windows.n_windows > 1 ? Json(0.0) : Json());
  return Json::object()
      .set("n_scored", windows.n_windows * (windows.window_length - 1))
      .set("kld_windows", interval)
      .set("delta_nll_windows", interval)
      .set("top1_agreement", 0.0);
}

struct Prepared {
  RunPlan plan;
  std::optional<TokenWindows> windows;
  std::optional<TokenWindows> held_out;
  OutputContents contents;
  RunEstimate estimate;
};

Prepared prepare(const RunOptions& options) {
  Prepared out;
  out.plan = plan_run(options);
  Windows windows = load_windows(out.plan, options);
  out.windows = std::move(windows.calibration);
  out.held_out = std::move(windows.held_out);
  out.contents.fingerprint =
      make_fingerprint(out.plan, options, out.windows ? &*out.windows : nullptr);
  out.contents.calibration = calibration_json(out.windows);
  if (out.held_out) out.contents.held_out = no_comparison_yet(*out.held_out);
  out.contents.overrides = overrides_json(options);
  out.contents.command = command_of(options, out.windows ? out.windows->n_windows : 0,
                                    out.windows ? out.windows->window_length : 0);
  out.estimate =
      estimate_run(out.plan, options, out.contents, out.windows ? out.windows->n_windows : 0,
                   out.windows ? out.windows->window_length : 0);
  return out;
}

// Whether `out` holds the finished result of this very run.
bool is_complete(const RunOptions& options, const Json& fingerprint) {
  const std::string manifest_path = options.out + "/" + std::string(kManifestName);
  if (!file_exists(manifest_path)) return false;
  const Json manifest = read_json_file(manifest_path);
  const Json* found = manifest.find("fingerprint");
  const std::string difference =
      found != nullptr ? fingerprint_difference(*found, fingerprint) : "its manifest";
  if (difference.empty()) return true;
  throw UsageError(options.out + ": holds a result that differs from this run in " + difference +
                   "; use --force to replace it");
}

void remove_leftovers(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw_system_error(path + ": cannot remove the folder", error.value());
}

std::string state_folder(const RunOptions& options) { return options.out + ".state"; }

}  // namespace

void refuse_what_is_there(const RunOptions& options) {
  require_free_folder_name(options.out, options.force || options.resume, "model folder",
                           {"config.json", kManifestName});
  if (options.force) return;
  if (file_exists(options.out) && !file_exists(options.out + "/" + std::string(kManifestName))) {
    throw UsageError(options.out +
                     ": is no result that --resume could go on with; use --force to replace it, "
                     "or another --out");
  }
  if (!options.resume && RunState::exists(state_folder(options))) {
    throw UsageError(state_folder(options) +
                     ": an interrupted run is there; use --resume to go on with it, or --force to "
                     "start again");
  }
}

namespace {

// Files of a finished result, from its manifest.
std::vector<OutputFile> files_of(const std::string& out) {
  std::vector<OutputFile> files;
  const std::string manifest_path = out + "/" + std::string(kManifestName);
  const Json manifest = read_json_file(manifest_path);
  for (const auto& [name, file] : manifest.at("files").as_object()) {
    files.push_back({name, static_cast<uint64_t>(file.at("bytes").as_integer()),
                     file.at("sha256").as_string()});
  }
  files.push_back({std::string(kManifestName), std::filesystem::file_size(manifest_path),
                   sha256_of_file(manifest_path)});
  std::sort(files.begin(), files.end(),
            [](const OutputFile& a, const OutputFile& b) { return a.name < b.name; });
  return files;
}

// The report is written last: its folder is made now, as that of the output, unless it is the
// output's own.
void make_place_for_report(const RunOptions& options) {
  namespace fs = std::filesystem;
  const fs::path report = fs::path(options.report).lexically_normal();
  const fs::path folder = report.parent_path();
  if (options.report.empty() || folder == fs::path(options.out).lexically_normal()) return;
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) throw_system_error(folder.string() + ": cannot create the folder", error.value());
  require_file_place(options.report);
}

void write_report(const RunOptions& options, const RunResult& result) {
  if (options.report.empty()) return;
  write_text_file(options.report, run_report(options, result).dump() + "\n");
}

RunState open_state(const RunOptions& options, const Prepared& prepared) {
  return RunState(state_folder(options), prepared.contents.fingerprint,
                  static_cast<int>(prepared.plan.program.layers.size()));
}

RunResult result_of(const Prepared& prepared, std::vector<LayerReport> layers) {
  RunResult result;
  result.layers = std::move(layers);
  if (prepared.windows) {
    result.n_windows = prepared.windows->n_windows;
    result.window_length = prepared.windows->window_length;
    result.calibration_sha256 = prepared.windows->sha256();
  }
  if (prepared.held_out) {
    result.n_held_out = prepared.held_out->n_windows;
    result.held_out_sha256 = prepared.held_out->sha256();
  }
  return result;
}

// The result has its name; what was left to do is the report, if its run state is still there.
RunResult finish_complete(const RunOptions& options, const Prepared& prepared) {
  RunResult result = result_of(prepared, {});
  result.was_complete = true;
  result.files = files_of(options.out);
  for (const OutputFile& file : result.files) result.output_bytes += file.bytes;
  if (RunState::exists(state_folder(options))) {
    RunState state = open_state(options, prepared);
    result.layers = state.reports();
    write_report(options, result);
  }
  remove_leftovers(state_folder(options));
  return result;
}

}  // namespace

DryRun dry_run(const RunOptions& options) {
  refuse_what_is_there(options);
  Prepared prepared = prepare(options);
  DryRun out;
  out.estimate = std::move(prepared.estimate);
  out.idle_share = idle_share();
  if (prepared.windows) {
    out.n_windows = prepared.windows->n_windows;
    out.window_length = prepared.windows->window_length;
  }
  out.n_linears = std::count(prepared.plan.selected.begin(), prepared.plan.selected.end(), 1);
  out.ignore = prepared.plan.ignore;
  out.off_lattice = prepared.plan.off_lattice_names();
  return out;
}

RunResult run_quantization(const RunOptions& options, const RunEvents& events) {
  const Stopwatch watch;
  ASSAY_CHECK(options.beside.empty() || !options.resume);
  refuse_what_is_there(options);
  const Prepared prepared = prepare(options);
  if (options.resume && !options.force && file_exists(options.out) &&
      is_complete(options, prepared.contents.fingerprint)) {
    return finish_complete(options, prepared);
  }
  check_resources(prepared.estimate, options);
  make_place_for_report(options);
  if (prepared.estimate.spill_bytes > 0) return_freed_blocks();
  if (events.on_note) {
    for (const std::string& warning : prepared.plan.checkpoint->warnings()) events.on_note(warning);
    if (!prepared.plan.card_fault.empty()) events.on_note(prepared.plan.card_fault);
    if (!prepared.plan.off_lattice.empty()) {
      events.on_note(
          "--grid q4_k needs columns in multiples of 256; these keep free scales, and go "
          "into Q4_1 or Q5_0 blocks: " +
          join_words(prepared.plan.off_lattice_names()));
    }
    if (const std::string warning = folded_norms_warning(*prepared.plan.checkpoint);
        !warning.empty()) {
      events.on_note(warning);
    }
  }
  if (options.force && !options.resume) remove_leftovers(state_folder(options));

  RunState state = open_state(options, prepared);
  const int n_done = state.n_layers_done();
  if (n_done > 0 && events.on_note) {
    events.on_note("going on after layer " + std::to_string(n_done));
  }
  LayerLoop loop(prepared.plan, options, events, prepared.windows ? &*prepared.windows : nullptr,
                 prepared.held_out ? &*prepared.held_out : nullptr, state);
  loop.run();
  RunResult result = result_of(prepared, state.reports());
  result.n_layers_resumed = n_done;
  result.most_spilled_bytes = loop.most_spilled_bytes();
  result.beside = loop.beside();
  {
    const std::vector<SafetensorsFile> quantized = state.open_layers();
    OutputContents contents = prepared.contents;
    if (prepared.held_out) contents.held_out = result.layers.back().held_out;
    result.files = write_output_folder(options.out, prepared.plan, quantized, contents,
                                       options.max_shard_bytes, [&](double share) {
                                         if (events.on_progress)
                                           events.on_progress(share, 1.0, "writing");
                                       });
  }
  for (const OutputFile& file : result.files) result.output_bytes += file.bytes;
  result.seconds = watch.seconds();
  write_report(options, result);
  state.remove();
  return result;
}

}  // namespace assay
