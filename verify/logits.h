#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "convert/core/json.h"
#include "convert/core/sha256.h"

namespace assay {

/// Where two arrays of fp32 differ, with both values.
struct FloatDifference {
  int64_t row = 0;
  int64_t column = 0;
  float a = 0.0f;
  float b = 0.0f;
};

/// What a comparison of two (n_rows, n_columns) arrays of fp32 found. Equal means equal bits: the
/// signs of zeros and the payloads of NaNs count.
struct LogitsComparison {
  int64_t n_rows = 0;
  int64_t n_columns = 0;
  uint64_t n_different = 0;              // values whose bits differ
  std::optional<FloatDifference> first;  // lowest row, then column
  std::optional<FloatDifference> worst;  // largest |a − b|, the first of them
  double max_abs_difference = 0.0;       // infinite where one side is not finite and bits differ
  double rms_difference = 0.0;           // over all values; infinite in the same case
  double rms_a = 0.0;                    // for scale
  uint64_t n_argmax_different = 0;       // rows whose largest value (lowest index of ties) differs
  std::string sha256_a;                  // of little-endian fp32, all rows in order
  std::string sha256_b;

  bool equal() const { return n_different == 0; }
  Json to_json() const;
  /// "row 3, index 17: 1.5 (0x3fc00000) against 1.25 (0x3fa00000)"; empty if nothing differs.
  std::string first_difference() const;
};

/// Compares row by row, so that whole windows of a large vocabulary need not lie in memory.
/// All sums are fp64 chains in row order: the figures do not depend on how rows are dealt to calls.
class LogitsComparer {
 public:
  explicit LogitsComparer(int64_t n_columns);

  /// Rows of both sides, (n, n_columns) each. Throws ShapeError if the sizes differ. Runs on
  /// several threads; must not be called from within parallel_for.
  void add(std::span<const float> a, std::span<const float> b);
  /// Ends the comparison.
  LogitsComparison finish();

 private:
  void add_row(const float* a, const float* b);
  LogitsComparison result_;
  double sum_squares_difference_ = 0.0;
  double sum_squares_a_ = 0.0;
  Sha256 hash_a_, hash_b_;
};

/// Compares whole arrays of (a.size() / n_columns) rows.
LogitsComparison compare_logits(std::span<const float> a, std::span<const float> b,
                                int64_t n_columns);

/// The largest value's lead over the next one.
struct Margin {
  int32_t best = 0;       // argmax, the lowest index of ties
  int32_t runner_up = 0;  // argmax of the others
  float margin = 0.0f;    // largest − second largest, in fp32
};
/// `values` holds at least two.
Margin margin_of(std::span<const float> values);

}  // namespace assay
