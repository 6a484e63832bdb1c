#include "quantizer/layer_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/stopwatch.h"
#include "convert/core/words.h"

namespace assay {
namespace {

// What --per-module tries beside the run's own value.
constexpr double kAlphas[] = {0.25, 0.5, 0.75, 1.0};
constexpr double kDampings[] = {0.1, 0.3, 3.0, 10.0};  // times the run's damping

// The values that trials differ in.
Json choice_json(const QuantizeOptions& options) {
  return Json::object()
      .set("target_alpha", options.target_alpha)
      .set("residual_alpha", options.residual_alpha)
      .set("damp_percent", options.damp_percent);
}

// Without a factor. Valid as long as the products.
Calibration calibration_of(const StopProducts& products) {
  return {.hessian = &products.hessian,
          .drift = products.drift ? &*products.drift : nullptr,
          .residual_drift = products.residual_drift ? &*products.residual_drift : nullptr};
}

}  // namespace

void ProgressMeter::begin(double cost, std::string label) {
  cost_ = cost;
  label_ = std::move(label);
  share(0.0);
}

void ProgressMeter::share(double part) const {
  if (events_.on_progress) events_.on_progress(done_ + part * cost_, total_, label_);
}

void ProgressMeter::end() {
  done_ += std::exchange(cost_, 0.0);
  share(0.0);
}

LayerLoop::LayerLoop(const RunPlan& plan, const RunOptions& options, const RunEvents& events,
                     const TokenWindows* windows, const TokenWindows* held_out, RunState& state)
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
  if (held_out != nullptr) {
    held_out_.emplace(plan.program, weights_, plain_weights_, *held_out, options.kv_type, memory_);
    for (const auto& each : plan.beside) {
      beside_.push_back(std::make_unique<BesideModel>(plan, each));
    }
  }
}

void LayerLoop::run() {
  const int first = state_.n_layers_done();
  for (int layer = 0; layer < first; ++layer) meter_.skip(cost_of(layer).total());
  if (walk_ && first < n_layers()) start_walk(first);
  for (int layer = first; layer < n_layers(); ++layer) {
    LayerReport report;
    report.layer = layer;
    if (layer == first) measure_sensitivities(report);
    run_layer(layer, report);
    if (layer + 1 < n_layers() && events_.stop_requested && events_.stop_requested()) {
      throw StoppedError("stopped after layer " + std::to_string(layer + 1) + " of " +
                         std::to_string(n_layers()) + "; run the same command with --resume");
    }
  }
}

StageCost LayerLoop::cost_of(int layer) const {
  return windows_ != nullptr
             ? layer_cost(plan_, layer, windows_->n_windows, windows_->window_length)
             : layer_cost(plan_, layer, 0, 0);
}

double LayerLoop::total_cost() const {
  double total = windows_ != nullptr
                     ? sensitivity_seconds(plan_, windows_->n_windows, windows_->window_length)
                     : 0.0;
  for (int layer = 0; layer < n_layers(); ++layer) total += cost_of(layer).total();
  return total;
}

// Of the 16-bit model, so that a run that goes on finds the same again.
void LayerLoop::measure_sensitivities(LayerReport& report) {
  const int64_t n_windows = plan_.quantize.sensitivity_windows;
  if (n_windows == 0) return;
  const Stopwatch watch;
  meter_.begin(sensitivity_seconds(plan_, windows_->n_windows, windows_->window_length),
               "sensitivities");
  sensitivities_ = assay::measure_sensitivities(plan_.program, plan_.checkpoint, plan_.wanted(),
                                                *windows_, {n_windows, options_.kv_type}, memory_,
                                                [&](double share) { meter_.share(share); });
  meter_.end();
  report.seconds.sensitivity = watch.seconds();
}

void LayerLoop::start_walk(int first) {
  weights_.checkpoint = plan_.checkpoint;
  plain_weights_.checkpoint = plan_.checkpoint;
  if (plan_.two_streams()) {
    plain_windows_ = spread_windows(*windows_, plan_.n_plain_windows(windows_->n_windows));
    plain_walk_ = walk_->beside(plain_weights_, plain_windows_);
  }
  if (first == 0) {
    const int begin = plan_.program.layers.front().begin;
    bind_weights(plan_.program, plan_.checkpoint, 0, begin, windows_->window_length, weights_);
    bind_weights(plan_.program, plan_.checkpoint, 0, begin, windows_->window_length,
                 plain_weights_);
    walk_->embed();
    if (plain_walk_) plain_walk_->embed();
    if (held_out_) held_out_->embed();
    for (const auto& each : beside_) each->start(held_out_->quantized());
  }
  if (first > 0) {
    std::vector<StreamWalk*> walks{&*walk_};
    if (plain_walk_) walks.push_back(&*plain_walk_);
    if (held_out_) {
      for (StreamWalk* walk : held_out_->walks()) walks.push_back(walk);
    }
    state_.restore_walks(walks);
  }
  release_model_pages();
}

