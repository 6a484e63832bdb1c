#include "quantizer/grid.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "quantizer/group_search.h"
#include "quantizer/q4_k_grid.h"
#include "quantizer/solver_kernels.h"

namespace assay {
namespace {

float largest_code(const QuantizeOptions& options) {
  return static_cast<float>((1 << options.bits) - 1);
}

uint8_t middle_code(const QuantizeOptions& options) {
  return static_cast<uint8_t>(1 << (options.bits - 1));
}

// Rounds to nearest even; x is cut first to where that is exact, far beyond every grid.
float round_even(float x) {
  x = x > -1024.0f ? x : -1024.0f;
  x = x < 1024.0f ? x : 1024.0f;
  return (x + 12582912.0f) - 12582912.0f;
}

void check_scale(float scale, const LayerProblem& problem, int64_t row, int64_t group) {
  if (std::isfinite(scale) && scale > 0.0f) return;
  throw NumericError(std::string(problem.module) + ": row " + std::to_string(row) + ", group " +
                     std::to_string(group) + ": scale " + std::to_string(scale) +
                     ", expected a finite positive number; the weights do not fit the scale type");
}

std::span<const float> group_of(const LayerProblem& problem, const Grid& grid, int64_t row,
                                int64_t group) {
  const int64_t begin = group * grid.group_size;
  const int64_t end = std::min(problem.in_features, begin + grid.group_size);
  return problem.weights.subspan(static_cast<size_t>(row * problem.in_features + begin),
                                 static_cast<size_t>(end - begin));
}

Grid empty_grid(const LayerProblem& problem, const QuantizeOptions& options) {
  Grid grid;
  grid.group_size = columns_per_group(problem.in_features, options);
  grid.n_groups = groups_per_row(problem.in_features, options);
  const auto size = static_cast<size_t>(problem.out_features * grid.n_groups);
  grid.scales.resize(size);
  grid.zero_points.resize(size);
  return grid;
}

}  // namespace

ScaleAndZero scale_and_zero(float low, float high, const QuantizeOptions& options) {
  const float width = options.symmetric ? 2.0f * high : high - low;
  const float scale = store_scale(width / largest_code(options), options);
  if (scale == 0.0f) return {1.0f, middle_code(options)};
  if (options.symmetric) return {scale, middle_code(options)};
  const float zero = round_even(-low / scale);
  return {scale, static_cast<uint8_t>(std::clamp(zero, 0.0f, largest_code(options)))};
}

int64_t columns_per_group(int64_t in_features, const QuantizeOptions& options) {
  return options.group_size < 0 ? in_features : options.group_size;
}

int64_t groups_per_row(int64_t in_features, const QuantizeOptions& options) {
  const int64_t columns = columns_per_group(in_features, options);
  return (in_features + columns - 1) / columns;
}

float store_scale(float scale, const QuantizeOptions& options) {
  switch (options.scale_dtype) {
    case DType::kBF16:
      return bf16_to_f32(f32_to_bf16(scale));
    case DType::kF16:
      if (options.scales_fit_bf16) scale = bf16_to_f32(f32_to_bf16(scale));
      return f16_to_f32(f32_to_f16(scale));
    default:
      ASSAY_CHECK(options.scale_dtype == DType::kF32);
      return scale;
  }
}

float nearest_scale(double wanted, uint8_t zero, const SharedScale& shared,
                    const QuantizeOptions& options) {
  if (shared.ratio == 0) return store_scale(static_cast<float>(wanted), options);
  const Multiples multiples = multiples_of(shared.ratio, zero);
  const double unit = static_cast<double>(shared.unit) * multiples.step;
  const double k =
      std::clamp(std::nearbyint(wanted / unit), 1.0, static_cast<double>(multiples.count()));
  return static_cast<float>(k * unit);
}

std::vector<std::byte> narrow_scales(std::span<const float> scales, DType dtype) {
  if (dtype == DType::kF32) {
    const auto bytes = std::as_bytes(scales);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::byte> out(scales.size() * sizeof(uint16_t));
  for (size_t i = 0; i < scales.size(); ++i) {
    const uint16_t bits = dtype == DType::kF16 ? f32_to_f16(scales[i]) : f32_to_bf16(scales[i]);
    ASSAY_CHECK((dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits)) == scales[i]);
    std::memcpy(out.data() + i * sizeof(bits), &bits, sizeof(bits));
  }
  return out;
}

Grid min_max_grid(const LayerProblem& problem, const QuantizeOptions& options) {
  Grid grid = empty_grid(problem, options);
  parallel_for(problem.out_features, 32, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t group = 0; group < grid.n_groups; ++group) {
        const std::span<const float> weights = group_of(problem, grid, row, group);
        const WeightRange range =
            range_of(weights.data(), static_cast<int64_t>(weights.size()), 1, options.symmetric);
        const ScaleAndZero choice = scale_and_zero(range.low, range.high, options);
        check_scale(choice.scale, problem, row, group);
        grid.scales[static_cast<size_t>(row * grid.n_groups + group)] = choice.scale;
        grid.zero_points[static_cast<size_t>(row * grid.n_groups + group)] = choice.zero;
      }
    }
  });
  return grid;
}

