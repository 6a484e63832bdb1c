#include "quantizer/beside.h"

#include <string>

#include "convert/core/error.h"
#include "convert/core/stopwatch.h"

namespace assay {

const HessianFactor& FactorCache::factor(const QuantizeOptions& options, const MatrixSlot& slot) {
  const bool in_full = options.target_alpha != 0.0;
  if (factor_ && damp_percent_ == options.damp_percent && (in_full_ || !in_full)) return *factor_;
  factor_ = factor_hessian(hessian_, options, slot.module);
  damp_percent_ = options.damp_percent;
  in_full_ = in_full;
  if (factor_->n_dead < hessian_.n || slot.expert >= 0) return *factor_;
  throw NumericError(slot.module + ": all calibration inputs are zero (" +
                     std::to_string(hessian_.n_tokens) +
                     " tokens); there is nothing to calibrate with");
}

void BesideModel::forward(const LayerPlan& plan, size_t segment) {
  const Stopwatch watch;
  walk_->run_segment(plan, segment);
  seconds_ += watch.seconds();
}

void BesideModel::solve(const std::vector<int>& matrices, Calibration calibration,
                        FactorCache* factors, const CpuWeights& own) {
  const Stopwatch watch;
  for (const int matrix : matrices) {
    const auto index = static_cast<size_t>(matrix);
    if (calibration.starved || options_[index] == plan_.options[index]) {
      weights_.matrices[index] = own.matrices[index];
      continue;
    }
    calibration.factor = nullptr;
    if (factors != nullptr) {
      calibration.factor = &factors->factor(options_[index], plan_.program.matrices[index]);
    }
    const LinearTrial trial = try_linear(plan_, matrix, options_[index], calibration, nullptr);
    weights_.matrices[index] = std::make_shared<const PackedMatrix>(
        pack_result(plan_.shape(matrix), plan_.quantize, trial.result));
  }
  seconds_ += watch.seconds();
}

NllComparison BesideModel::compare(HeldOut& held_out) {
  const Stopwatch watch;
  NllComparison comparison = held_out.compare(*walk_);
  seconds_ += watch.seconds();
  return comparison;
}

}  // namespace assay
