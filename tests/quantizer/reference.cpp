#include "tests/quantizer/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>

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

// Scale and zero point of one group's weights; h(i, j) is its block of H, for the search.
template <typename Block>
void choose_grid(const std::vector<float>& weights, const QuantizeOptions& options, bool search,
                 const Block& h, float& scale, int& zero) {
  float low = 0.0f;
  float high = 0.0f;
  for (const float w : weights) {
    low = std::min(low, w);
    high = std::max(high, w);
  }
  if (options.symmetric) {
    high = std::max(high, -low);
    low = -high;
  }
  scale_of(low, high, options, scale, zero);
  if (!search) return;
  const auto n = static_cast<int64_t>(weights.size());
  double best = 0.0;
  for (int c = 0; c < 21; ++c) {
    const auto part = static_cast<float>((40.0 - c) / 40.0);
    float s = 0.0f;
    int z = 0;
    scale_of(low * part, high * part, options, s, z);
    std::vector<double> e;
    for (const float w : weights) {
      const int code = round_code(w, s, z, options);
      e.push_back(static_cast<double>(w) - static_cast<double>(s * static_cast<float>(code - z)));
    }
    double objective = 0.0;
    for (int64_t j = 0; j < n; ++j) {
      double product = 0.0;
      for (int64_t i = 0; i < n; ++i) product = std::fma(e[at(i)], h(i, j), product);
      objective = std::fma(product, e[at(j)], objective);
    }
    if (c == 0 || objective < best) {
      best = objective;
      scale = s;
      zero = z;
    }
  }
}

// One group that is to lie on a lattice: up to five zero points around the middle of its range,
// and what rounding to nearest with each costs at 21 scales.
class ReferenceLatticeGroup {
 public:
  template <typename Block>
  ReferenceLatticeGroup(const std::vector<float>& weights, const QuantizeOptions& options,
                        const Block& h)
      : cost_([&weights, &options, &h](float s, int z) {
          const auto n = static_cast<int64_t>(weights.size());
          std::vector<double> e;
          for (const float w : weights) {
            const int code = round_code(w, s, z, options);
            e.push_back(static_cast<double>(w) -
                        static_cast<double>(s * static_cast<float>(code - z)));
          }
          double objective = 0.0;
          for (int64_t j = 0; j < n; ++j) {
            double product = 0.0;
            for (int64_t i = 0; i < n; ++i) product = std::fma(e[at(i)], h(i, j), product);
            objective = std::fma(product, e[at(j)], objective);
          }
          return objective;
        }) {
    const int last = (1 << options.bits) - 1;
    float low = 0.0f;
    float high = 0.0f;
    for (const float w : weights) {
      low = std::min(low, w);
      high = std::max(high, w);
    }
    const double width = static_cast<double>(high) - static_cast<double>(low);
    int first = (last + 1) / 2;
    if (!options.symmetric && width > 0.0) {
      first = static_cast<int>(std::nearbyint(-static_cast<double>(low) / width * last));
    }
    if (!options.symmetric) first = std::clamp(first - 2, 0, last - 4);
    for (int zero = first; zero <= (options.symmetric ? first : first + 4); ++zero) {
      Zero& own = zeros_.emplace_back();
      own.zero = zero;
      if (zero > 0) own.whole = -low / static_cast<float>(zero);
      if (zero < last) own.whole = std::max(own.whole, high / static_cast<float>(last - zero));
      for (int c = 0; c < 21; ++c) {
        const float s = own.whole * static_cast<float>((40.0 - c) / 40.0);
        own.costs.push_back(cost_(s > 0.0f ? s : 1.0f, zero));
      }
      const auto best = std::min_element(own.costs.begin(), own.costs.end()) - own.costs.begin();
      own.best = static_cast<double>(own.whole) * (static_cast<double>(40 - best) / 40.0);
    }
  }

  float best_scale() const {
    const Zero* best = nullptr;
    for (const Zero& own : zeros_) {
      if (best == nullptr || smallest(own) < smallest(*best)) best = &own;
    }
    return static_cast<float>(best->best);
  }

  // What the best scale on the lattice costs, read off the line through the 21 points.
  double estimate(const ReferenceLattice& lattice) const {
    double result = -1.0;
    for (const Zero& own : zeros_) {
      const double step = step_of(lattice, own.zero);
      const double below = std::floor(own.best / step);
      for (const double k : {below, below + 1.0}) {
        const double cost = interpolated(own, step * within(k, lattice, own.zero));
        if (result < 0.0 || cost < result) result = cost;
      }
    }
    return result;
  }

