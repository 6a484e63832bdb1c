#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quantizer/grid.h"
#include "quantizer/quantize.h"

namespace assay {

/// Fills `errors` (in_features) with one row's vector e.
using ErrorRow = std::function<void(int64_t row, std::span<double> errors)>;

/// Σ over rows of e·H·e^T, fp64: per row Σ_j (Σ_i e_i·H_ij)·e_j, chains with ascending index, then
/// a chain over the rows. Without a Hessian: Σ e². `error_row` is called from several threads.
double quadratic_loss(int64_t rows, int64_t columns, const Hessian* hessian,
                      const ErrorRow& error_row);

/// e = w − scale·(code − zero) of one row.
void rounding_errors(std::span<const float> weights, std::span<const uint8_t> codes,
                     const Grid& grid, int64_t row, std::span<double> errors);

/// W − Ŵ.
std::vector<float> errors_of(const LayerProblem& problem, std::vector<float> rounded);

/// e·H·e^T of these codes, e = w − scale·(code − zero), summed over rows.
double loss_of_codes(const LayerProblem& problem, const Grid& grid, std::span<const uint8_t> codes);

/// The three figures of a report: loss of `codes`, loss of round-to-nearest with min-max scales,
/// and W H W^T.
struct Losses {
  double loss = 0.0;
  double rtn_loss = 0.0;
  double weight_norm = 0.0;
};
Losses measure_losses(const LayerProblem& problem, const QuantizeOptions& options, const Grid& grid,
                      std::span<const uint8_t> codes);

}  // namespace assay
