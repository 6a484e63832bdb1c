#pragma once

#include <vector>

#include "calibrate/walk.h"
#include "verify/nll.h"

namespace assay {

inline constexpr int64_t kHeldOutRows = 128;  // whose logits are held at once, in each model

/// Windows that no Hessian sees, walked beside the calibration windows in both models, so that the
/// result can be compared with the original before it is written, and choices can be made on
/// tokens that the solver does not know.
class HeldOut {
 public:
  /// All references must outlive the object. `quantized` and `plain` are the weights of the two
  /// models, bound layer by layer.
  HeldOut(const Program& program, const CpuWeights& quantized, const CpuWeights& plain,
          const TokenWindows& windows, KvType kv_type, ActivationMemory& memory);

  void embed();
  void forward(const LayerPlan& plan, size_t segment);

  const StreamWalk& quantized() const { return quantized_; }
  const StreamWalk& plain() const { return plain_; }
  /// What the state of a run keeps between layers.
  std::vector<StreamWalk*> walks() { return {&quantized_, &plain_}; }

  /// After the last layer: KLD(original ‖ quantized), delta_nll and top-1 agreement of all windows.
  /// Both weights must have what follows the layers.
  NllComparison compare() { return compare(quantized_); }
  /// The same of another walk over these windows.
  NllComparison compare(StreamWalk& quantized);

 private:
  PairedWindowScores score(int64_t window, StreamWalk& quantized);

  const TokenWindows& windows_;
  const CpuWeights& plain_weights_;
  StreamWalk quantized_;
  StreamWalk plain_;
};

}  // namespace assay
