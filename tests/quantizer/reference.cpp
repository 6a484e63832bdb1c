#include "tests/quantizer/reference.h"

#include <algorithm>
#include <cmath>

#include "convert/core/dtype.h"

namespace assay::test {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

int64_t group_columns(const LayerProblem& problem, const QuantizeOptions& options) {
  return options.group_size < 0 ? problem.in_features : options.group_size;
}

int64_t n_groups(const LayerProblem& problem, const QuantizeOptions& options) {
  const int64_t group = group_columns(problem, options);
  return (problem.in_features + group - 1) / group;
}

float store(float scale, DType dtype) {
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(scale));
  if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(scale));
  return scale;
}

int clamp_code(double code, const QuantizeOptions& options) {
  return static_cast<int>(std::clamp(code, 0.0, static_cast<double>((1 << options.bits) - 1)));
}

int round_code(float w, float scale, int zero, const QuantizeOptions& options) {
  return clamp_code(std::nearbyint(static_cast<double>(w / scale)) + zero, options);
}

void scale_of(float low, float high, const QuantizeOptions& options, float& scale, int& zero) {
  const float steps = static_cast<float>((1 << options.bits) - 1);
  const int middle = 1 << (options.bits - 1);
  const float width = options.symmetric ? 2.0f * high : high - low;
  scale = store(width / steps, options.scale_dtype);
  zero = middle;
  if (scale == 0.0f) {
    scale = 1.0f;
  } else if (!options.symmetric) {
    zero = clamp_code(std::nearbyint(static_cast<double>(-low / scale)), options);
  }
}

}  // namespace

ReferenceFactor reference_factor(const Hessian& hessian, const QuantizeOptions& options) {
  const int64_t n = hessian.n;
  const auto h = [&](int64_t i, int64_t j) { return hessian.values[at(i * n + j)]; };
  ReferenceFactor out;
  double sum = 0.0;
  double most = 0.0;
  int64_t live = 0;
  for (int64_t j = 0; j < n; ++j) {
    if (h(j, j) == 0.0) continue;
    sum += h(j, j);
    most = std::max(most, h(j, j));
    ++live;
  }
  const double basis =
      options.damp_basis == DampBasis::kMeanDiagonal ? sum / static_cast<double>(live) : most;
  out.lambda = options.damp_percent * basis;

  for (int64_t j = 0; j < n; ++j) out.order.push_back(j);
  if (options.act_order == ActOrder::kStatic) {
    std::stable_sort(out.order.begin(), out.order.end(),
                     [&](int64_t a, int64_t b) { return h(a, a) > h(b, b); });
  }
  // c in reversed order: index 0 is the last solve position.
  std::vector<std::vector<double>> l(at(n), std::vector<double>(at(n)));
  const auto column = [&](int64_t a) { return out.order[at(n - 1 - a)]; };
  for (int64_t a = 0; a < n; ++a) {
    for (int64_t b = 0; b <= a; ++b) {
      double c = h(column(a), column(b));
      if (a == b) c = c == 0.0 ? basis + out.lambda : c + out.lambda;
      const double diagonal = c;
      for (int64_t k = 0; k < b; ++k) c = std::fma(-l[at(a)][at(k)], l[at(b)][at(k)], c);
      if (a != b) {
        l[at(a)][at(b)] = c / l[at(b)][at(b)];
        continue;
      }
      if (!(c > diagonal * static_cast<double>(n) * 0x1p-52)) out.failed = true;
      l[at(a)][at(a)] = std::sqrt(c);
    }
  }
  out.ratios.assign(at(n * n), 0.0f);
  out.pivots.resize(at(n));
  for (int64_t i = 0; i < n; ++i) {
    out.pivots[at(i)] = l[at(n - 1 - i)][at(n - 1 - i)];
    for (int64_t j = i + 1; j < n; ++j) {
      out.ratios[at(i * n + j)] =
          static_cast<float>(l[at(n - 1 - i)][at(n - 1 - j)] / l[at(n - 1 - j)][at(n - 1 - j)]);
    }
  }
  return out;
}

