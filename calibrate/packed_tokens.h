#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibrate/gram_kernels.h"

namespace assay {

/// Some tokens of one stream as q = rint(x / 2^e_j), laid out for the Gram kernels, with what
/// proves that their sums fit 32 bits.
class PackedTokens {
 public:
  static constexpr int64_t kChunkTokens = 2 * kGramChunkSteps;
  static constexpr int64_t kMostChunks = 4;  // tiles of sums stay in cache for all of them
  static constexpr int64_t kMostTokens = kMostChunks * kChunkTokens;

  /// exponents (n): from all tokens of the stream, before the first is packed.
  explicit PackedTokens(std::span<const int> exponents);

  int64_t n() const { return n_; }
  int64_t n_panels() const { return n_panels_; }
  int64_t n_tokens() const { return n_tokens_; }  // of the last pack()
  int64_t n_chunks() const { return n_chunks_; }
  /// (n) 2^(e_j).
  const std::vector<double>& scales() const { return scales_; }

  /// x (n_tokens, n) row-major, |x| ≤ 32,639·2^e_j, n_tokens ≤ kMostTokens.
  void pack(const float* x, int64_t n_tokens);

  /// tile (32, 32) += Σ over the tokens of a chunk of q_i·p_j, with i in panel `row_panel` of
  /// `rows` and j in panel `column_panel` of `columns`; both hold the same number of tokens.
  static void add_tile(const PackedTokens& rows, int64_t row_panel, const PackedTokens& columns,
                       int64_t column_panel, int64_t chunk, double* tile);

  /// Bytes held for n channels.
  static uint64_t bytes(int64_t n);

 private:
  int64_t n_ = 0;
  int64_t n_panels_ = 0;
  int64_t n_tokens_ = 0;
  int64_t n_chunks_ = 0;
  std::vector<double> scales_;         // (n)
  std::vector<float> inverse_scales_;  // (n) 2^(−e_j)
  std::vector<int32_t> pairs_;         // (chunk, panel, 128, 32), gram_kernels.h
  std::vector<float> energies_;        // (chunk, panel, block, 32) Σ q² of a block
  std::vector<double> most_;           // (chunk, panel, 15) largest energy of each part of a chunk
};

}  // namespace assay
