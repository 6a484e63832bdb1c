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

/// Reads the weights of one linear and quantizes them. `hessian` and `factor` may be null if the
/// algorithm needs none. `want_packed`: whether the quantized stream goes on with it.
SolvedLinear solve_linear(const RunPlan& plan, int matrix, const Hessian* hessian,
                          const HessianFactor* factor, bool want_packed);

/// Most bytes held while one linear is solved, beyond Hessian and factor: for --dry-run.
uint64_t solve_peak_bytes(const LinearShape& linear, const QuantizeOptions& options);

/// The W4A16 matrix of a result in the layout that the CPU kernels read.
PackedMatrix pack_result(const LinearShape& linear, const QuantizeOptions& options,
                         const LayerResult& result);

}  // namespace assay
