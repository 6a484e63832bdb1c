#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quantizer/grid.h"
#include "quantizer/quantize.h"

namespace assay {

/// The quadratic form (w − ŵ)·(H + λI)·(w − ŵ)^T of one row, taken apart by groups, so that scales
/// and codes can move one at a time: ŵ = Σ_g s_g·c_g with integer steps c = code − zero. All fp64.
struct RowQuadratic {
  int64_t n = 0;
  int64_t group_size = 0;
  int64_t n_groups = 0;
  const double* hessian = nullptr;  // (n, n)
  const double* damping = nullptr;  // (n) λ of each column
  std::vector<double> weights;      // (n) w
  std::vector<double> wanted;       // (n) w·(H + λI)
  std::vector<double> steps;        // (n) c
  std::vector<double> parts;        // (n_groups, n) c_g·(H + λI)
  std::vector<float> scales;        // (n_groups)
  std::vector<double> zeros;        // (n_groups)
  std::vector<SharedScale> shared;  // (n_groups); ratio 0: the scale is the group's own
  double weight_norm = 0.0;         // w·(H + λI)·w^T
  // Σ s_g·s_h·A_gh − 2 Σ s_g·b_g + weight_norm is the loss. Set by sum_groups().
  std::vector<double> gram;    // (n_groups, n_groups) A_gh = c_g·(H + λI)·c_h^T, h ≤ g
  std::vector<double> linear;  // (n_groups) b_g = w·(H + λI)·c_g^T

  int64_t begin_of(int64_t group) const { return group * group_size; }
  int64_t end_of(int64_t group) const;
  double curvature(int64_t column) const { return hessian[column * n + column] + damping[column]; }

  /// A and b from parts and steps: dots in eight chains (SolverKernels::dot).
  void sum_groups();
  /// The loss with these scales and the sums of sum_groups().
  double loss(std::span<const float> with_scales) const;
  /// (w − ŵ)·(H + λI): wanted less s_g·parts_g, groups ascending.
  void residual(std::span<double> out) const;
  /// c_column += step, and what follows in `parts`.
  void move(int64_t column, double step);
};

/// Up to 24 rows of a problem with their codes, made together so that a piece of H serves all.
/// Products are chains over ascending columns, then the damping's part.
class RowQuadraticPack {
 public:
  RowQuadraticPack(const LayerProblem& problem, const Grid& grid);

  /// `target` (out_features, in_features) are the w of the rows.
  void load(std::span<const float> target, std::span<const uint8_t> codes, int64_t first_row);
  /// Makes parts_g of the rows that `wanted` names anew from their steps.
  void make_parts(int64_t group, const std::function<bool(int64_t)>& wanted);
  int64_t n_rows() const { return n_rows_; }
  RowQuadratic& row(int64_t r) { return rows_[static_cast<size_t>(r)]; }

  static uint64_t bytes(int64_t columns, int64_t n_groups);

 private:
  void multiply();
  void load_panels(int64_t j0, int64_t begin, int64_t end);
  /// out_of(r)[j] = x·(H + λI)_j with x (n, 24) over columns [begin, end), for the panels at j0.
  void multiply_panels(const std::vector<double>& x, int64_t begin, int64_t end, int64_t j0,
                       const std::function<double*(int64_t)>& out_of);

  const LayerProblem& problem_;
  const Grid& grid_;
  int64_t n_rows_ = 0;
  std::vector<RowQuadratic> rows_;
  std::vector<double> weights_;  // (n, 24)
  std::vector<double> steps_;    // (n, 24)
  std::vector<double> panel_;    // (n, 8)
};

}  // namespace assay
