#pragma once

#include "quantizer/row_quadratic.h"

namespace assay {

/// With the codes of a row fixed, the scales that minimise its loss: normal equations A s = b with
/// 1e-9 of A's mean diagonal added to the diagonal, by Cholesky (chains ascending). A scale outside
/// (0.3, 3) of the old one keeps the old one; all are rounded to the stored type. The row takes
/// them only if its loss falls (quantization.md, step 6). Needs sum_groups(). Returns by how much
/// the loss fell, 0 if the scales stay. Scales of GridKind::kQ4K are moved one after another to the
/// multiple nearest to their best value given the others, groups ascending, at most three times.
double refit_scales(RowQuadratic& row, const QuantizeOptions& options);

}  // namespace assay
