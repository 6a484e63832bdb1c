#include <algorithm>
#include <atomic>
#include <vector>

#include "convert/core/parallel.h"
#include "quantizer/grid.h"
#include "quantizer/quantize.h"
#include "quantizer/solver_kernels.h"

namespace assay {
namespace {

// The column loop of 32 rows: w of a column is rounded, and its error d = w⁰ − ŵ moves the columns
// after it by d·T (arithmetic.md §9). Errors reach columns beyond the block when it is done, in the
// same order per element.
class RowPanel {
 public:
  RowPanel(const LayerProblem& problem, const QuantizeOptions& options, const Grid& grid)
      : problem_(problem), options_(options), grid_(grid) {
    const auto size = static_cast<size_t>(problem.in_features * kSolverRows);
    weights_.resize(size);
    originals_.resize(size);
    errors_.resize(size);
    codes_.resize(size);
    const auto n_scales = static_cast<size_t>(grid.n_groups * kSolverRows);
    scales_.resize(n_scales);
    zeros_.resize(n_scales);
    clipped_.resize(kSolverRows);
    groups_.reserve(problem.factor->order.size());
    for (const int64_t column : problem.factor->order) {
      groups_.push_back(column / grid.group_size);
    }
  }

  /// Decides rows [first_row, first_row + 32) and writes their codes in original column order.
  /// Returns how many were cut to the ends of the grid.
  int64_t solve(int64_t first_row, std::span<uint8_t> codes) {
    gather(first_row);
    const ColumnLoop loop{.n = problem_.in_features,
                          .weights = weights_.data(),
                          .originals = originals_.data(),
                          .scales = scales_.data(),
                          .zeros = zeros_.data(),
                          .groups = groups_.data(),
                          .ratios = problem_.factor->ratios.data(),
                          .errors = errors_.data(),
                          .codes = codes_.data(),
                          .clipped = clipped_.data(),
                          .largest_code = static_cast<float>((1 << options_.bits) - 1)};
    const int64_t block = std::max<int64_t>(1, options_.solve_block_size);
    for (int64_t i0 = 0; i0 < loop.n; i0 += block) {
      const int64_t i1 = std::min(loop.n, i0 + block);
      solver_kernels().solve_block(loop, i0, i1);
      solver_kernels().apply_block(loop, i0, i1, i1);
    }
    return scatter(first_row, codes);
  }

 private:
  int64_t rows_here(int64_t first_row) const {
    return std::min(kSolverRows, problem_.out_features - first_row);
  }

  void gather(int64_t first_row) {
    const int64_t n = problem_.in_features;
    const int64_t n_rows = rows_here(first_row);
    std::fill(clipped_.begin(), clipped_.end(), 0.0f);
    for (int64_t r = 0; r < kSolverRows; ++r) {
      const int64_t row = first_row + std::min(r, n_rows - 1);  // rows past the last repeat it
      const float* weights = problem_.weights.data() + row * n;
      for (int64_t i = 0; i < n; ++i) {
        originals_[static_cast<size_t>(i * kSolverRows + r)] =
            weights[problem_.factor->order[static_cast<size_t>(i)]];
      }
      for (int64_t g = 0; g < grid_.n_groups; ++g) {
        const auto from = static_cast<size_t>(row * grid_.n_groups + g);
        const auto to = static_cast<size_t>(g * kSolverRows + r);
        scales_[to] = grid_.scales[from];
        zeros_[to] = static_cast<float>(grid_.zero_points[from]);
      }
    }
    weights_ = originals_;
  }

  int64_t scatter(int64_t first_row, std::span<uint8_t> codes) const {
    const int64_t n = problem_.in_features;
    float n_cut = 0.0f;
    for (int64_t r = 0; r < rows_here(first_row); ++r) {
      uint8_t* row = codes.data() + (first_row + r) * n;
      for (int64_t i = 0; i < n; ++i) {
        row[problem_.factor->order[static_cast<size_t>(i)]] =
            codes_[static_cast<size_t>(i * kSolverRows + r)];
      }
      n_cut += clipped_[static_cast<size_t>(r)];
    }
    return static_cast<int64_t>(n_cut);
  }

  const LayerProblem& problem_;
  const QuantizeOptions& options_;
  const Grid& grid_;
  std::vector<float> weights_, originals_, errors_;  // (n, 32), solve order
  std::vector<uint8_t> codes_;                       // (n, 32), solve order
  std::vector<float> scales_, zeros_;                // (n_groups, 32)
  std::vector<float> clipped_;                       // (32)
  std::vector<int64_t> groups_;                      // (n) of each solve position
};

}  // namespace

int64_t gptq_codes(const LayerProblem& problem, const QuantizeOptions& options, const Grid& grid,
                   std::span<uint8_t> codes) {
  std::atomic<int64_t> n_cut = 0;
  const int64_t n_panels = (problem.out_features + kSolverRows - 1) / kSolverRows;
  parallel_for(n_panels, 2, [&](int64_t begin, int64_t end) {
    RowPanel panel(problem, options, grid);
    for (int64_t p = begin; p < end; ++p) n_cut += panel.solve(p * kSolverRows, codes);
  });
  return n_cut.load();
}

uint64_t gptq_bytes_per_thread(int64_t in_features) {
  return static_cast<uint64_t>(in_features * kSolverRows) * (3 * sizeof(float) + 1);
}

}  // namespace assay
