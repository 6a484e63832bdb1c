#include "verify/logits.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "runtime/ops/nll.h"
#include "verify/describe.h"

namespace assay {
namespace {

static_assert(std::endian::native == std::endian::little, "hashes are over little-endian bytes");

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

double distance(float a, float b) {
  const double difference = std::fabs(static_cast<double>(a) - static_cast<double>(b));
  return std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity();
}

Json json_of(const std::optional<FloatDifference>& difference) {
  if (!difference) return nullptr;
  Json json = Json::object();
  json.set("row", difference->row);
  json.set("index", difference->column);
  json.set("a", describe_float(difference->a));
  json.set("b", describe_float(difference->b));
  return json;
}

/// JSON has no infinity: null stands for it.
Json json_of(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

Json LogitsComparison::to_json() const {
  Json json = Json::object();
  json.set("n_rows", n_rows);
  json.set("n_columns", n_columns);
  json.set("n_different", n_different);
  json.set("n_argmax_different", n_argmax_different);
  json.set("first", json_of(first));
  json.set("worst", json_of(worst));
  json.set("max_abs_difference", json_of(max_abs_difference));
  json.set("rms_difference", json_of(rms_difference));
  json.set("rms_a", json_of(rms_a));
  json.set("sha256_a", sha256_a);
  json.set("sha256_b", sha256_b);
  return json;
}

std::string LogitsComparison::first_difference() const {
  if (!first) return {};
  return fmt::format("row {}, index {}: {} against {}", first->row, first->column,
                     describe_float(first->a), describe_float(first->b));
}

LogitsComparer::LogitsComparer(int64_t n_columns) { result_.n_columns = n_columns; }

void LogitsComparer::add(std::span<const float> a, std::span<const float> b) {
  const auto columns = static_cast<size_t>(result_.n_columns);
  if (a.size() != b.size() || columns == 0 || a.size() % columns != 0) {
    throw ShapeError(fmt::format("comparison of logits: {} against {} values in rows of {}",
                                 a.size(), b.size(), columns));
  }
  // Each of the three is a chain: they run beside each other.
  parallel_for(3, 1, [&](int64_t part, int64_t) {
    if (part == 0) {
      hash_a_.update(std::as_bytes(a));
    } else if (part == 1) {
      hash_b_.update(std::as_bytes(b));
    } else {
      for (size_t begin = 0; begin < a.size(); begin += columns) add_row(&a[begin], &b[begin]);
    }
  });
}

void LogitsComparer::add_row(const float* a, const float* b) {
  const int64_t row = result_.n_rows++;
  int64_t best_a = 0, best_b = 0;
  for (int64_t column = 0; column < result_.n_columns; ++column) {
    if (a[column] > a[best_a]) best_a = column;
    if (b[column] > b[best_b]) best_b = column;
    sum_squares_a_ += static_cast<double>(a[column]) * static_cast<double>(a[column]);
    if (same_bits(a[column], b[column])) continue;
    const FloatDifference here{row, column, a[column], b[column]};
    if (!result_.first) result_.first = here;
    ++result_.n_different;
    const double size = distance(a[column], b[column]);
    if (!result_.worst || size > result_.max_abs_difference) {
      result_.worst = here;
      result_.max_abs_difference = size;
    }
    sum_squares_difference_ += size * size;
  }
  if (best_a != best_b) ++result_.n_argmax_different;
}

LogitsComparison LogitsComparer::finish() {
  const double n = static_cast<double>(result_.n_rows) * static_cast<double>(result_.n_columns);
  if (n > 0) {
    result_.rms_difference = std::sqrt(sum_squares_difference_ / n);
    result_.rms_a = std::sqrt(sum_squares_a_ / n);
  }
  result_.sha256_a = hash_a_.finish();
  result_.sha256_b = hash_b_.finish();
  return std::move(result_);
}

LogitsComparison compare_logits(std::span<const float> a, std::span<const float> b,
                                int64_t n_columns) {
  LogitsComparer comparer(n_columns);
  comparer.add(a, b);
  return comparer.finish();
}

Margin margin_of(std::span<const float> values) {
  const auto best = static_cast<size_t>(argmax(values));
  size_t second = best == 0 ? 1 : 0;
  for (size_t i = second + 1; i < values.size(); ++i) {
    if (i != best && values[i] > values[second]) second = i;
  }
  return {static_cast<int32_t>(best), static_cast<int32_t>(second), values[best] - values[second]};
}

}  // namespace assay
