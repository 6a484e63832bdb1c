#include "quantizer/factor.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/core/parallel.h"
#include "convert/core/words.h"
#include "quantizer/solver_kernels.h"

namespace assay {
namespace {

constexpr int64_t kBlock = 64;   // pivots per step of the blocked factorisation
constexpr int64_t kTile = 64;    // side of the squares in which matrices are transposed
constexpr int64_t kStripe = 64;  // columns per task below the pivots' square

// Upper triangle U of M = U^T·U, row-major, rows padded to whole vectors. Index 0 is the last
// column of the solve order: U^T is L of arithmetic.md.
struct Triangle {
  int64_t n = 0;
  int64_t stride = 0;
  std::vector<double> values;
};

struct Damping {
  double basis = 0.0;   // mean or maximal live diagonal
  double lambda = 0.0;  // added to live columns; dead ones become basis + lambda
};

std::vector<int64_t> solve_order(const Hessian& hessian, ActOrder act_order) {
  std::vector<int64_t> order(static_cast<size_t>(hessian.n));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (act_order == ActOrder::kStatic) {
    const auto diagonal = [&](int64_t j) {
      return hessian.values[static_cast<size_t>(j * hessian.n + j)];
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return diagonal(a) > diagonal(b); });
  }
  return order;
}

double damp_basis(const Hessian& hessian, DampBasis basis, std::string_view module,
                  int64_t& n_dead) {
  double sum = 0.0;
  double most = 0.0;
  int64_t n_live = 0;
  for (int64_t j = 0; j < hessian.n; ++j) {
    const double value = hessian.values[static_cast<size_t>(j * hessian.n + j)];
    if (!std::isfinite(value) || value < 0.0) {
      throw NumericError(std::string(module) + ": diagonal " + std::to_string(j) +
                         " of the Hessian is " + std::to_string(value) +
                         ", expected a finite number that is not negative");
    }
    if (value == 0.0) continue;
    sum += value;
    most = std::max(most, value);
    ++n_live;
  }
  n_dead = hessian.n - n_live;
  if (n_live == 0) return 0.0;
  return basis == DampBasis::kMeanDiagonal ? sum / static_cast<double>(n_live) : most;
}

void fill(const Hessian& hessian, const std::vector<int64_t>& order, const Damping& damping,
          Triangle& u) {
  const int64_t n = hessian.n;
  parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t a = begin; a < end; ++a) {
      const double* row = hessian.values.data() + order[static_cast<size_t>(n - 1 - a)] * n;
      double* out = u.values.data() + a * u.stride;
      std::fill(out, out + u.stride, 0.0);
      for (int64_t b = a; b < n; ++b) out[b] = row[order[static_cast<size_t>(n - 1 - b)]];
      out[a] = out[a] == 0.0 ? damping.basis + damping.lambda : out[a] + damping.lambda;
    }
  });
}

// Returns −1, or the row whose pivot fails.
int64_t cholesky(Triangle& u) {
  const SolverKernels& kernels = solver_kernels();
  double* values = u.values.data();
  std::vector<double> floors(static_cast<size_t>(u.n));
  for (int64_t a = 0; a < u.n; ++a) {
    floors[static_cast<size_t>(a)] = values[a * u.stride + a] * static_cast<double>(u.n) * 0x1p-52;
  }
  for (int64_t k0 = 0; k0 < u.n; k0 += kBlock) {
    const int64_t k1 = std::min(u.n, k0 + kBlock);
    const int64_t failed = kernels.cholesky_diagonal(values, u.stride, k0, k1, floors.data());
    if (failed >= 0) return failed;
    if (k1 == u.n) break;
    const int64_t n_stripes = (u.stride - k1 + kStripe - 1) / kStripe;
    parallel_for(n_stripes, 1, [&](int64_t begin, int64_t end) {
      kernels.cholesky_rows(values, u.stride, k0, k1, k1 + begin * kStripe,
                            std::min(u.stride, k1 + end * kStripe));
    });
    // Rows in fours; the last four may reach into the padding.
    const int64_t n_rows = u.n - k1;
    parallel_for((n_rows + 3) / 4, 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t a = k1 + 4 * r;
        kernels.cholesky_update(values, u.stride, k0, k1, a, a / 8 * 8, u.stride);
      }
    });
  }
  return -1;
}

