#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/sensitivity.h"
#include "calibrate/walk.h"
#include "quantizer/beside.h"
#include "quantizer/estimate.h"
#include "quantizer/factor.h"
#include "quantizer/held_out.h"
#include "quantizer/layer_solver.h"
#include "quantizer/run_options.h"
#include "quantizer/run_plan.h"
#include "quantizer/run_state.h"
#include "runtime/cpu_executor.h"

namespace assay {

/// Tells work in predicted seconds: finished stages and the share of the one at work.
class ProgressMeter {
 public:
  ProgressMeter(const RunEvents& events, double total) : events_(events), total_(total) {}

  void begin(double cost, std::string label);
  void share(double part) const;
  void end();
  void skip(double cost) { done_ += cost; }

 private:
  const RunEvents& events_;
  double total_;
  double done_ = 0.0;
  double cost_ = 0.0;
  std::string label_;
};

/// The layers of one run in order: activations up to a stop, Gram matrix, factor, codes, and on
/// with the quantized weights. Memory holds one layer and the activations (calibrate/store.h).
class LayerLoop {
 public:
  /// All references must outlive the object; `windows` is null without calibration, `held_out`
  /// without windows that are held out.
  LayerLoop(const RunPlan& plan, const RunOptions& options, const RunEvents& events,
            const TokenWindows* windows, const TokenWindows* held_out, RunState& state);

  /// Goes on after the layers that `state` has, and commits each layer to it. Throws StoppedError
  /// at the end of the layer in which events.stop_requested() became true.
  void run();

  uint64_t most_spilled_bytes() const { return memory_.most_spilled_bytes(); }
  /// What became of RunOptions::beside, after run().
  const std::vector<BesideResult>& beside() const { return beside_results_; }

 private:
  int n_layers() const { return static_cast<int>(plan_.program.layers.size()); }
  StageCost cost_of(int layer) const;
  double total_cost() const;
  std::string module_name(int matrix) const;
  std::string label(int layer, const char* stage) const;

  void measure_sensitivities(LayerReport& report);
  void start_walk(int first_layer);
  void release_model_pages() const;
  void bind_layer(int layer, bool with_selected, CpuWeights& weights) const;
  static void drop_layer(CpuWeights& weights);

  void run_layer(int layer, LayerReport& report);
  void run_sequential_layer(int layer, LayerReport& report);
  void run_plain_stream(int layer, LayerReport& report);
  void run_captured_layer(int layer, LayerReport& report);
  void solve_without_inputs(int layer, LayerReport& report);

  void forward(StreamWalk& walk, const LayerPlan& cut, size_t segment, LayerReport& report);
  /// The 16-bit stream's part of it, where there is one.
  void forward_plain(const LayerPlan& cut, size_t segment, LayerReport& report);
  void solve_stop(const StreamWalk& walk, const LayerPlan& cut, size_t stop, LayerReport& report,
                  bool want_packed);
  void tell_starved(int layer, const std::string& module, const std::vector<int64_t>& counts) const;
  /// The experts of a stop with routes, each with the Hessian of the rows routed to it.
  void solve_experts(const StreamWalk& walk, const LayerPlan& cut, size_t stop, LayerReport& report,
                     bool want_packed);
  void compare_held_out(LayerReport& report);
  /// Factors calibration.hessian as the linears' options ask. `held_out`: where trials are
  /// compared; null: there is one.
  void solve_linears(const std::vector<int>& matrices, Calibration calibration,
                     const Calibration* held_out, LayerReport& report, bool want_packed);
  /// The options that are tried for a linear, the run's first.
  std::vector<QuantizeOptions> trials_of(int matrix) const;
  void commit(const LayerReport& report);

  const RunPlan& plan_;
  const RunOptions& options_;
  const RunEvents& events_;
  const TokenWindows* windows_;
  RunState& state_;
  ActivationMemory memory_;
  ProgressMeter meter_;
  CpuWeights weights_;        // what the stream runs with
  CpuWeights plain_weights_;  // 16-bit, for the second stream and CaptureMode::kLayer
  std::optional<StreamWalk> walk_;
  TokenWindows plain_windows_;            // RunPlan::n_plain_windows()
  std::optional<StreamWalk> plain_walk_;  // RunPlan::two_streams()
  std::optional<Sensitivities> sensitivities_;
  std::optional<HeldOut> held_out_;
  std::vector<std::unique_ptr<BesideModel>> beside_;
  std::vector<BesideResult> beside_results_;
  std::vector<SolvedLinear> solved_;  // of the layer at work
};

}  // namespace assay