  // The first of the cheapest among four scales of the lattice around each zero point's best.
  void choose(const ReferenceLattice& lattice, float& scale, int& zero) const {
    double best = -1.0;
    for (const Zero& own : zeros_) {
      const double step = step_of(lattice, own.zero);
      for (int c = -1; c <= 2; ++c) {
        const double k = within(std::floor(own.best / step) + c, lattice, own.zero);
        const auto s = static_cast<float>(step * k);
        const double cost = cost_(s, own.zero);
        if (best >= 0.0 && !(cost < best)) continue;
        best = cost;
        scale = s;
        zero = own.zero;
      }
    }
  }

  // With this zero point k is a multiple of so much, and at most so many times it.
  static int multiple_of(const ReferenceLattice& lattice, int zero) {
    int k = 1;
    while (k * zero % lattice.ratio != 0) ++k;
    return k;
  }
  static double step_of(const ReferenceLattice& lattice, int zero) {
    return static_cast<double>(lattice.unit) * multiple_of(lattice, zero);
  }
  static double within(double k, const ReferenceLattice& lattice, int zero) {
    const int step = multiple_of(lattice, zero);
    int count = 0;
    while ((count + 1) * step <= 63 && (count + 1) * step * zero <= 63 * lattice.ratio) ++count;
    return std::clamp(k, 1.0, static_cast<double>(count));
  }

 private:
  struct Zero {
    int zero = 0;
    float whole = 0.0f;  // the scale that spans the range
    double best = 0.0;   // of the 21
    std::vector<double> costs;
  };

  static double smallest(const Zero& own) {
    return *std::min_element(own.costs.begin(), own.costs.end());
  }
  static double interpolated(const Zero& own, double scale) {
    if (own.whole == 0.0f) return 0.0;
    const double times = scale / static_cast<double>(own.whole);
    if (times >= 1.0) return own.costs[0] * times * times;
    const double place = (1.0 - times) * 40.0;
    if (place >= 20.0) return own.costs[20] * (1.0 + (place - 20.0));
    const double left = std::floor(place);
    const double a = own.costs[at(static_cast<int64_t>(left))];
    return a + (place - left) * (own.costs[at(static_cast<int64_t>(left) + 1)] - a);
  }

  std::function<double(float, int)> cost_;
  std::vector<Zero> zeros_;
};

// Units are 1, 1.5, 2, 3, 4, 6, … times 2^-23.
float reference_unit(int index) { return std::ldexp(index % 2 == 0 ? 1.0f : 1.5f, index / 2 - 23); }

ReferenceLattice reference_lattice(const std::vector<ReferenceLatticeGroup>& groups,
                                   const QuantizeOptions& options) {
  float largest = 0.0f;
  for (const ReferenceLatticeGroup& group : groups) largest = std::max(largest, group.best_scale());
  int first = 0;
  while (63.0f * reference_unit(first) < largest) ++first;
  ReferenceLattice best;
  double best_sum = 0.0;
  for (int u = first; u < first + 4; ++u) {
    for (int ratio = options.symmetric ? 8 : 4; ratio <= (options.symmetric ? 8 : 15); ++ratio) {
      double sum = 0.0;
      for (const ReferenceLatticeGroup& group : groups) {
        sum += group.estimate({reference_unit(u), ratio});
      }
      if (best.ratio != 0 && !(sum < best_sum)) continue;
      best = {reference_unit(u), ratio};
      best_sum = sum;
    }
  }
  return best;
}

// The scale nearest to `wanted` that a group can have.
float reference_nearest(double wanted, double zero, const ReferenceLattice& lattice,
                        const QuantizeOptions& options) {
  if (lattice.ratio == 0) return store(static_cast<float>(wanted), options.scale_dtype);
  const int z = static_cast<int>(zero);
  const double step = ReferenceLatticeGroup::step_of(lattice, z);
  return static_cast<float>(
      step * ReferenceLatticeGroup::within(std::nearbyint(wanted / step), lattice, z));
}

