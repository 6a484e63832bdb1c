#pragma once

#include <cstddef>
#include <memory>
#include <vector>

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
  bool starved = false;  // rounded to nearest whatever the run's algorithm is
};

/// Reads the weights of one linear and quantizes them. `want_packed`: whether the quantized stream
/// goes on with it.
SolvedLinear solve_linear(const RunPlan& plan, int matrix, const Calibration& calibration,
                          bool want_packed);

/// Most bytes held while one linear is solved, beyond Hessian and factor: for --dry-run.
uint64_t solve_peak_bytes(const LinearShape& linear, const QuantizeOptions& options);

/// The W4A16 matrix of a result in the layout that the CPU kernels read.
PackedMatrix pack_result(const LinearShape& linear, const QuantizeOptions& options,
                         const LayerResult& result);

}  // namespace assay
