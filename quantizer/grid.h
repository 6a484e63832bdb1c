#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quantizer/quantize.h"

namespace assay {

/// What the groups of one super-block of 256 columns share (GridKind::kQ4K): scales are unit · k
/// and minima scale · zero = unit · ratio · m, with k and m from 0 to 63. ratio 0: nothing.
struct SharedScale {
  float unit = 0.0f;
  int ratio = 0;
};

/// Scales and zero points of one linear: w ≈ scale · (code − zero).
struct Grid {
  int64_t group_size = 0;            // columns per group
  int64_t n_groups = 0;              // per row
  std::vector<float> scales;         // (out_features, n_groups), values of the stored type
  std::vector<uint8_t> zero_points;  // (out_features, n_groups)
  std::vector<SharedScale> shared;   // (out_features, n_groups); empty: each scale is its own
};

/// Columns per group for options.group_size, where −1 is the whole row.
int64_t columns_per_group(int64_t in_features, const QuantizeOptions& options);

/// Groups of a row; the last one may have fewer columns.
int64_t groups_per_row(int64_t in_features, const QuantizeOptions& options);

/// Rounds a scale to the type in which it is stored, nearest even.
float store_scale(float scale, const QuantizeOptions& options);
/// The scale nearest to `wanted` that a group with this zero point can have.
float nearest_scale(double wanted, uint8_t zero, const SharedScale& shared,
                    const QuantizeOptions& options);

/// The bytes of scales in that type; each must be a value of it.
std::vector<std::byte> narrow_scales(std::span<const float> scales, DType dtype);

/// One (scale, zero point) per row and group by the range of the weights (arithmetic.md §9, "Scales
/// and zero points"). Throws NumericError with module, row and group where a scale overflows.
Grid min_max_grid(const LayerProblem& problem, const QuantizeOptions& options);

/// Per row and group the best of 21 candidates: the range times 1.0, 0.975 … 0.5. Objective
/// e·H_gg·e^T of round-to-nearest, fp64, H without damping; the first minimum wins
/// (quantization.md, step 4). Needs problem.hessian.
Grid hessian_grid(const LayerProblem& problem, const QuantizeOptions& options);

/// The one that options.grid and options.scale_search name.
Grid make_grid(const LayerProblem& problem, const QuantizeOptions& options);

/// Code of one weight: clamp(rne(w/s) + z, 0, 2^bits − 1).
uint8_t nearest_code(float weight, float scale, uint8_t zero_point, int bits);
/// All weights of a row to their nearest codes. Returns how many were cut to the ends of the grid.
int64_t nearest_codes(std::span<const float> weights, const Grid& grid, int64_t row, int bits,
                      std::span<uint8_t> codes);

/// Ŵ (rows, columns) of these codes.
std::vector<float> rounded_weights(const Grid& grid, std::span<const uint8_t> codes,
                                   int64_t columns);

}  // namespace assay