// Super-block by super-block: the lattice of smallest estimate, on it the choice of each group.
ReferenceGrid reference_q4_k_grid(const LayerProblem& problem, const QuantizeOptions& options) {
  ReferenceGrid grid;
  const int64_t n = problem.in_features;
  for (int64_t row = 0; row < problem.out_features; ++row) {
    for (int64_t super = 0; super < n; super += 256) {
      std::vector<std::vector<float>> weights;
      for (int64_t begin = super; begin < super + 256; begin += options.group_size) {
        const auto first = problem.weights.begin() + row * n + begin;
        weights.emplace_back(first, first + options.group_size);
      }
      std::vector<std::function<double(int64_t, int64_t)>> blocks;
      for (int64_t begin = super; begin < super + 256; begin += options.group_size) {
        blocks.emplace_back([&problem, begin, n](int64_t i, int64_t j) {
          return problem.hessian->values[at((begin + i) * n + begin + j)];
        });
      }
      std::vector<ReferenceLatticeGroup> groups;
      for (size_t g = 0; g < weights.size(); ++g)
        groups.emplace_back(weights[g], options, blocks[g]);
      const ReferenceLattice lattice = reference_lattice(groups, options);
      for (const ReferenceLatticeGroup& group : groups) {
        group.choose(lattice, grid.scales.emplace_back(), grid.zero_points.emplace_back());
        grid.lattices.push_back(lattice);
      }
    }
  }
  return grid;
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
  for (int64_t j = 0; j < n; ++j) {
    out.damping.push_back(h(j, j) == 0.0 ? basis + out.lambda : out.lambda);
  }
  out.r.assign(at(n * n), 0.0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i; j < n; ++j) out.r[at(i * n + j)] = l[at(n - 1 - i)][at(n - 1 - j)];
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
  if (options.grid == GridKind::kQ4K) return reference_q4_k_grid(problem, options);
  ReferenceGrid grid;
  const int64_t width = group_columns(problem, options);
  for (int64_t row = 0; row < problem.out_features; ++row) {
    const auto w = [&](int64_t j) { return problem.weights[at(row * problem.in_features + j)]; };
    for (int64_t g = 0; g < n_groups(problem, options); ++g) {
      const int64_t begin = g * width;
      const int64_t end = std::min(problem.in_features, begin + width);
      std::vector<float> weights;
      for (int64_t j = begin; j < end; ++j) weights.push_back(w(j));
      float scale = 0.0f;
      int zero = 0;
      choose_grid(
          weights, options, options.scale_search == ScaleSearch::kHessianGrid,
          [&](int64_t i, int64_t j) {
            return problem.hessian->values[at((begin + i) * problem.in_features + begin + j)];
          },
          scale, zero);
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

std::vector<float> reference_target(const LayerProblem& problem, const QuantizeOptions& options,
                                    const ReferenceFactor& factor) {
  const int64_t n = problem.in_features;
  const auto r = [&](int64_t i, int64_t j) { return factor.r[at(i * n + j)]; };
  std::vector<float> target(problem.weights.size());
  for (int64_t row = 0; row < problem.out_features; ++row) {
    std::vector<double> x(at(n));  // in solve order
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < n; ++k) {
        x[at(i)] = std::fma(static_cast<double>(problem.weights[at(row * n + k)]),
                            problem.drift->values[at(k * n + factor.order[at(i)])], x[at(i)]);
      }
      x[at(i)] *= options.target_alpha;
      if (problem.residual_drift != nullptr) {
        x[at(i)] =
            std::fma(options.residual_alpha,
                     problem.residual_drift->values[at(row * n + factor.order[at(i)])], x[at(i)]);
      }
    }
    for (int64_t i = n - 1; i >= 0; --i) {  // y·R^T = W D
      for (int64_t j = n - 1; j > i; --j) x[at(i)] = std::fma(-x[at(j)], r(i, j), x[at(i)]);
      x[at(i)] /= r(i, i);
    }
    for (int64_t j = 0; j < n; ++j) {  // x·R = y
      for (int64_t i = 0; i < j; ++i) x[at(j)] = std::fma(-x[at(i)], r(i, j), x[at(j)]);
      x[at(j)] /= r(j, j);
    }
    for (int64_t i = 0; i < n; ++i) {
      const size_t column = at(row * n + factor.order[at(i)]);
      target[column] = static_cast<float>(static_cast<double>(problem.weights[column]) + x[at(i)]);
    }
  }
  return target;
}

namespace {

// Eight chains, folded.
double reference_dot(const std::vector<double>& x, const std::vector<double>& y, int64_t begin,
                     int64_t end) {
  double lanes[8] = {};
  for (int64_t i = begin; i < end; ++i) {
    double& lane = lanes[(i - begin) % 8];
    lane = std::fma(x[at(i)], y[at(i)], lane);
  }
  const double a = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6]);
  const double b = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7]);
  return a + b;
}

