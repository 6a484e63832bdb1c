#include "calibrate/packed_tokens.h"

#include <algorithm>
#include <cmath>

#include "convert/core/error.h"
#include "convert/core/parallel.h"

namespace assay {
namespace {

constexpr int64_t kBlocks = kGramChunkSteps / kGramBlockSteps;  // per chunk
constexpr int64_t kBlockTokens = 2 * kGramBlockSteps;

// A chunk, its halves, quarters and blocks as a binary heap: range r consists of 2r + 1 and 2r + 2,
// the blocks come last.
constexpr int64_t kRanges = 2 * kBlocks - 1;
constexpr int64_t kFirstBlock = kBlocks - 1;

// energies (blocks, 32) of one panel → most (ranges): largest energy of a channel over each range.
void find_most(const float* energies, double* most) {
  std::fill(most, most + kRanges, 0.0);
  for (int64_t c = 0; c < kGramPanel; ++c) {
    double sums[kRanges];
    for (int64_t r = kRanges - 1; r >= 0; --r) {
      sums[r] = r >= kFirstBlock ? energies[(r - kFirstBlock) * kGramPanel + c]
                                 : sums[2 * r + 1] + sums[2 * r + 2];
      most[r] = std::max(most[r], sums[r]);
    }
  }
}

// Steps of the chunk that a range covers.
struct Steps {
  int64_t begin = 0;
  int64_t count = 0;
};

Steps steps_of(int64_t range) {
  int64_t left = range;
  int64_t right = range;
  while (left < kFirstBlock) {
    left = 2 * left + 1;
    right = 2 * right + 2;
  }
  return {(left - kFirstBlock) * kGramBlockSteps, (right - left + 1) * kGramBlockSteps};
}

// Adds one range of two packed panels to their tile, in the longest pieces whose sums fit 32 bits.
void add_range(const int32_t* rows, const int32_t* columns, const double* row_most,
               const double* column_most, int64_t range, double* tile) {
  // |Σ q_i·q_j| ≤ sqrt(Σ q_i²·Σ q_j²) < 2^31, with a margin for the rounding of the energies.
  constexpr double kLimit = 0x1p62 * 0.999;
  const bool fits = row_most[range] * column_most[range] < kLimit;
  if (!fits && range < kFirstBlock) {
    add_range(rows, columns, row_most, column_most, 2 * range + 1, tile);
    add_range(rows, columns, row_most, column_most, 2 * range + 2, tile);
    return;
  }
  const Steps steps = steps_of(range);
  const int64_t offset = steps.begin * kGramPanel;
  const auto kernel = fits ? gram_kernels().tile_narrow : gram_kernels().tile_wide;
  kernel(rows + offset, columns + offset, steps.count, tile);
}

}  // namespace

PackedTokens::PackedTokens(std::span<const int> exponents)
    : n_(static_cast<int64_t>(exponents.size())), n_panels_((n_ + kGramPanel - 1) / kGramPanel) {
  for (const int e : exponents) {
    scales_.push_back(std::ldexp(1.0, e));
    inverse_scales_.push_back(std::ldexp(1.0f, -e));
  }
  const auto panels = static_cast<size_t>(n_panels_);
  pairs_.resize(panels * kMostChunks * kGramChunkSteps * kGramPanel);
  energies_.resize(panels * kMostChunks * kBlocks * kGramPanel);
  most_.resize(panels * kMostChunks * kRanges);
}

uint64_t PackedTokens::bytes(int64_t n) {
  const auto panels = static_cast<uint64_t>((n + kGramPanel - 1) / kGramPanel);
  return panels * kMostChunks * kGramChunkSteps * kGramPanel * sizeof(int32_t);
}

void PackedTokens::pack(const float* x, int64_t n_tokens) {
  ASSAY_CHECK(n_tokens <= kMostTokens);
  const GramKernels& kernels = gram_kernels();
  n_tokens_ = n_tokens;
  n_chunks_ = (n_tokens + kChunkTokens - 1) / kChunkTokens;
  const int64_t n_blocks = n_chunks_ * kBlocks;
  parallel_for(n_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t chunk = b / kBlocks;
      const int64_t tokens = std::clamp<int64_t>(n_tokens - b * kBlockTokens, 0, kBlockTokens);
      for (int64_t p = 0; p < n_panels_; ++p) {
        const int64_t panel = chunk * n_panels_ + p;
        const int64_t block = panel * kBlocks + b % kBlocks;
        const int64_t c = p * kGramPanel;
        kernels.pack(x + (tokens > 0 ? b * kBlockTokens * n_ : 0) + c, n_, tokens,
                     std::min(kGramPanel, n_ - c), inverse_scales_.data() + c,
                     pairs_.data() + block * kGramBlockSteps * kGramPanel,
                     energies_.data() + block * kGramPanel);
      }
    }
  });
  const int64_t n_packed = n_chunks_ * n_panels_;
  parallel_for(n_packed, 16, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      find_most(energies_.data() + panel * kBlocks * kGramPanel, most_.data() + panel * kRanges);
    }
  });
}

void PackedTokens::add_tile(const PackedTokens& rows, int64_t row_panel,
                            const PackedTokens& columns, int64_t column_panel, int64_t chunk,
                            double* tile) {
  const int64_t i = chunk * rows.n_panels_ + row_panel;
  const int64_t j = chunk * columns.n_panels_ + column_panel;
  add_range(rows.pairs_.data() + i * kGramChunkSteps * kGramPanel,
            columns.pairs_.data() + j * kGramChunkSteps * kGramPanel,
            rows.most_.data() + i * kRanges, columns.most_.data() + j * kRanges, 0, tile);
}

}  // namespace assay