// Mapped pages of the model would count as memory of this process for as long as they stay.
void LayerLoop::release_model_pages() const { plan_.checkpoint->safetensors()->release_pages(); }

/// Everything but the linears that are to be quantized, or those too.
void LayerLoop::bind_layer(int layer, bool with_selected, CpuWeights& weights) const {
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

void LayerLoop::drop_layer(CpuWeights& weights) {
  for (auto& matrix : weights.matrices) matrix.reset();
  for (auto& vector : weights.vectors) vector = {};
}

void LayerLoop::run_layer(int layer, LayerReport& report) {
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

void LayerLoop::run_sequential_layer(int layer, LayerReport& report) {
  const LayerPlan cut = plan_.layer(layer);
  bind_layer(layer, false, weights_);
  if (plain_walk_ || held_out_) bind_layer(layer, true, plain_weights_);
  for (const auto& each : beside_) each->bind(weights_);
  for (size_t s = 0; s < cut.segments.size(); ++s) {
    forward(*walk_, cut, s, report);
    forward_plain(cut, s, report);
    if (held_out_) held_out_->forward(cut, s);
    for (const auto& each : beside_) each->forward(cut, s);
    if (s < cut.stops.size()) solve_stop(*walk_, cut, s, report, true);
  }
  drop_layer(weights_);
  drop_layer(plain_weights_);
  for (const auto& each : beside_) each->drop();
  if (held_out_ && layer + 1 == n_layers()) compare_held_out(report);
}

void LayerLoop::compare_held_out(LayerReport& report) {
  const Stopwatch watch;
  bind_weights(plan_.program, plan_.checkpoint, plan_.program.layers.back().end,
               static_cast<int>(plan_.program.ops.size()), windows_->window_length, weights_);
  plain_weights_.matrices = weights_.matrices;
  plain_weights_.vectors = weights_.vectors;
  plain_weights_.ropes = weights_.ropes;
  report.held_out = held_out_->compare().to_json();
  for (const auto& each : beside_) {
    each->bind(weights_);
    Json found = each->compare(*held_out_).to_json();
    each->drop();
    beside_results_.push_back({std::move(found), each->seconds()});
  }
  drop_layer(weights_);
  drop_layer(plain_weights_);
  report.seconds.forward += watch.seconds();
}

// The 16-bit stream: quantized weights are never run.
void LayerLoop::run_plain_stream(int layer, LayerReport& report) {
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
void LayerLoop::run_captured_layer(int layer, LayerReport& report) {
  const LayerPlan cut = plan_.layer(layer);
  bind_layer(layer, true, plain_weights_);
  bind_layer(layer, false, weights_);
  {
    StreamWalk probe = walk_->fork(plain_weights_);
    for (size_t s = 0; s < cut.stops.size(); ++s) {
      forward(probe, cut, s, report);
      forward_plain(cut, s, report);
      solve_stop(probe, cut, s, report, true);
    }
  }
  forward_plain(cut, cut.stops.size(), report);
  drop_layer(plain_weights_);
  for (size_t s = 0; s < cut.segments.size(); ++s) forward(*walk_, cut, s, report);
  drop_layer(weights_);
}

void LayerLoop::solve_without_inputs(int layer, LayerReport& report) {
  const LayerPlan cut = plan_.layer(layer);
  for (const CaptureStop& stop : cut.stops) {
    solve_linears(stop.matrices, {}, nullptr, report, false);
  }
}

void LayerLoop::forward(StreamWalk& walk, const LayerPlan& cut, size_t segment,
                        LayerReport& report) {
  const Stopwatch watch;
  const double streams = plan_.two_streams() ? 2.0 : 1.0;
  const double cost =
      cost_of(cut.layer).forward / static_cast<double>(cut.segments.size()) / streams;
  meter_.begin(cost, label(cut.layer, "activations"));
  // What the last layer leaves goes nowhere.
  const bool goes_on = cut.layer + 1 < n_layers() || segment + 1 < cut.segments.size();
  if (goes_on) walk.run_segment(cut, segment, [&](double share) { meter_.share(share); });
  meter_.end();
  report.seconds.forward += watch.seconds();
}

void LayerLoop::forward_plain(const LayerPlan& cut, size_t segment, LayerReport& report) {
  if (plain_walk_) forward(*plain_walk_, cut, segment, report);
}

void LayerLoop::solve_stop(const StreamWalk& walk, const LayerPlan& cut, size_t s,
                           LayerReport& report, bool want_packed) {
  const CaptureStop& stop = cut.stops[s];
  if (stop.routes.index >= 0) {
    solve_experts(walk, cut, s, report, want_packed);
    return;
  }
  const std::string name = module_name(stop.matrices.front());
  const StageCost cost = cost_of(cut.layer);
  const auto n_stops = static_cast<double>(cut.stops.size());
  const bool residual = plan_.wants_residual(stop.matrices);
  const Stopwatch watch;
  meter_.begin(cost.gram / n_stops, label(cut.layer, "Gram matrix"));
  const StopProducts products = walk.products(stop, name, plain_walk_ ? &*plain_walk_ : nullptr,
                                              residual, [&](double share) { meter_.share(share); });
  std::optional<StopProducts> held_out;
  if (held_out_ && options_.per_module) {
    held_out = held_out_->quantized().products(stop, name, &held_out_->plain(), true);
  }
  meter_.end();
  report.seconds.gram += watch.seconds();

  meter_.begin((cost.factor + cost.solve) / n_stops, label(cut.layer, "codes"));
  const Calibration known = calibration_of(products);
  Calibration unknown;
  if (held_out) unknown = calibration_of(*held_out);
  solve_linears(stop.matrices, known, held_out ? &unknown : nullptr, report, want_packed);
  meter_.end();
}

// The two streams may send a token to different experts. A target makes good what differs in the
// inputs of the tokens that both send to an expert; where only the quantized stream does, there is
// no output of the 16-bit model to come near to, and the aim is the expert's own.
void LayerLoop::solve_experts(const StreamWalk& walk, const LayerPlan& cut, size_t s,
                              LayerReport& report, bool want_packed) {
  const CaptureStop& stop = cut.stops[s];
  std::map<int, std::vector<int>> experts;  // matrices of each
  for (const int matrix : stop.matrices) {
    experts[plan_.program.matrices[static_cast<size_t>(matrix)].expert].push_back(matrix);
  }
  const std::vector<int64_t> counts = walk.routed_counts(
      stop, plan_.program.spec.layers[static_cast<size_t>(cut.layer)].moe->n_experts);
  if (stop.slots == 1) tell_starved(cut.layer, module_name(stop.matrices.front()), counts);
  const StageCost cost = cost_of(cut.layer);
  meter_.begin((cost.gram + cost.factor + cost.solve) / static_cast<double>(cut.stops.size()),
               label(cut.layer, "experts"));
  size_t n_done = 0;
  for (const auto& [expert, matrices] : experts) {
    const int64_t n_tokens = counts[static_cast<size_t>(expert)];
    const std::string name = module_name(matrices.front());
    const bool too_few = n_tokens < options_.min_expert_tokens;
    const Stopwatch watch;
    std::optional<Hessian> hessian;
    std::optional<CrossProduct> drift;
    if (n_tokens > 0) hessian = walk.routed_hessian(stop, expert, name);
    if (plain_walk_ && !too_few) drift = walk.routed_drift(*plain_walk_, stop, expert, name);
    report.seconds.gram += watch.seconds();
    solve_linears(matrices,
                  {.hessian = hessian ? &*hessian : nullptr,
                   .drift = drift ? &*drift : nullptr,
                   .starved = too_few},
                  nullptr, report, want_packed);
    meter_.share(static_cast<double>(++n_done) / static_cast<double>(experts.size()));
  }
  meter_.end();
}

// All stops of a layer have the same routes, so each layer tells its starved experts once.
void LayerLoop::tell_starved(int layer, const std::string& module,
                             const std::vector<int64_t>& counts) const {
  std::vector<std::string> starved;
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] >= options_.min_expert_tokens) continue;
    starved.push_back(fmt::format("{} ({})", expert, counts[expert]));
  }
  if (starved.empty()) return;
  const std::string message =
      fmt::format("layer {}, {}: fewer than {} calibration tokens reached experts {}", layer,
                  module, options_.min_expert_tokens, join_words(starved));
  if (options_.starved_experts == StarvedExperts::kError) {
    throw NumericError(message +
                       "; use more calibration data, a smaller --min-expert-tokens, or "
                       "--starved-experts rtn");
  }
  if (events_.on_note) events_.on_note(message + "; they are rounded to nearest");
}