// One row while it is refined; everything is made anew from `parts` where it is needed.
struct ReferenceRow {
  int64_t n = 0;
  int64_t width = 0;
  std::vector<double> w, wanted, steps, zeros;
  std::vector<std::vector<double>> parts;
  std::vector<float> scales;
  std::vector<ReferenceLattice> lattices;  // per group

  int64_t groups() const { return static_cast<int64_t>(scales.size()); }
  double a(int64_t g, int64_t h) const {
    return reference_dot(parts[at(g)], steps, h * width, std::min(n, (h + 1) * width));
  }
  double b(int64_t g) const {
    return reference_dot(wanted, steps, g * width, std::min(n, (g + 1) * width));
  }
  double loss(const std::vector<float>& s) const {
    double sum = reference_dot(wanted, w, 0, n);
    for (int64_t g = 0; g < groups(); ++g) {
      double inner = -b(g);
      for (int64_t h = 0; h < g; ++h) inner = std::fma(a(g, h), s[at(h)], inner);
      sum = std::fma(s[at(g)], std::fma(a(g, g), s[at(g)], 2.0 * inner), sum);
    }
    return sum;
  }
};

// On a lattice each scale in turn goes to the value nearest to its best, given the others: three
// times, or until nothing moves.
void reference_refit_on_lattice(ReferenceRow& row, const QuantizeOptions& options) {
  std::vector<float> scales = row.scales;
  bool moved = true;
  for (int sweep = 0; sweep < 3 && moved; ++sweep) {
    moved = false;
    for (int64_t g = 0; g < row.groups(); ++g) {
      if (!(row.a(g, g) > 0.0)) continue;
      double slope = row.b(g);
      for (int64_t h = 0; h < row.groups(); ++h) {
        if (h == g) continue;
        const double product = row.a(std::max(g, h), std::min(g, h));
        slope = std::fma(-product, static_cast<double>(scales[at(h)]), slope);
      }
      const float nearest =
          reference_nearest(slope / row.a(g, g), row.zeros[at(g)], row.lattices[at(g)], options);
      moved = moved || nearest != scales[at(g)];
      scales[at(g)] = nearest;
    }
  }
  if (row.loss(scales) < row.loss(row.scales)) row.scales = scales;
}

void reference_refit(ReferenceRow& row, const QuantizeOptions& options) {
  if (options.grid == GridKind::kQ4K) return reference_refit_on_lattice(row, options);
  const int64_t n = row.groups();
  std::vector<std::vector<double>> l(at(n), std::vector<double>(at(n)));
  double trace = 0.0;
  for (int64_t g = 0; g < n; ++g) trace += row.a(g, g);
  for (int64_t g = 0; g < n; ++g) {
    for (int64_t h = 0; h <= g; ++h) {
      double sum = row.a(g, h);
      if (g == h) sum += 1e-9 * (trace / static_cast<double>(n));
      for (int64_t k = 0; k < h; ++k) sum = std::fma(-l[at(g)][at(k)], l[at(h)][at(k)], sum);
      if (g == h && !(sum > 0.0)) return;
      l[at(g)][at(h)] = g == h ? std::sqrt(sum) : sum / l[at(h)][at(h)];
    }
  }
  std::vector<double> x;
  for (int64_t g = 0; g < n; ++g) {
    double sum = row.b(g);
    for (int64_t h = 0; h < g; ++h) sum = std::fma(-l[at(g)][at(h)], x[at(h)], sum);
    x.push_back(sum / l[at(g)][at(g)]);
  }
  for (int64_t g = n - 1; g >= 0; --g) {
    for (int64_t h = n - 1; h > g; --h) x[at(g)] = std::fma(-l[at(h)][at(g)], x[at(h)], x[at(g)]);
    x[at(g)] /= l[at(g)][at(g)];
  }
  std::vector<float> scales = row.scales;
  for (int64_t g = 0; g < n; ++g) {
    const double old = scales[at(g)];
    if (x[at(g)] > 0.3 * old && x[at(g)] < 3.0 * old) {
      scales[at(g)] = store(static_cast<float>(x[at(g)]), options.scale_dtype);
    }
  }
  if (row.loss(scales) < row.loss(row.scales)) row.scales = scales;
}