Grid hessian_grid(const LayerProblem& problem, const QuantizeOptions& options) {
  ASSAY_CHECK(problem.hessian != nullptr && problem.hessian->n == problem.in_features);
  Grid grid = empty_grid(problem, options);
  for (int64_t group = 0; group < grid.n_groups; ++group) {
    const int64_t first = group * grid.group_size;
    const int64_t n = std::min(grid.group_size, problem.in_features - first);
    const std::vector<double> panels =
        block_panels(problem.hessian->values.data(), problem.in_features, first, n, nullptr);
    const int64_t n_tasks = (problem.out_features + kGridRows - 1) / kGridRows;
    parallel_for(n_tasks, 2, [&](int64_t begin, int64_t end) {
      GroupSearch search(n, panels);
      std::vector<float> weights(static_cast<size_t>(n * kGridRows));
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first_row = task * kGridRows;
        for (int64_t r = 0; r < kGridRows; ++r) {  // rows past the last repeat it
          const int64_t row = std::min(first_row + r, problem.out_features - 1);
          const std::span<const float> from = group_of(problem, grid, row, group);
          for (int64_t i = 0; i < n; ++i) {
            weights[static_cast<size_t>(i * kGridRows + r)] = from[static_cast<size_t>(i)];
          }
        }
        const GroupSearch::Choices choices = search.run(weights.data(), options);
        for (int64_t r = 0; r < std::min(kGridRows, problem.out_features - first_row); ++r) {
          const ScaleAndZero& choice = choices[static_cast<size_t>(r)];
          check_scale(choice.scale, problem, first_row + r, group);
          const auto index = static_cast<size_t>((first_row + r) * grid.n_groups + group);
          grid.scales[index] = choice.scale;
          grid.zero_points[index] = choice.zero;
        }
      }
    });
  }
  return grid;
}

Grid make_grid(const LayerProblem& problem, const QuantizeOptions& options) {
  if (options.grid == GridKind::kQ4K) return q4_k_grid(problem, options);
  return options.scale_search == ScaleSearch::kHessianGrid ? hessian_grid(problem, options)
                                                           : min_max_grid(problem, options);
}

uint8_t nearest_code(float weight, float scale, uint8_t zero_point, int bits) {
  const float code = round_even(weight / scale) + static_cast<float>(zero_point);
  return static_cast<uint8_t>(std::clamp(code, 0.0f, static_cast<float>((1 << bits) - 1)));
}

int64_t nearest_codes(std::span<const float> weights, const Grid& grid, int64_t row, int bits,
                      std::span<uint8_t> codes) {
  const float last = static_cast<float>((1 << bits) - 1);
  int64_t n_cut = 0;
  for (int64_t group = 0; group < grid.n_groups; ++group) {
    const auto index = static_cast<size_t>(row * grid.n_groups + group);
    const float scale = grid.scales[index];
    const auto zero = static_cast<float>(grid.zero_points[index]);
    const auto begin = static_cast<size_t>(group * grid.group_size);
    const size_t end = std::min(weights.size(), begin + static_cast<size_t>(grid.group_size));
    for (size_t k = begin; k < end; ++k) {
      const float code = round_even(weights[k] / scale) + zero;
      n_cut += code < 0.0f || code > last ? 1 : 0;
      codes[k] = static_cast<uint8_t>(std::clamp(code, 0.0f, last));
    }
  }
  return n_cut;
}

std::vector<float> rounded_weights(const Grid& grid, std::span<const uint8_t> codes,
                                   int64_t columns) {
  std::vector<float> out(codes.size());
  const auto rows = static_cast<int64_t>(codes.size()) / columns;
  parallel_for(rows, 32, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t j = 0; j < columns; ++j) {
        const auto g = static_cast<size_t>(row * grid.n_groups + j / grid.group_size);
        const auto i = static_cast<size_t>(row * columns + j);
        out[i] = grid.scales[g] * static_cast<float>(codes[i] - grid.zero_points[g]);
      }
    }
  });
  return out;
}

}  // namespace assay
