#include "quantizer/q4_k_grid.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "convert/core/error.h"
#include "convert/core/parallel.h"

namespace assay {
namespace {

constexpr int64_t kSuperColumns = 256;
constexpr int kLargest = 63;
constexpr int kFirstRatio = 4;
constexpr int kLastRatio = 15;
constexpr int kUnits = 4;
constexpr float kSmallestUnit = 0x1p-23f;  // 1.5 times it is a value of f16, too
constexpr float kLargestF16 = 65504.0f;

// 1, 1.5, 2, 3, … times a power of two.
float next_unit(float unit) {
  int exponent = 0;
  return std::frexp(unit, &exponent) == 0.5f ? unit * 1.5f : std::ldexp(1.0f, exponent);
}

// The smallest unit of which 63 reach `scale`.
float unit_for(float scale) {
  float unit = kSmallestUnit;
  if (scale > kLargest * unit) {
    int exponent = 0;
    std::frexp(scale / static_cast<float>(kLargest), &exponent);
    unit = std::max(unit, std::ldexp(1.0f, exponent - 1));  // at most scale / 63
  }
  while (scale > kLargest * unit) unit = next_unit(unit);
  return unit;
}

// A super-block of 16 rows.
class SuperBlockTask {
 public:
  SuperBlockTask(const std::vector<std::vector<double>>& panels, int64_t group_size)
      : group_size_(group_size) {
    for (const std::vector<double>& group : panels) searches_.emplace_back(group_size, group);
    weights_.resize(static_cast<size_t>(kSuperColumns * kGridRows));
  }

  void run(const LayerProblem& problem, const QuantizeOptions& options, int64_t first_row,
           int64_t first_column, Grid& grid) {
    load(problem, options, first_row, first_column);
    LatticeSearch::Shared shared;
    for (int64_t r = 0; r < kGridRows; ++r) {
      shared[static_cast<size_t>(r)] = choose_lattice(r, options);
    }
    const int64_t n_rows = std::min(kGridRows, problem.out_features - first_row);
    for (size_t g = 0; g < searches_.size(); ++g) {
      const LatticeSearch::Choices choices = searches_[g].choose(shared);
      const int64_t group = first_column / group_size_ + static_cast<int64_t>(g);
      for (int64_t r = 0; r < n_rows; ++r) {
        const SharedScale& lattice = shared[static_cast<size_t>(r)];
        if (lattice.ratio == 0) refuse(problem, first_row + r, group);
        const auto index = static_cast<size_t>((first_row + r) * grid.n_groups + group);
        grid.scales[index] = choices[static_cast<size_t>(r)].scale;
        grid.zero_points[index] = choices[static_cast<size_t>(r)].zero;
        grid.shared[index] = lattice;
      }
    }
  }

 private:
  void load(const LayerProblem& problem, const QuantizeOptions& options, int64_t first_row,
            int64_t first_column) {
    for (int64_t r = 0; r < kGridRows; ++r) {  // rows past the last repeat it
      const int64_t row = std::min(first_row + r, problem.out_features - 1);
      const float* from = problem.weights.data() + row * problem.in_features + first_column;
      for (int64_t i = 0; i < kSuperColumns; ++i) {
        weights_[static_cast<size_t>(i * kGridRows + r)] = from[i];
      }
    }
    for (size_t g = 0; g < searches_.size(); ++g) {
      searches_[g].load(weights_.data() + static_cast<int64_t>(g) * group_size_ * kGridRows,
                        options);
    }
  }

  // ratio 0 if no unit fits f16.
  SharedScale choose_lattice(int64_t row, const QuantizeOptions& options) const {
    float largest = 0.0f;
    for (const LatticeSearch& search : searches_) {
      largest = std::max(largest, search.best_scale(row));
    }
    SharedScale best;
    double best_sum = 0.0;
    if (!std::isfinite(largest)) return best;
    const int middle = 1 << (options.bits - 1);
    const int first_ratio = options.symmetric ? middle : kFirstRatio;
    const int last_ratio = options.symmetric ? middle : kLastRatio;
    float unit = unit_for(largest);
    for (int u = 0; u < kUnits; ++u, unit = next_unit(unit)) {
      for (int ratio = first_ratio; ratio <= last_ratio; ++ratio) {
        if (!(unit * static_cast<float>(ratio) <= kLargestF16)) continue;
        double sum = 0.0;
        for (const LatticeSearch& search : searches_) sum += search.estimate(row, {unit, ratio});
        if (best.ratio != 0 && !(sum < best_sum)) continue;
        best = {unit, ratio};
        best_sum = sum;
      }
    }
    return best;
  }

