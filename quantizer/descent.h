#pragma once

#include "quantizer/row_quadratic.h"

namespace assay {

/// One pass of coordinate descent over the codes of a row, columns ascending: with the residual
/// r = (w − ŵ)(H + λI), column j takes the step c_j ← rne(c_j + r_j / (s·(H_jj + λ_j))) cut to the
/// grid, and r follows. The loss never rises (quantization.md, step 7). `residual` (n) is scratch.
/// Returns how many codes changed.
int64_t descend_codes(RowQuadratic& row, int bits, std::span<double> residual);

}  // namespace assay
