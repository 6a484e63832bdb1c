#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "calibrate/walk.h"
#include "quantizer/factor.h"
#include "quantizer/held_out.h"
#include "quantizer/layer_solver.h"
#include "quantizer/run_plan.h"

namespace assay {

/// The last factor that was made of a Hessian, for as long as its damping is what is asked for.
class FactorCache {
 public:
  explicit FactorCache(const Hessian& hessian) : hessian_(hessian) {}

  /// Throws NumericError where all inputs of a linear that is no expert's are zero.
  const HessianFactor& factor(const QuantizeOptions& options, const MatrixSlot& slot);

 private:
  const Hessian& hessian_;
  double damp_percent_ = 0.0;
  bool in_full_ = false;  // with what a target needs
  std::optional<HessianFactor> factor_;
};

/// One of RunOptions::beside: what its values make of the run's Gram matrices, and the held-out
/// windows in a stream of its own through that.
class BesideModel {
 public:
  /// `options`: of each of Program::matrices. All references must outlive the object, which must
  /// stay where it is.
  BesideModel(const RunPlan& plan, const std::vector<QuantizeOptions>& options)
      : plan_(plan), options_(options) {}
  BesideModel(const BesideModel&) = delete;
  BesideModel& operator=(const BesideModel&) = delete;

  /// From here on its windows go a way of their own.
  void start(const StreamWalk& held_out) { walk_.emplace(held_out.fork(weights_)); }
  /// Takes over what is bound: all of a layer but the linears that are to be quantized, or what
  /// follows the layers.
  void bind(const CpuWeights& weights) { weights_ = weights; }
  void drop() { weights_ = {}; }
  void forward(const LayerPlan& plan, size_t segment);
  /// Quantizes linears that read one input. `own` are the run's results, which serve where it has
  /// the same options.
  void solve(const std::vector<int>& matrices, Calibration calibration, FactorCache* factors,
             const CpuWeights& own);
  /// After the last layer.
  NllComparison compare(HeldOut& held_out);

  double seconds() const { return seconds_; }

 private:
  const RunPlan& plan_;
  const std::vector<QuantizeOptions>& options_;
  CpuWeights weights_;
  std::optional<StreamWalk> walk_;
  double seconds_ = 0.0;
};

}  // namespace assay
