#pragma once

#include <string_view>

#include "quantizer/quantize.h"

namespace assay {

/// Damps and factors one Hessian (arithmetic.md §9): permute(H + λI) = R·R^T with R upper
/// triangular, the Cholesky in reversed index order, k ascending per element, fp64. Tries
/// options.damp_percent, then options.damp_retries in order. Columns that no calibration token
/// reaches (H_jj = 0) are dead: they get the diagonal basis + λ. Where all are dead, R = I: the
/// result is round-to-nearest, n_dead says so.
/// A pivot² counts as positive above n·2^-52 of its damped diagonal, the rounding of the sums.
/// Throws NumericError with `module`, the dampings tried and the column, if all fail.
/// Source: Cholesky form of GPTQ (Frantar et al., arXiv 2210.17323).
HessianFactor factor_hessian(const Hessian& hessian, const QuantizeOptions& options,
                             std::string_view module);

/// Most bytes held while n columns are factored, result included, H not: for --dry-run.
uint64_t factor_peak_bytes(int64_t n);

}  // namespace assay
