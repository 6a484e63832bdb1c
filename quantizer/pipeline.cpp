#include "quantizer/pipeline.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include "calibrate/walk.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/version.h"
#include "convert/tokenizer.h"
#include "quantizer/factor.h"
#include "quantizer/fingerprint.h"
#include "quantizer/layer_solver.h"
#include "quantizer/run_state.h"
#include "runtime/cpu_executor.h"
#include "runtime/host_memory.h"

namespace assay {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::optional<TokenWindows> load_windows(const RunPlan& plan, const RunOptions& options) {
  if (!plan.calibrated) return std::nullopt;
  const auto encoder = [&] {
    return make_text_encoder(
        std::make_shared<const Tokenizer>(Tokenizer::from_folder(options.model)));
  };
  const ModelSpec& spec = plan.checkpoint->spec();
  TokenWindows windows =
      load_calibration(options.calibration, options.dataset, spec.vocab_size, encoder);
  if (windows.window_length > spec.context_length) {
    throw UsageError("calibration windows: found " + std::to_string(windows.window_length) +
                     " tokens, the model's context is " + std::to_string(spec.context_length) +
                     "; use a smaller --window-length");
  }
  return windows;
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

// Reports work in predicted seconds: finished stages and the share of the one at work.
class ProgressMeter {
 public:
  ProgressMeter(const RunEvents& events, double total) : events_(events), total_(total) {}

  void begin(double cost, std::string label) {
    cost_ = cost;
    label_ = std::move(label);
    share(0.0);
  }
  void share(double part) const {
    if (events_.on_progress) events_.on_progress(done_ + part * cost_, total_, label_);
  }
  void end() {
    done_ += std::exchange(cost_, 0.0);
    share(0.0);
  }
  void skip(double cost) { done_ += cost; }

 private:
  const RunEvents& events_;
  double total_;
  double done_ = 0.0;
  double cost_ = 0.0;
  std::string label_;
};

// The layer loop of one run.
class LayerLoop {
 public:
  LayerLoop(const RunPlan& plan, const RunOptions& options, const RunEvents& events,
            const TokenWindows* windows, RunState& state)
      : plan_(plan),
        options_(options),
        events_(events),
        windows_(windows),
        state_(state),
        memory_(options.activation_memory,
                options.spill_folder.empty() ? state.folder() : options.spill_folder),
        meter_(events, total_cost()) {
    const size_t n = plan.program.matrices.size();
    weights_.matrices.resize(n);
    plain_weights_.matrices.resize(n);
    if (windows_ != nullptr) {
      walk_.emplace(plan.program, weights_, *windows_,
                    WalkOptions{options.kv_type, options.batch_tokens}, memory_);
    }
  }

  void run() {
    const int first = state_.n_layers_done();
    for (int layer = 0; layer < first; ++layer) meter_.skip(cost_of(layer).total());
    if (walk_ && first < n_layers()) start_walk(first);
    for (int layer = first; layer < n_layers(); ++layer) {
      run_layer(layer);
      if (layer + 1 < n_layers() && events_.stop_requested && events_.stop_requested()) {
        throw StoppedError("stopped after layer " + std::to_string(layer + 1) + " of " +
                           std::to_string(n_layers()) + "; run the same command with --resume");
      }
    }
  }

  uint64_t most_spilled_bytes() const { return memory_.most_spilled_bytes(); }

 private:
  int n_layers() const { return static_cast<int>(plan_.program.layers.size()); }
  StageCost cost_of(int layer) const {
    return windows_ != nullptr
               ? layer_cost(plan_, layer, windows_->n_windows, windows_->window_length)
               : layer_cost(plan_, layer, 0, 0);
  }
  double total_cost() const {
    double total = 0.0;
    for (int layer = 0; layer < n_layers(); ++layer) total += cost_of(layer).total();
    return total;
  }

  void start_walk(int first) {
    weights_.checkpoint = plan_.checkpoint;
    if (first == 0) {
      const int begin = plan_.program.layers.front().begin;
      bind_weights(plan_.program, plan_.checkpoint, 0, begin, windows_->window_length, weights_);
      walk_->embed();
    } else {
      state_.restore_walk(*walk_);
    }
    release_model_pages();
  }

  // Mapped pages of the model would count as memory of this process for as long as they stay.
  void release_model_pages() const { plan_.checkpoint->safetensors()->release_pages(); }