void reference_descent(ReferenceRow& row, const LayerProblem& problem,
                       const ReferenceFactor& factor, const QuantizeOptions& options) {
  const auto h = [&](int64_t i, int64_t j) { return problem.hessian->values[at(i * row.n + j)]; };
  std::vector<double> residual = row.wanted;
  for (int64_t g = 0; g < row.groups(); ++g) {
    for (int64_t j = 0; j < row.n; ++j) {
      residual[at(j)] = std::fma(-static_cast<double>(row.scales[at(g)]), row.parts[at(g)][at(j)],
                                 residual[at(j)]);
    }
  }
  for (int64_t j = 0; j < row.n; ++j) {
    const int64_t g = j / row.width;
    const double s = row.scales[at(g)];
    const double old = row.steps[at(j)];
    const double wanted = old + residual[at(j)] / (s * (h(j, j) + factor.damping[at(j)]));
    const double code =
        clamp_code(std::nearbyint(std::clamp(wanted, -1000.0, 1000.0)) + row.zeros[at(g)], options);
    const double move = code - row.zeros[at(g)] - old;
    row.steps[at(j)] += move;
    for (int64_t i = 0; i < row.n; ++i) {
      double& part = row.parts[at(g)][at(i)];
      part = std::fma(move, h(j, i), part);
      if (i == j) part = std::fma(move, factor.damping[at(j)], part);
      if (i > j) residual[at(i)] = std::fma(-s * move, h(j, i), residual[at(i)]);
    }
  }
}

// Each group anew, given the others.
void reference_regrid(ReferenceRow& row, const LayerProblem& problem, const ReferenceFactor& factor,
                      const QuantizeOptions& options) {
  for (int64_t g = 0; g < row.groups(); ++g) {
    const int64_t begin = g * row.width;
    const int64_t n = std::min(row.n, begin + row.width) - begin;
    Hessian block{.n = n, .values = {}, .n_tokens = 1};
    for (int64_t i = begin; i < begin + n; ++i) {
      for (int64_t j = begin; j < begin + n; ++j) {
        const double h = problem.hessian->values[at(i * row.n + j)];
        block.values.push_back(i == j ? h + factor.damping[at(i)] : h);
      }
    }
    const auto h = [&](int64_t i, int64_t j) { return block.values[at(i * n + j)]; };
    QuantizeOptions inner = options;
    inner.damp_percent = 0.0;
    inner.act_order = ActOrder::kStatic;
    const ReferenceFactor f = reference_factor(block, inner);

    std::vector<double> wanted;  // t·B
    for (int64_t i = 0; i < n; ++i) {
      double r = row.wanted[at(begin + i)];
      for (int64_t other = 0; other < row.groups(); ++other) {
        if (other == g) continue;
        r = std::fma(-static_cast<double>(row.scales[at(other)]),
                     row.parts[at(other)][at(begin + i)], r);
      }
      wanted.push_back(r);
    }
    std::vector<double> x(at(n));
    for (int64_t i = 0; i < n; ++i) x[at(i)] = wanted[at(f.order[at(i)])];
    const auto r = [&](int64_t i, int64_t j) { return f.r[at(i * n + j)]; };
    for (int64_t i = n - 1; i >= 0; --i) {
      for (int64_t j = n - 1; j > i; --j) x[at(i)] = std::fma(-x[at(j)], r(i, j), x[at(i)]);
      x[at(i)] /= r(i, i);
    }
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < j; ++i) x[at(j)] = std::fma(-x[at(i)], r(i, j), x[at(j)]);
      x[at(j)] /= r(j, j);
    }
    std::vector<float> target(at(n));  // columns ascending
    for (int64_t i = 0; i < n; ++i) target[at(f.order[at(i)])] = static_cast<float>(x[at(i)]);

    std::vector<double> steps(row.steps.begin() + begin, row.steps.begin() + begin + n);
    double curvature = 0.0;
    double slope = 0.0;
    const auto measure = [&] {
      curvature = slope = 0.0;
      for (int64_t j = 0; j < n; ++j) {
        double product = 0.0;
        for (int64_t i = 0; i < n; ++i) product = std::fma(steps[at(i)], h(i, j), product);
        curvature += product * steps[at(j)];
        slope += wanted[at(j)] * steps[at(j)];
      }
    };
    measure();
    const auto objective = [&](double s) { return s * (s * curvature - 2.0 * slope); };
    double best = objective(row.scales[at(g)]);
    const double first = best;
    float best_scale = row.scales[at(g)];
    double best_zero = row.zeros[at(g)];
    std::vector<double> best_steps = steps;

    LayerProblem small{.module = "group", .out_features = 1, .in_features = n, .weights = target};
    QuantizeOptions whole = options;
    whole.group_size = n;
    for (const bool search : {true, false}) {
      float s = row.scales[at(g)];
      int z = static_cast<int>(row.zeros[at(g)]);
      if (search && options.grid == GridKind::kFree) choose_grid(target, options, true, h, s, z);
      if (search && options.grid == GridKind::kQ4K) {
        ReferenceLatticeGroup(target, options, h).choose(row.lattices[at(g)], s, z);
      }
      for (int time = 0; time < 2; ++time) {
        const std::vector<uint8_t> codes = reference_gptq(small, whole, {{s}, {z}, {}}, f);
        for (int64_t i = 0; i < n; ++i) steps[at(i)] = codes[at(i)] - z;
        measure();
        const double fitted = slope / curvature;
        if (fitted > 0.3 * static_cast<double>(s) && fitted < 3.0 * static_cast<double>(s)) {
          s = reference_nearest(fitted, z, row.lattices[at(g)], options);
        }
        if (!(objective(s) < best)) continue;
        best = objective(s);
        best_scale = s;
        best_zero = z;
        best_steps = steps;
      }
    }
    if (!(best < first)) continue;
    row.scales[at(g)] = best_scale;
    row.zeros[at(g)] = best_zero;
    std::copy(best_steps.begin(), best_steps.end(), row.steps.begin() + begin);
    for (int64_t j = 0; j < row.n; ++j) {
      double part = 0.0;
      for (int64_t i = begin; i < begin + n; ++i) {
        part = std::fma(row.steps[at(i)], problem.hessian->values[at(i * row.n + j)], part);
      }
      if (begin <= j && j < begin + n) {
        part = std::fma(factor.damping[at(j)], row.steps[at(j)], part);
      }
      row.parts[at(g)][at(j)] = part;
    }
  }
}

}  // namespace

