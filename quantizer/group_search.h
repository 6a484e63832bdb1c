#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "quantizer/quantize.h"
#include "quantizer/solver_kernels.h"

namespace assay {

struct ScaleAndZero {
  float scale = 0.0f;
  uint8_t zero = 0;
};

/// Smallest and largest of n weights that stand `stride` apart, and 0; symmetric: as far from 0 on
/// both sides.
struct WeightRange {
  float low = 0.0f;
  float high = 0.0f;
};
WeightRange range_of(const float* weights, int64_t n, int64_t stride, bool symmetric);

/// By range (arithmetic.md §9, "Scales and zero points"); the scale may be useless (0, NaN,
/// infinity) where the weights do not fit its type.
ScaleAndZero scale_and_zero(float low, float high, const QuantizeOptions& options);

/// Columns [first, first + n) of the rows of a symmetric (size, size) matrix, in panels
/// (n_panels, n, 8) padded with zeros; `added` (size) goes to the diagonal, null: nothing.
std::vector<double> block_panels(const double* matrix, int64_t size, int64_t first, int64_t n,
                                 const double* added);

/// The scale grid of one group of n columns: per row the best of 21 candidates, the range of the
/// weights times 1.0, 0.975 … 0.5. Objective e·H·e^T of round-to-nearest, fp64; the first minimum
/// wins (quantization.md, step 4).
class GroupSearch {
 public:
  static constexpr int64_t kCandidates = 21;
  using Choices = std::array<ScaleAndZero, kGridRows>;

  /// panels: H of the group as block_panels() gives it; must outlive the object.
  GroupSearch(int64_t n, const std::vector<double>& panels);

  /// weights (n, 16). A candidate with a useless scale is returned as it is.
  Choices run(const float* weights, const QuantizeOptions& options);

  /// Objectives of any 21 candidates, to be read with objective().
  void evaluate(const float* weights, const std::array<Choices, kCandidates>& candidates,
                float largest_code);
  double objective(int64_t row, int64_t candidate) const {
    return objectives_[static_cast<size_t>((2 * candidate + row / 8) * 8 + row % 8)];
  }

  static uint64_t bytes(int64_t n);

 private:
  // Two vectors of eight rows per candidate stand in packs of three (kQuadraticLanes).
  static constexpr int64_t kPacks = (2 * kCandidates + 2) / 3;
  // Of vector v = 2·candidate + half in errors_: pack v / 3, lanes 8·(v mod 3) …
  int64_t offset(int64_t v) const { return v / 3 * n_ * kQuadraticLanes + v % 3 * 8; }

  int64_t n_;
  const std::vector<double>& panels_;
  std::vector<double> errors_;  // (packs, n, 24)
  std::array<double, kPacks * kQuadraticLanes> objectives_{};
};

}  // namespace assay