void LayerLoop::solve_linears(const std::vector<int>& matrices, Calibration calibration,
                              const Calibration* held_out, LayerReport& report, bool want_packed) {
  std::optional<FactorCache> factors;
  if (plan_.algorithm->needs_calibration && !calibration.starved) {
    factors.emplace(*calibration.hessian);
  }
  for (const int matrix : matrices) {
    std::optional<LinearTrial> best;
    Json tried = Json::array();
    std::vector<QuantizeOptions> trials = trials_of(matrix);
    if (held_out == nullptr) trials.resize(1);
    if (sensitivities_) calibration.sensitivities = &*sensitivities_;
    for (const QuantizeOptions& options : trials) {
      if (factors) {
        const Stopwatch watch;
        calibration.factor =
            &factors->factor(options, plan_.program.matrices[static_cast<size_t>(matrix)]);
        report.seconds.factor += watch.seconds();
      }
      const Stopwatch watch;
      LinearTrial trial = try_linear(plan_, matrix, options, calibration, held_out);
      report.seconds.solve += watch.seconds();
      if (held_out != nullptr) {
        tried.push(choice_json(options).set("held_out_distance", *trial.held_out_distance));
        if (best && !(*trial.held_out_distance < *best->held_out_distance)) continue;
      }
      best = std::move(trial);
    }
    const Stopwatch watch;
    const int64_t n_tokens = calibration.hessian != nullptr ? calibration.hessian->n_tokens : 0;
    solved_.push_back(finish_linear(plan_, matrix, *best, n_tokens, want_packed));
    SolvedLinear& solved = solved_.back();
    if (held_out != nullptr) {
      solved.report.choice = choice_json(best->options).set("tried", tried);
    }
    if (want_packed) weights_.matrices[static_cast<size_t>(matrix)] = std::move(solved.packed);
    report.modules.push_back(solved.report);
    if (events_.on_module) events_.on_module(solved.report);
    release_model_pages();
    report.seconds.solve += watch.seconds();
  }
  for (const auto& each : beside_) {
    each->solve(matrices, calibration, factors ? &*factors : nullptr, weights_);
  }
}