void reference_refine(const LayerProblem& problem, const QuantizeOptions& options,
                      const ReferenceFactor& factor, const std::vector<float>& target,
                      ReferenceGrid& grid, std::vector<uint8_t>& codes) {
  const int64_t n = problem.in_features;
  const int64_t n_g = n_groups(problem, options);
  for (int64_t r = 0; r < problem.out_features; ++r) {
    ReferenceRow row;
    row.n = n;
    row.width = group_columns(problem, options);
    for (int64_t g = 0; g < n_g; ++g) {
      row.scales.push_back(grid.scales[at(r * n_g + g)]);
      row.zeros.push_back(grid.zero_points[at(r * n_g + g)]);
      row.lattices.push_back(grid.lattices.empty() ? ReferenceLattice{}
                                                   : grid.lattices[at(r * n_g + g)]);
    }
    for (int64_t j = 0; j < n; ++j) {
      row.w.push_back(target[at(r * n + j)]);
      row.steps.push_back(codes[at(r * n + j)] - row.zeros[at(j / row.width)]);
    }
    const auto product = [&](const std::vector<double>& x, int64_t begin, int64_t end) {
      std::vector<double> out(at(n));
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = begin; i < end; ++i) {
          out[at(j)] = std::fma(x[at(i)], problem.hessian->values[at(i * n + j)], out[at(j)]);
        }
        if (begin <= j && j < end) {
          out[at(j)] = std::fma(factor.damping[at(j)], x[at(j)], out[at(j)]);
        }
      }
      return out;
    };
    row.wanted = product(row.w, 0, n);
    for (int64_t g = 0; g < n_g; ++g) {
      row.parts.push_back(product(row.steps, g * row.width, std::min(n, (g + 1) * row.width)));
    }
    for (int round = 0; round < options.refit_rounds; ++round) {
      reference_refit(row, options);
      for (int pass = 0; pass < options.descent_passes; ++pass) {
        reference_descent(row, problem, factor, options);
      }
      if (round >= options.regrid_rounds) continue;
      reference_regrid(row, problem, factor, options);
      for (int pass = 0; pass < options.descent_passes; ++pass) {
        reference_descent(row, problem, factor, options);
      }
    }
    for (int64_t g = 0; g < n_g; ++g) {
      grid.scales[at(r * n_g + g)] = row.scales[at(g)];
      grid.zero_points[at(r * n_g + g)] = static_cast<int>(row.zeros[at(g)]);
    }
    for (int64_t j = 0; j < n; ++j) {
      codes[at(r * n + j)] = static_cast<uint8_t>(row.steps[at(j)] + row.zeros[at(j / row.width)]);
    }
  }
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
