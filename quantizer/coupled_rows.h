#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quantizer/grid.h"
#include "quantizer/quantize.h"

namespace assay {

/// What some rows became.
struct RowResult {
  Grid grid;
  std::vector<uint8_t> codes;  // (rows, in_features)
  int64_t n_cut = 0;           // codes cut to the ends of the grid by the algorithm
  StepLosses steps;
};

/// Quantizes rows as they stand, each for itself: problem.weights (out_features, in_features) are
/// their aims.
using RowSolver = std::function<RowResult(const LayerProblem& rows)>;

/// Quantizes a linear whose outputs act together (LayerProblem::sensitivity): with E = W* − Ŵ the
/// aim is the smallest tr(G·E·H·E^T) instead of tr(E·H·E^T). The rows of a chain are decided a few
/// at a time by falling G_ii; each later row i then aims at w*_i + Σ_k T_ki·(w*_k − ŵ_k) over the
/// decided rows k, T from the factor of G + λI as in the column loop (arithmetic.md §9), λ a tenth
/// of G's mean diagonal: what makes the best of their errors. fp32, chains in the order in which
/// rows are decided. `aim`: the linear with W* as its weights.
RowResult solve_coupled_rows(const LayerProblem& aim, const QuantizeOptions& options,
                             const RowSolver& solve);

/// tr(G·E·H·E^T) with `errors` (out_features, in_features) = E = W − Ŵ; with two streams what
/// output_distance() is where the outputs count by G: tr(G·(E·H + 2·(W·D + E_residual))·E^T).
double coupled_loss(const LayerProblem& problem, std::span<const float> errors);

/// Lanes of kernels that it takes to solve so many rows: those that are decided together do not
/// always fill a vector.
int64_t coupled_lanes(int64_t rows);

/// Bytes beside those of solving, for all threads together.
uint64_t coupled_rows_bytes(int64_t rows, int64_t columns);

}  // namespace assay
