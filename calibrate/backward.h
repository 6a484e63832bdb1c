#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/cpu_executor.h"

namespace assay {

/// Derivatives of a loss through the ops of a program, for one sequence that begins at position 0:
/// record() before each op of a range runs, then run() over the range backwards. Between ranges the
/// derivatives stay with their registers. What routes tokens to experts is held fixed.
class Backward {
 public:
  /// Sees what a linear wrote: the derivative (rows, out_features). Experts' are not shown.
  using LinearGradient =
      std::function<void(int matrix, std::span<const float> gradient, int64_t rows)>;

  /// Reads matrices from `weights.checkpoint`, vectors and rope tables as they are bound when run()
  /// is called. Both must outlive the object.
  Backward(const Program& program, const CpuWeights& weights);

  /// Keeps what the derivative of the op needs of its inputs.
  void record(int op, const CpuContext& context);
  /// Ops [begin, end), last first, on `rows` rows; forgets what was recorded. Ops without a
  /// derivative (embeddings) are left out.
  void run(int begin, int end, int64_t rows, const LinearGradient& on_linear);

  /// The loss's derivative with respect to a register; empty: zeros.
  std::vector<float>& gradient(Register r) { return gradients_[static_cast<size_t>(r.index)]; }
  /// Forgets all derivatives.
  void clear();

  /// Most bytes that recording and running ops [begin, end) take.
  static uint64_t peak_bytes(const Program& program, int begin, int end, int64_t rows);

 private:
  class Step;
  std::vector<float> take(Register r, int64_t rows);
  void add(Register r, std::vector<float> values);

  const Program& program_;
  const CpuWeights& weights_;
  std::vector<std::vector<float>> gradients_;            // by register, (rows, columns)
  std::vector<std::vector<std::vector<float>>> inputs_;  // by op: what kept_inputs() names
  std::vector<std::vector<float>> d_keys_, d_values_;    // by cache layer
};

}  // namespace assay