// T_ij = fp32(R_ij / R_jj): row a = n − 1 − j of U becomes column j.
void make_ratios(const Triangle& u, HessianFactor& factor) {
  const int64_t n = u.n;
  factor.ratios.assign(static_cast<size_t>(n * n), 0.0f);
  factor.pivots.resize(static_cast<size_t>(n));
  for (int64_t a = 0; a < n; ++a) {
    factor.pivots[static_cast<size_t>(n - 1 - a)] = u.values[static_cast<size_t>(a * u.stride + a)];
  }
  const int64_t n_tiles = (n + kTile - 1) / kTile;
  parallel_for(n_tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b0 = begin * kTile; b0 < std::min(n, end * kTile); b0 += kTile) {
      for (int64_t a0 = 0; a0 <= b0; a0 += kTile) {
        for (int64_t a = a0; a < std::min(n, a0 + kTile); ++a) {
          const double* row = u.values.data() + a * u.stride;
          for (int64_t b = std::max(b0, a + 1); b < std::min(n, b0 + kTile); ++b) {
            factor.ratios[static_cast<size_t>((n - 1 - b) * n + (n - 1 - a))] =
                static_cast<float>(row[b] / row[a]);
          }
        }
      }
    }
  });
}

[[noreturn]] void fail(std::string_view module, const std::vector<double>& tried, int64_t column,
                       int64_t n_tokens) {
  const std::string list = join_words(tried, ", ", [](double damp) { return Json(damp).dump(0); });
  throw NumericError(std::string(module) + ": the Hessian is not positive definite with damping " +
                     list + " (pivot of column " + std::to_string(column) + "; " +
                     std::to_string(n_tokens) +
                     " calibration tokens); try more tokens, a larger --damp or --damp-retry");
}

}  // namespace

uint64_t factor_peak_bytes(int64_t n) {
  const auto size = static_cast<uint64_t>(n);
  return (size + 3) * (size + 10) * sizeof(double) + size * size * sizeof(float);
}

HessianFactor factor_hessian(const Hessian& hessian, const QuantizeOptions& options,
                             std::string_view module) {
  HessianFactor factor;
  factor.n = hessian.n;
  factor.order = solve_order(hessian, options.act_order);
  Damping damping;
  damping.basis = damp_basis(hessian, options.damp_basis, module, factor.n_dead);
  if (factor.n_dead == hessian.n) damping.basis = 1.0;

  // Three rows and columns more, for the last tile of four rows.
  Triangle u{hessian.n, (hessian.n + 3 + 7) / 8 * 8, {}};
  u.values.resize(static_cast<size_t>((u.n + 3) * u.stride));
  std::vector<double> dampings{options.damp_percent};
  dampings.insert(dampings.end(), options.damp_retries.begin(), options.damp_retries.end());
  std::vector<double> tried;
  for (const double damp : dampings) {
    tried.push_back(damp);
    damping.lambda = factor.n_dead == hessian.n ? 0.0 : damp * damping.basis;
    fill(hessian, factor.order, damping, u);
    const int64_t failed = cholesky(u);
    if (failed < 0) break;
    if (tried.size() == dampings.size()) {
      fail(module, tried, factor.order[static_cast<size_t>(hessian.n - 1 - failed)],
           hessian.n_tokens);
    }
  }
  factor.lambda = damping.lambda;
  factor.damp_percent = tried.back();
  factor.damping.resize(static_cast<size_t>(hessian.n));
  for (int64_t j = 0; j < hessian.n; ++j) {
    const bool dead = hessian.values[static_cast<size_t>(j * hessian.n + j)] == 0.0;
    factor.damping[static_cast<size_t>(j)] = dead ? damping.basis + damping.lambda : damping.lambda;
  }
  make_ratios(u, factor);
  if (options.target_alpha != 0.0) {
    factor.upper = std::move(u.values);
    factor.upper_stride = u.stride;
  }
  return factor;
}

}  // namespace assay
