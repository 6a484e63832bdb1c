#pragma once

#include <vector>

#include "quantizer/quantize.h"

namespace assay::test {

// The solver of arithmetic.md §9 in plain loops, one element at a time, in the order of the page:
// what the fast code is compared with, bit for bit. Nothing is shared with it.

struct ReferenceFactor {
  std::vector<int64_t> order;
  std::vector<float> ratios;    // (n, n)
  std::vector<double> pivots;   // (n)
  std::vector<double> r;        // (n, n) R, upper triangular, in solve order
  std::vector<double> damping;  // (n) added to H_jj, by original column
  double lambda = 0.0;
  bool failed = false;
};
ReferenceFactor reference_factor(const Hessian& hessian, const QuantizeOptions& options);

/// Of a super-block: scales are unit·k, minima unit·ratio·m with k, m ≤ 63 (GridKind::kQ4K).
struct ReferenceLattice {
  float unit = 0.0f;
  int ratio = 0;  // 0: none, any scale will do
};

struct ReferenceGrid {
  std::vector<float> scales;               // (rows, n_groups)
  std::vector<int> zero_points;            // (rows, n_groups)
  std::vector<ReferenceLattice> lattices;  // (rows, n_groups); empty for GridKind::kFree
};
ReferenceGrid reference_grid(const LayerProblem& problem, const QuantizeOptions& options);

/// Codes (rows, columns) of round-to-nearest.
std::vector<uint8_t> reference_rtn(const LayerProblem& problem, const QuantizeOptions& options,
                                   const ReferenceGrid& grid);
/// Codes (rows, columns) of the column loop, with no blocks at all.
std::vector<uint8_t> reference_gptq(const LayerProblem& problem, const QuantizeOptions& options,
                                    const ReferenceGrid& grid, const ReferenceFactor& factor);
/// W* of quantization.md, step 2.
std::vector<float> reference_target(const LayerProblem& problem, const QuantizeOptions& options,
                                    const ReferenceFactor& factor);
/// Scale refit and coordinate descent (steps 6 and 7) towards `target`; changes grid and codes.
void reference_refine(const LayerProblem& problem, const QuantizeOptions& options,
                      const ReferenceFactor& factor, const std::vector<float>& target,
                      ReferenceGrid& grid, std::vector<uint8_t>& codes);
double reference_loss(const LayerProblem& problem, const QuantizeOptions& options,
                      const ReferenceGrid& grid, const std::vector<uint8_t>& codes);

}  // namespace assay::test