  [[noreturn]] static void refuse(const LayerProblem& problem, int64_t row, int64_t group) {
    throw NumericError(std::string(problem.module) + ": row " + std::to_string(row) + ", group " +
                       std::to_string(group) +
                       ": the scales are beyond f16, expected at most 65504; --grid q4_k cannot "
                       "hold these weights, --grid free can");
  }

  int64_t group_size_;
  std::vector<LatticeSearch> searches_;  // of each group
  std::vector<float> weights_;           // (256, 16)
};

}  // namespace

Multiples multiples_of(int ratio, int zero) {
  if (zero == 0) return {};
  const int step = ratio / std::gcd(ratio, zero);
  return {step, std::min(kLargest, kLargest * ratio / zero) / step * step};
}

double LatticeSearch::Table::best_scale() const {
  const auto best = std::min_element(objectives.begin(), objectives.end()) - objectives.begin();
  return static_cast<double>(whole) * (static_cast<double>(40 - best) / 40.0);
}

double LatticeSearch::Table::at(double scale) const {
  if (whole == 0.0f) return 0.0;
  const double times = scale / static_cast<double>(whole);
  if (times >= 1.0) return objectives.front() * times * times;  // nothing is cut: steps grow
  const double position = (1.0 - times) * 40.0;
  constexpr auto kLast = static_cast<double>(kParts - 1);
  if (position >= kLast) return objectives.back() * (1.0 + (position - kLast));
  const auto below = static_cast<size_t>(position);
  const double part = position - static_cast<double>(below);
  return objectives[below] + part * (objectives[below + 1] - objectives[below]);
}

void LatticeSearch::load(const float* weights, const QuantizeOptions& options) {
  weights_ = weights;
  const int last = (1 << options.bits) - 1;
  largest_code_ = static_cast<float>(last);
  n_zeros_ = options.symmetric ? 1 : std::min<int64_t>(kZeros, last + 1);
  tables_.assign(static_cast<size_t>(n_zeros_ * kGridRows), {});
  for (int64_t r = 0; r < kGridRows; ++r) {
    float low = 0.0f;
    float high = 0.0f;
    for (int64_t i = 0; i < n_; ++i) {
      low = std::min(low, weights[i * kGridRows + r]);
      high = std::max(high, weights[i * kGridRows + r]);
    }
    const double width = static_cast<double>(high) - static_cast<double>(low);
    int first = (last + 1) / 2;
    if (!options.symmetric) {
      const double middle =
          width > 0.0 ? std::nearbyint(-static_cast<double>(low) / width * last) : first;
      first = std::clamp(static_cast<int>(middle) - static_cast<int>(n_zeros_ / 2), 0,
                         last + 1 - static_cast<int>(n_zeros_));
    }
    for (int z = 0; z < n_zeros_; ++z) {
      Table& table = tables_[static_cast<size_t>(z * kGridRows + r)];
      const int zero = first + z;
      table.zero = static_cast<uint8_t>(zero);
      if (zero > 0) table.whole = -low / static_cast<float>(zero);
      if (zero < last) table.whole = std::max(table.whole, high / static_cast<float>(last - zero));
    }
  }
  std::array<Choices, kParts> candidates;
  for (int64_t z = 0; z < n_zeros_; ++z) {
    for (int64_t c = 0; c < kParts; ++c) {
      const auto part = static_cast<float>(static_cast<double>(40 - c) / 40.0);
      for (int64_t r = 0; r < kGridRows; ++r) {
        candidates[static_cast<size_t>(c)][static_cast<size_t>(r)] = {table(r, z).whole * part,
                                                                      table(r, z).zero};
      }
    }
    search_.evaluate(weights_, candidates, largest_code_);
    for (int64_t r = 0; r < kGridRows; ++r) {
      Table& own = tables_[static_cast<size_t>(z * kGridRows + r)];
      for (int64_t c = 0; c < kParts; ++c) {
        own.objectives[static_cast<size_t>(c)] = search_.objective(r, c);
      }
    }
  }
}

float LatticeSearch::best_scale(int64_t row) const {
  double best = 0.0;
  double smallest = 0.0;
  for (int64_t z = 0; z < n_zeros_; ++z) {
    const Table& own = table(row, z);
    const double objective = *std::min_element(own.objectives.begin(), own.objectives.end());
    if (z > 0 && !(objective < smallest)) continue;
    smallest = objective;
    best = own.best_scale();
  }
  return static_cast<float>(best);
}

double LatticeSearch::estimate(int64_t row, const SharedScale& shared) const {
  double smallest = 0.0;
  for (int64_t z = 0; z < n_zeros_; ++z) {
    const Table& own = table(row, z);
    const Multiples multiples = multiples_of(shared.ratio, own.zero);
    const double unit = static_cast<double>(shared.unit) * multiples.step;
    const double last = multiples.count();
    const double below = std::floor(own.best_scale() / unit);
    for (int i = 0; i < 2; ++i) {
      const double objective = own.at(unit * std::clamp(below + i, 1.0, last));
      if ((z > 0 || i > 0) && !(objective < smallest)) continue;
      smallest = objective;
    }
  }
  return smallest;
}

LatticeSearch::Choices LatticeSearch::choose(const Shared& shared) {
  constexpr int64_t kEach = 4;  // multiples per zero point
  static_assert(kZeros * kEach <= kParts);
  std::array<Choices, kParts> candidates;
  const int64_t n = n_zeros_ * kEach;
  for (int64_t r = 0; r < kGridRows; ++r) {
    const SharedScale& lattice = shared[static_cast<size_t>(r)];
    for (int64_t c = 0; c < kParts; ++c) {
      const Table& own = table(r, std::min(c, n - 1) / kEach);
      if (lattice.ratio == 0) {  // the caller tells
        candidates[static_cast<size_t>(c)][static_cast<size_t>(r)] = {1.0f, own.zero};
        continue;
      }
      const Multiples multiples = multiples_of(lattice.ratio, own.zero);
      const double unit = static_cast<double>(lattice.unit) * multiples.step;
      const double k = std::floor(own.best_scale() / unit) - 1.0 + static_cast<double>(c % kEach);
      const double last = multiples.count();
      candidates[static_cast<size_t>(c)][static_cast<size_t>(r)] = {
          static_cast<float>(unit * std::clamp(k, 1.0, last)), own.zero};
    }
  }
  search_.evaluate(weights_, candidates, largest_code_);
  Choices choices;
  for (int64_t r = 0; r < kGridRows; ++r) {
    int64_t winner = 0;
    for (int64_t c = 1; c < n; ++c) {
      if (search_.objective(r, c) < search_.objective(r, winner)) winner = c;
    }
    choices[static_cast<size_t>(r)] =
        candidates[static_cast<size_t>(winner)][static_cast<size_t>(r)];
  }
  return choices;
}

uint64_t LatticeSearch::bytes(int64_t n) {
  return GroupSearch::bytes(n) + kZeros * kGridRows * sizeof(Table);
}

Grid q4_k_grid(const LayerProblem& problem, const QuantizeOptions& options) {
  ASSAY_CHECK(problem.hessian != nullptr && problem.hessian->n == problem.in_features);
  const int64_t group_size = options.group_size;
  ASSAY_CHECK(group_size > 0 && kSuperColumns % group_size == 0);
  ASSAY_CHECK(problem.in_features % kSuperColumns == 0);
  Grid grid;
  grid.group_size = group_size;
  grid.n_groups = problem.in_features / group_size;
  const auto size = static_cast<size_t>(problem.out_features * grid.n_groups);
  grid.scales.resize(size);
  grid.zero_points.resize(size);
  grid.shared.resize(size);
  for (int64_t column = 0; column < problem.in_features; column += kSuperColumns) {
    std::vector<std::vector<double>> panels;
    for (int64_t first = column; first < column + kSuperColumns; first += group_size) {
      panels.push_back(block_panels(problem.hessian->values.data(), problem.in_features, first,
                                    group_size, nullptr));
    }
    const int64_t n_tasks = (problem.out_features + kGridRows - 1) / kGridRows;
    parallel_for(n_tasks, 2, [&](int64_t begin, int64_t end) {
      SuperBlockTask task(panels, group_size);
      for (int64_t t = begin; t < end; ++t) {
        task.run(problem, options, t * kGridRows, column, grid);
      }
    });
  }
  return grid;
}

uint64_t q4_k_grid_peak_bytes(int64_t group_size) {
  return static_cast<uint64_t>(kSuperColumns / group_size) * LatticeSearch::bytes(group_size) +
         static_cast<uint64_t>(kSuperColumns * kGridRows) * sizeof(float);
}

}  // namespace assay
