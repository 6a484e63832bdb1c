#include "quantizer/group_search.h"

#include <algorithm>
#include <cmath>

#include "quantizer/grid.h"

namespace assay {
namespace {

bool is_useful(float scale) { return std::isfinite(scale) && scale > 0.0f; }

}  // namespace

WeightRange range_of(const float* weights, int64_t n, int64_t stride, bool symmetric) {
  WeightRange range;
  for (int64_t i = 0; i < n; ++i) {
    const float w = weights[i * stride];
    range.low = w < range.low ? w : range.low;
    range.high = w > range.high ? w : range.high;
  }
  if (symmetric) {
    range.high = std::max(-range.low, range.high);
    range.low = -range.high;
  }
  return range;
}

std::vector<double> block_panels(const double* matrix, int64_t size, int64_t first, int64_t n,
                                 const double* added) {
  const int64_t n_panels = (n + kQuadraticPanel - 1) / kQuadraticPanel;
  std::vector<double> panels(static_cast<size_t>(n_panels * n * kQuadraticPanel));
  for (int64_t i = 0; i < n; ++i) {
    const double* row = matrix + (first + i) * size + first;
    for (int64_t j = 0; j < n; ++j) {
      const auto k = static_cast<size_t>((j / kQuadraticPanel * n + i) * kQuadraticPanel +
                                         j % kQuadraticPanel);
      panels[k] = i == j && added != nullptr ? row[j] + added[first + i] : row[j];
    }
  }
  return panels;
}

GroupSearch::GroupSearch(int64_t n, const std::vector<double>& panels)
    : n_(n), panels_(panels), errors_(static_cast<size_t>(kPacks * n * kQuadraticLanes)) {}

uint64_t GroupSearch::bytes(int64_t n) {
  return static_cast<uint64_t>(kPacks * n * kQuadraticLanes) * sizeof(double);
}

GroupSearch::Choices GroupSearch::run(const float* weights, const QuantizeOptions& options) {
  const auto largest_code = static_cast<float>((1 << options.bits) - 1);
  std::array<Choices, kCandidates> candidates;
  for (int64_t r = 0; r < kGridRows; ++r) {
    const WeightRange range = range_of(weights + r, n_, kGridRows, options.symmetric);
    for (int64_t c = 0; c < kCandidates; ++c) {
      const float part = static_cast<float>(static_cast<double>(40 - c) / 40.0);
      candidates[static_cast<size_t>(c)][static_cast<size_t>(r)] =
          scale_and_zero(range.low * part, range.high * part, options);
    }
  }
  evaluate(weights, candidates, largest_code);
  Choices choices;
  for (int64_t r = 0; r < kGridRows; ++r) {
    int64_t winner = 0;
    for (int64_t c = 0; c < kCandidates; ++c) {
      if (!is_useful(candidates[static_cast<size_t>(c)][static_cast<size_t>(r)].scale)) {
        winner = c;  // the caller tells
        break;
      }
      if (objective(r, c) < objective(r, winner)) winner = c;
    }
    choices[static_cast<size_t>(r)] =
        candidates[static_cast<size_t>(winner)][static_cast<size_t>(r)];
  }
  return choices;
}

void GroupSearch::evaluate(const float* weights, const std::array<Choices, kCandidates>& candidates,
                           float largest_code) {
  const SolverKernels& kernels = solver_kernels();
  for (int64_t c = 0; c < kCandidates; ++c) {
    std::array<float, kGridRows> scales;
    std::array<float, kGridRows> zeros;
    for (size_t r = 0; r < kGridRows; ++r) {
      const ScaleAndZero& candidate = candidates[static_cast<size_t>(c)][r];
      scales[r] = is_useful(candidate.scale) ? candidate.scale : 1.0f;
      zeros[r] = candidate.zero;
    }
    kernels.grid_errors(weights, n_, scales.data(), zeros.data(), largest_code,
                        errors_.data() + offset(2 * c), errors_.data() + offset(2 * c + 1));
  }
  objectives_.fill(0.0);
  for (int64_t pack = 0; pack < kPacks; ++pack) {
    for (int64_t j = 0; j < n_; j += kQuadraticPanel) {
      kernels.quadratic_panel(errors_.data() + pack * n_ * kQuadraticLanes, n_,
                              panels_.data() + j * n_, j, std::min(kQuadraticPanel, n_ - j),
                              objectives_.data() + pack * kQuadraticLanes);
    }
  }
}

}  // namespace assay