std::vector<QuantizeOptions> LayerLoop::trials_of(int matrix) const {
  const QuantizeOptions& base = plan_.options[static_cast<size_t>(matrix)];
  std::vector<QuantizeOptions> trials = {base};
  if (options_.per_module == PerModule::kAlpha) {
    for (const double alpha : kAlphas) {
      if (alpha == base.target_alpha || base.target_alpha == 0.0) continue;
      trials.push_back(base);
      trials.back().target_alpha = alpha;
      if (base.residual_alpha != 0.0) trials.back().residual_alpha = alpha;
    }
  }
  if (options_.per_module == PerModule::kDamp) {
    for (const double times : kDampings) {
      trials.push_back(base);
      trials.back().damp_percent = times * base.damp_percent;
    }
  }
  return trials;
}

void LayerLoop::commit(const LayerReport& report) {
  std::vector<TensorSource> tensors;
  for (const SolvedLinear& linear : solved_) {
    for (size_t i = 0; i < linear.tensors.size(); ++i) {
      const TensorSpec& tensor = linear.tensors[i];
      tensors.push_back(source_of(tensor.name, {tensor.dtype, tensor.shape, linear.bytes[i]}));
    }
  }
  const bool goes_on = report.layer + 1 < n_layers();
  std::vector<const StreamWalk*> walks;
  if (walk_ && goes_on) walks.push_back(&*walk_);
  if (plain_walk_ && goes_on) walks.push_back(&*plain_walk_);
  if (held_out_ && goes_on) {
    for (const StreamWalk* walk : held_out_->walks()) walks.push_back(walk);
  }
  state_.commit_layer(report, std::move(tensors), walks);
  solved_.clear();
}

std::string LayerLoop::module_name(int matrix) const {
  return plan_.program.matrices[static_cast<size_t>(matrix)].module;
}
std::string LayerLoop::label(int layer, const char* stage) const {
  return "layer " + std::to_string(layer + 1) + "/" + std::to_string(n_layers()) + ", " + stage;
}

}  // namespace assay
