#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "calibrate/dataset.h"
#include "calibrate/layer_plan.h"
#include "calibrate/store.h"
#include "calibrate/walk.h"

namespace assay {

/// Rows of a linear whose sensitivities are kept together; those of other chains count as
/// independent.
inline constexpr int64_t kChainRows = 256;

/// Chains of a linear with `out_features` rows: as few as hold at most kChainRows rows each, all
/// but the last of one length.
struct RowChains {
  explicit RowChains(int64_t out_features);
  int64_t n_rows = 0;
  int64_t n_chains = 0;
  int64_t length = 0;  // rows of every chain but the last

  int64_t begin(int64_t chain) const { return chain * length; }
  int64_t end(int64_t chain) const;
  /// Values of all chains: (rows, rows) each, one after another.
  int64_t n_values() const;
  int64_t first_value(int64_t chain) const { return chain * length * length; }
};

/// How the errors of a linear's outputs act together on what the model predicts: the Fisher
/// information G = Σ g g^T of its outputs, g the derivative of a token's −log p with the token
/// drawn from the model's own distribution. A small error δ of the outputs moves the mean KL
/// divergence by ½·δ^T G δ per token. Of one 16-bit model, for its linears that are to be
/// quantized. Source: K-FAC (Martens and Grosse, arXiv 1503.05671); two-sided rounding with such a
/// matrix: YAQA (Tseng et al., arXiv 2505.22988).
class Sensitivities {
 public:
  /// Values of all chains of this matrix (RowChains); empty: none were measured (experts).
  /// `scratch` serves where they lie on disk.
  std::span<const float> of(int matrix, std::vector<float>& scratch) const;
  void drop(int matrix) { store_->drop(matrix); }

 private:
  friend class SensitivityPass;
  std::unique_ptr<ActivationStore> store_;  // a batch for each of Program::matrices
  std::vector<char> known_;
};

struct SensitivityOptions {
  int64_t n_windows = 8;  // of the calibration windows, evenly spread; all, if there are fewer
  KvType kv_type = KvType::kF16;
};

/// Runs the 16-bit model of `checkpoint` on some windows and takes derivatives back through it,
/// layer by layer. fp32; each sum is a chain in token order. Same windows, same bits: neither
/// threads nor memory count. `progress` is called with the share that is done. Throws NumericError
/// for derivatives that are not finite.
Sensitivities measure_sensitivities(const Program& program,
                                    std::shared_ptr<const Checkpoint> checkpoint,
                                    const WantedMatrix& wanted, const TokenWindows& windows,
                                    const SensitivityOptions& options, ActivationMemory& memory,
                                    const std::function<void(double share)>& progress = nullptr);

/// What that takes.
struct SensitivityCost {
  uint64_t work_bytes = 0;    // beside the activation stores
  uint64_t stored_bytes = 0;  // in those, at most
  uint64_t found_bytes = 0;   // of them what stays
};
SensitivityCost sensitivity_cost(const Program& program, const WantedMatrix& wanted,
                                 int64_t n_windows, int64_t window_length,
                                 const SensitivityOptions& options);

}  // namespace assay