  /// Everything but the linears that are to be quantized, or those too.
  void bind_layer(int layer, bool with_selected, CpuWeights& weights) const {
    const OpRange& range = plan_.program.layers[static_cast<size_t>(layer)];
    if (!with_selected) {
      for (size_t i = 0; i < plan_.selected.size(); ++i) {
        const bool here = plan_.program.matrices[i].layer == layer && plan_.selected[i] != 0;
        if (here) weights.matrices[i] = std::make_shared<const PackedMatrix>();
      }
    }
    bind_weights(plan_.program, plan_.checkpoint, range.begin, range.end, windows_->window_length,
                 weights);
  }

  static void drop_layer(CpuWeights& weights) {
    for (auto& matrix : weights.matrices) matrix.reset();
    for (auto& vector : weights.vectors) vector = {};
  }

  void run_layer(int layer) {
    LayerReport report;
    report.layer = layer;
    solved_.clear();
    if (!walk_) {
      solve_without_inputs(layer, report);
    } else if (!plan_.quantize.propagate) {
      run_plain_stream(layer, report);
    } else if (options_.capture == CaptureMode::kLayer) {
      run_captured_layer(layer, report);
    } else {
      run_sequential_layer(layer, report);
    }
    commit(report);
  }

  void run_sequential_layer(int layer, LayerReport& report) {
    const LayerPlan cut = plan_.layer(layer);
    bind_layer(layer, false, weights_);
    for (size_t s = 0; s < cut.stops.size(); ++s) {
      forward(*walk_, cut, s, report);
      solve_stop(*walk_, cut, s, report, true);
    }
    forward(*walk_, cut, cut.stops.size(), report);
    drop_layer(weights_);
  }

  // The 16-bit stream: quantized weights are never run.
  void run_plain_stream(int layer, LayerReport& report) {
    const LayerPlan cut = plan_.layer(layer);
    bind_layer(layer, true, weights_);
    for (size_t s = 0; s < cut.stops.size(); ++s) {
      forward(*walk_, cut, s, report);
      solve_stop(*walk_, cut, s, report, false);
    }
    forward(*walk_, cut, cut.stops.size(), report);
    drop_layer(weights_);
  }

  // All inputs from the layer's 16-bit weights, then the layer once more with quantized ones.
  void run_captured_layer(int layer, LayerReport& report) {
    const LayerPlan cut = plan_.layer(layer);
    plain_weights_.checkpoint = plan_.checkpoint;
    bind_layer(layer, true, plain_weights_);
    bind_layer(layer, false, weights_);
    {
      StreamWalk probe = walk_->fork(plain_weights_);
      for (size_t s = 0; s < cut.stops.size(); ++s) {
        forward(probe, cut, s, report);
        solve_stop(probe, cut, s, report, true);
      }
    }
    drop_layer(plain_weights_);
    for (size_t s = 0; s < cut.segments.size(); ++s) forward(*walk_, cut, s, report);
    drop_layer(weights_);
  }

  void solve_without_inputs(int layer, LayerReport& report) {
    const LayerPlan cut = plan_.layer(layer);
    for (const CaptureStop& stop : cut.stops) solve_linears(stop, nullptr, nullptr, report, false);
  }

  void forward(StreamWalk& walk, const LayerPlan& cut, size_t segment, LayerReport& report) {
    const auto begin = Clock::now();
    const double cost = cost_of(cut.layer).forward / static_cast<double>(cut.segments.size());
    meter_.begin(cost, label(cut.layer, "activations"));
    walk.run_segment(cut, segment, [&](double share) { meter_.share(share); });
    meter_.end();
    report.seconds.forward += seconds_since(begin);
  }