ReferenceGrid reference_grid(const LayerProblem& problem, const QuantizeOptions& options) {
  ReferenceGrid grid;
  const int64_t width = group_columns(problem, options);
  for (int64_t row = 0; row < problem.out_features; ++row) {
    const auto w = [&](int64_t j) { return problem.weights[at(row * problem.in_features + j)]; };
    for (int64_t g = 0; g < n_groups(problem, options); ++g) {
      const int64_t begin = g * width;
      const int64_t end = std::min(problem.in_features, begin + width);
      float low = 0.0f;
      float high = 0.0f;
      for (int64_t j = begin; j < end; ++j) {
        low = std::min(low, w(j));
        high = std::max(high, w(j));
      }
      if (options.symmetric) {
        high = std::max(high, -low);
        low = -high;
      }
      float scale = 0.0f;
      int zero = 0;
      scale_of(low, high, options, scale, zero);
      if (options.scale_search == ScaleSearch::kHessianGrid) {
        double best = 0.0;
        for (int c = 0; c < 21; ++c) {
          const auto part = static_cast<float>((40.0 - c) / 40.0);
          float s = 0.0f;
          int z = 0;
          scale_of(low * part, high * part, options, s, z);
          std::vector<double> e;
          for (int64_t j = begin; j < end; ++j) {
            const int code = round_code(w(j), s, z, options);
            e.push_back(static_cast<double>(w(j)) -
                        static_cast<double>(s * static_cast<float>(code - z)));
          }
          double objective = 0.0;
          for (int64_t j = begin; j < end; ++j) {
            double product = 0.0;
            for (int64_t i = begin; i < end; ++i) {
              product = std::fma(e[at(i - begin)],
                                 problem.hessian->values[at(i * problem.in_features + j)], product);
            }
            objective = std::fma(product, e[at(j - begin)], objective);
          }
          if (c == 0 || objective < best) {
            best = objective;
            scale = s;
            zero = z;
          }
        }
      }
      grid.scales.push_back(scale);
      grid.zero_points.push_back(zero);
    }
  }
  return grid;
}

std::vector<uint8_t> reference_rtn(const LayerProblem& problem, const QuantizeOptions& options,
                                   const ReferenceGrid& grid) {
  std::vector<uint8_t> codes;
  const int64_t width = group_columns(problem, options);
  for (int64_t row = 0; row < problem.out_features; ++row) {
    for (int64_t j = 0; j < problem.in_features; ++j) {
      const size_t g = at(row * n_groups(problem, options) + j / width);
      codes.push_back(
          static_cast<uint8_t>(round_code(problem.weights[at(row * problem.in_features + j)],
                                          grid.scales[g], grid.zero_points[g], options)));
    }
  }
  return codes;
}

std::vector<uint8_t> reference_gptq(const LayerProblem& problem, const QuantizeOptions& options,
                                    const ReferenceGrid& grid, const ReferenceFactor& factor) {
  const int64_t n = problem.in_features;
  std::vector<uint8_t> codes(problem.weights.size());
  const int64_t width = group_columns(problem, options);
  for (int64_t row = 0; row < problem.out_features; ++row) {
    std::vector<float> original;
    for (int64_t i = 0; i < n; ++i) {
      original.push_back(problem.weights[at(row * n + factor.order[at(i)])]);
    }
    std::vector<float> w = original;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t column = factor.order[at(i)];
      const size_t g = at(row * n_groups(problem, options) + column / width);
      const int code = round_code(w[at(i)], grid.scales[g], grid.zero_points[g], options);
      codes[at(row * n + column)] = static_cast<uint8_t>(code);
      const float rounded = grid.scales[g] * static_cast<float>(code - grid.zero_points[g]);
      const float error = original[at(i)] - rounded;
      for (int64_t j = i + 1; j < n; ++j) {
        w[at(j)] = std::fma(error, factor.ratios[at(i * n + j)], w[at(j)]);
      }
    }
  }
  return codes;
}

double reference_loss(const LayerProblem& problem, const QuantizeOptions& options,
                      const ReferenceGrid& grid, const std::vector<uint8_t>& codes) {
  const int64_t n = problem.in_features;
  const int64_t width = group_columns(problem, options);
  double total = 0.0;
  for (int64_t row = 0; row < problem.out_features; ++row) {
    std::vector<double> e;
    for (int64_t j = 0; j < n; ++j) {
      const size_t g = at(row * n_groups(problem, options) + j / width);
      const float rounded =
          grid.scales[g] * static_cast<float>(codes[at(row * n + j)] - grid.zero_points[g]);
      e.push_back(static_cast<double>(problem.weights[at(row * n + j)]) -
                  static_cast<double>(rounded));
    }
    double loss = 0.0;
    for (int64_t j = 0; j < n; ++j) {
      double product = e[at(j)];
      if (problem.hessian != nullptr) {
        product = 0.0;
        for (int64_t i = 0; i < n; ++i) {
          product = std::fma(e[at(i)], problem.hessian->values[at(i * n + j)], product);
        }
      }
      loss = std::fma(product, e[at(j)], loss);
    }
    total += loss;
  }
  return total;
}

}  // namespace assay::test
