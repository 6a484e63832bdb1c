#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "calibrate/sensitivity.h"
#include "quantizer/run_plan.h"
#include "runtime/ops/linear.h"

namespace assay {

/// One linear after its codes are decided.
struct SolvedLinear {
  int matrix = -1;  // into Program::matrices
  ModuleReport report;
  std::vector<TensorSpec> tensors;             // of the checkpoint
  std::vector<std::vector<std::byte>> bytes;   // of each tensor
  std::shared_ptr<const PackedMatrix> packed;  // what the forward pass runs with
};

/// What the linears that read one input share. Members are null where the run has no such thing.
struct Calibration {
  const Hessian* hessian = nullptr;
  const HessianFactor* factor = nullptr;
  const CrossProduct* drift = nullptr;           // LayerProblem::drift
  const CrossProduct* residual_drift = nullptr;  // LayerProblem::residual_drift
  const Sensitivities* sensitivities = nullptr;  // of all linears of the model
  bool starved = false;  // rounded to nearest whatever the run's algorithm is
};

/// What a linear became with some options.
struct LinearTrial {
  QuantizeOptions options;
  LayerResult result;
  bool starved = false;       // Calibration::starved
  double damp_percent = 0.0;  // used
  int64_t n_dead = 0;
  double seconds = 0.0;
  /// Σ‖(S + X W^T) − (S̃ + X̃ Ŵ^T)‖² on the held-out windows, less what no Ŵ can change.
  std::optional<double> held_out_distance = std::nullopt;
};

/// Reads the weights of one linear and quantizes them. `held_out`: the same of windows that were
/// held out, without a factor; null: there are none.
LinearTrial try_linear(const RunPlan& plan, int matrix, const QuantizeOptions& options,
                       const Calibration& calibration, const Calibration* held_out);

/// The tensors and the report of a trial. `want_packed`: whether the quantized stream goes on with
/// it. `n_tokens`: behind the Hessian.
SolvedLinear finish_linear(const RunPlan& plan, int matrix, const LinearTrial& trial,
                           int64_t n_tokens, bool want_packed);

/// Most bytes held while one linear is solved, beyond Hessian and factor: for --dry-run.
uint64_t solve_peak_bytes(const LinearShape& linear, const QuantizeOptions& options);

/// The W4A16 matrix of a result in the layout that the CPU kernels read.
PackedMatrix pack_result(const LinearShape& linear, const QuantizeOptions& options,
                         const LayerResult& result);

}  // namespace assay
