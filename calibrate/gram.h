#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibrate/hessian.h"
#include "calibrate/packed_tokens.h"

namespace assay {

/// Most tokens of one Gram matrix: |A_ij| ≤ 32,639²·tokens stays below 2^53, so that sums are
/// exact integers in fp64 (arithmetic.md §9).
inline constexpr int64_t kMaxGramTokens = 8'400'000;

/// Largest magnitude of every channel over all calibration tokens.
class ChannelMaxima {
 public:
  explicit ChannelMaxima(int64_t n) : maxima_(static_cast<size_t>(n), 0) {}

  /// x (n_tokens, n) row-major. Any order of calls gives the same result.
  void add(const float* x, int64_t n_tokens);

  /// First channel that saw a NaN, an infinity or a value beyond 32,639·2^100, or −1.
  int64_t find_fault() const;
  float maximum(int64_t channel) const;
  bool all_zero() const;
  /// e_j of arithmetic.md §3 for every channel.
  std::vector<int> exponents() const;

 private:
  std::vector<uint32_t> maxima_;  // (n) bits of the largest |x|: order of bits = order of values
};

/// A_ij = Σ_t q_ti·q_tj with q = rint(x / 2^e_j), exact. Independent of token order, of the split
/// into calls, of threads and instruction set.
class Gram {
 public:
  /// exponents (n): from all tokens, before the first is added.
  explicit Gram(std::span<const int> exponents);

  /// x (n_tokens, n) row-major, |x| ≤ 32,639·2^e_j. Throws UnsupportedError beyond kMaxGramTokens.
  void add(const float* x, int64_t n_tokens);
  int64_t n_tokens() const { return n_tokens_; }
  /// What add() took last, if it was at most PackedTokens::kMostTokens: for CrossGram.
  const PackedTokens& packed() const { return tokens_; }

  /// H_ij = A_ij·2^(e_i)·2^(e_j), as a full matrix. The object is empty afterwards.
  Hessian finish();

 private:
  void multiply();

  int64_t n_tokens_ = 0;
  PackedTokens tokens_;
  std::vector<double> sums_;  // (n_panels · (n_panels + 1) / 2, 32, 32): tiles (i, j ≤ i), integers
};

/// C_ij = Σ_t q_ti·p_tj of two streams that walk the same tokens, each with exponents of its own:
/// exact, and independent of the same things as Gram.
class CrossGram {
 public:
  /// `columns`: of the other stream, packed anew before each add(); must outlive finish().
  CrossGram(std::span<const int> row_exponents, const PackedTokens& columns);

  /// x (columns.n_tokens(), n_rows) row-major. Throws like Gram::add.
  void add(const float* x);

  /// C_ij·2^(e_i)·2^(f_j). The object is empty afterwards.
  CrossProduct finish();

 private:
  void multiply();

  int64_t n_tokens_ = 0;
  PackedTokens rows_;
  const PackedTokens& columns_;
  std::vector<double> sums_;  // (row panels, column panels, 32, 32) integers
};

/// Most bytes held, results included, by a Gram of n channels and a CrossGram with it for each of
/// cross_rows, which take tokens together and then finish in this order, the Gram last: for
/// --dry-run.
uint64_t products_peak_bytes(int64_t n, std::span<const int64_t> cross_rows);

}  // namespace assay