  void solve_stop(const StreamWalk& walk, const LayerPlan& cut, size_t s, LayerReport& report,
                  bool want_packed) {
    const CaptureStop& stop = cut.stops[s];
    const std::string name = module_name(stop.matrices.front());
    const StageCost cost = cost_of(cut.layer);
    const auto n_stops = static_cast<double>(cut.stops.size());
    auto begin = Clock::now();
    meter_.begin(cost.gram / n_stops, label(cut.layer, "Gram matrix"));
    const Hessian hessian =
        walk.captured_hessian(stop, name, [&](double share) { meter_.share(share); });
    meter_.end();
    report.seconds.gram += seconds_since(begin);

    begin = Clock::now();
    meter_.begin((cost.factor + cost.solve) / n_stops, label(cut.layer, "codes"));
    std::optional<HessianFactor> factor;
    if (plan_.algorithm->needs_calibration) {
      factor = factor_hessian(hessian, plan_.quantize, name);
      if (factor->n_dead == hessian.n) {
        throw NumericError(name + ": all calibration inputs are zero (" +
                           std::to_string(hessian.n_tokens) +
                           " tokens); there is nothing to calibrate with");
      }
    }
    report.seconds.factor += seconds_since(begin);
    solve_linears(stop, &hessian, factor ? &*factor : nullptr, report, want_packed);
    meter_.end();
  }

  void solve_linears(const CaptureStop& stop, const Hessian* hessian, const HessianFactor* factor,
                     LayerReport& report, bool want_packed) {
    const auto begin = Clock::now();
    for (const int matrix : stop.matrices) {
      solved_.push_back(solve_linear(plan_, matrix, hessian, factor, want_packed));
      SolvedLinear& solved = solved_.back();
      if (want_packed) weights_.matrices[static_cast<size_t>(matrix)] = std::move(solved.packed);
      report.modules.push_back(solved.report);
      if (events_.on_module) events_.on_module(solved.report);
      release_model_pages();
    }
    report.seconds.solve += seconds_since(begin);
  }

  void commit(const LayerReport& report) {
    std::vector<TensorSource> tensors;
    for (const SolvedLinear& linear : solved_) {
      for (size_t i = 0; i < linear.tensors.size(); ++i) {
        const TensorSpec& tensor = linear.tensors[i];
        tensors.push_back(source_of(tensor.name, {tensor.dtype, tensor.shape, linear.bytes[i]}));
      }
    }
    // The last layer's output goes nowhere.
    const bool goes_on = report.layer + 1 < n_layers();
    state_.commit_layer(report, std::move(tensors), walk_ && goes_on ? &*walk_ : nullptr);
    solved_.clear();
  }

  std::string module_name(int matrix) const {
    return plan_.program.matrices[static_cast<size_t>(matrix)].module;
  }
  std::string label(int layer, const char* stage) const {
    return "layer " + std::to_string(layer + 1) + "/" + std::to_string(n_layers()) + ", " + stage;
  }

