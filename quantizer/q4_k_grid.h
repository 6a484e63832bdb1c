#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "quantizer/grid.h"
#include "quantizer/group_search.h"

namespace assay {

// Scales and zero points whose codes move into GGUF's Q4_K without a change. In a super-block of
// 256 columns scales are d·k and minima dmin·m with k, m ≤ 63. Here minima are scale·zero with an
// integer zero point, so that packed integers of other engines hold the same values, and
// dmin = ratio·d: a group with zero point z takes k from the multiples of ratio / gcd(ratio, z) for
// which k·z / ratio ≤ 63. d is 1 or 1.5 times a power of two, so that every
// scale has at most 8 significant bits and is a value of bf16 and f16 alike.

/// The k that a zero point allows: step, 2·step … last.
struct Multiples {
  int step = 1;
  int last = 63;

  int count() const { return last / step; }
};
Multiples multiples_of(int ratio, int zero);

/// One group of columns of 16 rows: which scale and zero point suit it, on any lattice.
class LatticeSearch {
 public:
  using Choices = GroupSearch::Choices;
  using Shared = std::array<SharedScale, kGridRows>;

  /// panels: H of the group as block_panels() gives it; must outlive the object.
  LatticeSearch(int64_t n, const std::vector<double>& panels) : search_(n, panels), n_(n) {}

  /// Takes the weights (n, 16), which must live until choose(), and evaluates up to five zero
  /// points around the middle of each row's range (symmetric: the middle code), each with the
  /// scales that span the range times 1.0, 0.975 … 0.5.
  void load(const float* weights, const QuantizeOptions& options);

  /// The scale of smallest objective among those.
  float best_scale(int64_t row) const;
  /// The smallest objective on this lattice, interpolated between what load() evaluated.
  double estimate(int64_t row, const SharedScale& shared) const;
  /// Per row the smallest objective e·H·e^T of round-to-nearest among the four multiples around
  /// each zero point's best scale. The first minimum wins.
  Choices choose(const Shared& shared);

  static uint64_t bytes(int64_t n);

 private:
  static constexpr int64_t kZeros = 5;
  static constexpr int64_t kParts = GroupSearch::kCandidates;
  struct Table {  // of one row and zero point
    uint8_t zero = 0;
    float whole = 0.0f;  // scale that spans the range
    std::array<double, kParts> objectives{};
    double best_scale() const;
    double at(double scale) const;
  };
  const Table& table(int64_t row, int64_t z) const {
    return tables_[static_cast<size_t>(z * kGridRows + row)];
  }

  GroupSearch search_;
  int64_t n_;
  const float* weights_ = nullptr;
  float largest_code_ = 0.0f;
  int64_t n_zeros_ = 0;
  std::vector<Table> tables_;  // (n_zeros_, 16)
};

/// Per row and super-block the lattice with the smallest sum of estimates, on it the best choice of
/// each group. Throws NumericError where scales do not fit f16. Needs problem.hessian; columns are
/// a multiple of 256, groups divide 256.
Grid q4_k_grid(const LayerProblem& problem, const QuantizeOptions& options);

/// Bytes per thread.
uint64_t q4_k_grid_peak_bytes(int64_t group_size);

}  // namespace assay
