#pragma once

#include <span>
#include <vector>

#include "quantizer/grid.h"
#include "quantizer/quantize.h"
#include "quantizer/regrid.h"

namespace assay {

/// What follows the column loop: options.refit_rounds rounds of scale refit and coordinate descent,
/// in the first regrid_rounds of them each group anew and another descent, row by row.
class Refiner {
 public:
  /// Makes what all rows share. Hessian and factor of `problem`, and the options, must outlive it.
  Refiner(const LayerProblem& problem, const QuantizeOptions& options);

  /// Brings some rows of the problem nearer to `target` (out_features, in_features of `rows`).
  /// Changes grid and codes in place.
  StepLosses run(const LayerProblem& rows, std::span<const float> target, Grid& grid,
                 std::span<uint8_t> codes) const;

 private:
  const QuantizeOptions& options_;
  std::vector<GroupBlock> blocks_;
};

/// Whether options ask for any of it.
bool refines(const QuantizeOptions& options);

/// Bytes per thread, and those that all threads share; 0 where options ask for none of it.
uint64_t refine_peak_bytes(int64_t columns, const QuantizeOptions& options);
uint64_t refine_shared_bytes(int64_t columns, const QuantizeOptions& options);

}  // namespace assay