  const RunPlan& plan_;
  const RunOptions& options_;
  const RunEvents& events_;
  const TokenWindows* windows_;
  RunState& state_;
  ActivationMemory memory_;
  ProgressMeter meter_;
  CpuWeights weights_;        // what the stream runs with
  CpuWeights plain_weights_;  // 16-bit, for CaptureMode::kLayer
  std::optional<StreamWalk> walk_;
  std::vector<SolvedLinear> solved_;  // of the layer at work
};

void check_resources(const RunEstimate& estimate, const RunOptions& options) {
  const std::string folder = parent_of(options.out);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError(folder + ": cannot make the folder: " + error.message());
  const bool spills_here = options.spill_folder.empty();
  require_writable(folder, estimate.output_bytes + estimate.state_bytes +
                               (spills_here ? estimate.spill_bytes : 0));
  if (!spills_here) require_writable(options.spill_folder, estimate.spill_bytes);
  if (const std::optional<uint64_t> available = available_host_memory()) {
    require_memory(estimate.memory, *available, "quantizing " + options.model);
  }
}

struct Prepared {
  RunPlan plan;
  std::optional<TokenWindows> windows;
  OutputContents contents;
  RunEstimate estimate;
};

Prepared prepare(const RunOptions& options) {
  Prepared out;
  out.plan = plan_run(options);
  out.windows = load_windows(out.plan, options);
  out.contents.fingerprint =
      make_fingerprint(out.plan, options, out.windows ? &*out.windows : nullptr);
  out.contents.calibration = calibration_json(out.windows);
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
  if (error) throw FileError(path + ": cannot remove the folder: " + error.message());
}

std::string state_folder(const RunOptions& options) { return options.out + ".state"; }

void refuse_what_is_there(const RunOptions& options) {
  if (options.force) return;
  if (!options.resume && file_exists(options.out)) {
    throw UsageError(options.out + ": exists already; use --force to replace it, or another --out");
  }
  if (!options.resume && RunState::exists(state_folder(options))) {
    throw UsageError(state_folder(options) +
                     ": an interrupted run is there; use --resume to go on with it, or --force to "
                     "start again");
  }
}

RunResult result_of(const Prepared& prepared, std::vector<LayerReport> layers) {
  RunResult result;
  result.layers = std::move(layers);
  if (prepared.windows) {
    result.n_windows = prepared.windows->n_windows;
    result.window_length = prepared.windows->window_length;
    result.calibration_sha256 = prepared.windows->sha256();
  }
  return result;
}

}  // namespace

DryRun dry_run(const RunOptions& options) {
  Prepared prepared = prepare(options);
  DryRun out;
  out.estimate = std::move(prepared.estimate);
  if (prepared.windows) {
    out.n_windows = prepared.windows->n_windows;
    out.window_length = prepared.windows->window_length;
  }
  out.n_linears = std::count(prepared.plan.selected.begin(), prepared.plan.selected.end(), 1);
  out.ignore = prepared.plan.ignore;
  return out;
}

RunResult run_quantization(const RunOptions& options, const RunEvents& events) {
  const auto begin = Clock::now();
  refuse_what_is_there(options);
  const Prepared prepared = prepare(options);
  if (options.resume && !options.force && file_exists(options.out) &&
      is_complete(options, prepared.contents.fingerprint)) {
    remove_leftovers(state_folder(options));
    RunResult result = result_of(prepared, {});
    result.was_complete = true;
    result.seconds = seconds_since(begin);
    return result;
  }
  check_resources(prepared.estimate, options);
  if (options.force && !options.resume) remove_leftovers(state_folder(options));

  RunState state(state_folder(options), prepared.contents.fingerprint);
  const int n_done = state.n_layers_done();
  if (n_done > 0 && events.on_note) {
    events.on_note("going on after layer " + std::to_string(n_done));
  }
  LayerLoop loop(prepared.plan, options, events, prepared.windows ? &*prepared.windows : nullptr,
                 state);
  loop.run();
  RunResult result = result_of(prepared, state.reports());
  result.n_layers_resumed = n_done;
  result.most_spilled_bytes = loop.most_spilled_bytes();
  {
    const std::vector<SafetensorsFile> quantized = state.open_layers();
    result.files = write_output_folder(options.out, prepared.plan, quantized, prepared.contents,
                                       options.max_shard_bytes, [&](double share) {
                                         if (events.on_progress)
                                           events.on_progress(share, 1.0, "writing");
                                       });
  }
  for (const OutputFile& file : result.files) result.output_bytes += file.bytes;
  state.remove();
  result.seconds = seconds_since(begin);
  return result;
}

Json report_json(const RunOptions& options, const RunResult& result) {
  Json layers = Json::array();
  for (const LayerReport& layer : result.layers) layers.push(to_json(layer));
  Json files = Json::array();
  for (const OutputFile& file : result.files) {
    files.push(
        Json::object().set("name", file.name).set("bytes", file.bytes).set("sha256", file.sha256));
  }
  Json not_better = Json::array();
  for (const std::string& name : modules_not_better_than_rtn(result.layers)) not_better.push(name);
  Json json = Json::object();
  json.set("kind", "assay quantize report")
      .set("assay_version", version())
      .set("arithmetic", kArithmetic)
      .set("model", options.model)
      .set("out", options.out)
      .set("algorithm", options.quantize.algorithm)
      .set("bits", options.quantize.bits)
      .set("group_size", options.quantize.group_size)
      .set("symmetric", options.quantize.symmetric)
      .set("format", options.layout)
      .set("calibration", Json::object()
                              .set("file", options.calibration)
                              .set("n_windows", result.n_windows)
                              .set("window_length", result.window_length)
                              .set("n_tokens", result.n_windows * result.window_length)
                              .set("token_ids_sha256", result.calibration_sha256))
      .set("seconds", result.seconds)
      .set("layers_resumed", result.n_layers_resumed)
      .set("output_bytes", result.output_bytes)
      .set("spilled_bytes", result.most_spilled_bytes)
      .set("modules_not_better_than_rtn", not_better)
      .set("layers", layers)
      .set("files", files);
  return json;
}

}  // namespace assay
