#pragma once

#include <vector>

#include "quantizer/row_quadratic.h"

namespace assay {

/// H + λI of each group's columns, factored: what regrid_groups() needs, shared by all rows.
struct GroupBlock {
  HessianFactor factor;        // of the block alone; its order is that of the diagonal
  std::vector<double> panels;  // block_panels()
};
std::vector<GroupBlock> group_blocks(const LayerProblem& problem, const QuantizeOptions& options);
uint64_t group_blocks_bytes(int64_t columns, int64_t group_size);

/// Quantizes each group of the rows anew against what the other groups leave, groups ascending.
/// With r = (w − ŵ)(H + λI) the best values of group g are t_g = ŵ_g + r_g·B^-1, B its block.
/// Tried are the scale grid's choice for t_g and the row's own scale and zero point, each twice:
/// column loop within the group, then the scale that fits its codes (kept inside (0.3, 3) of the
/// one before); the second time starts from that scale. A row takes the first smallest objective
/// of these and of what it has. gains (24): += by how much each row's loss fell.
void regrid_groups(RowQuadraticPack& pack, const std::vector<GroupBlock>& blocks,
                   const QuantizeOptions& options, double* gains);

/// Bytes per thread.
uint64_t regrid_peak_bytes(int64_t group_size);

}  // namespace assay
