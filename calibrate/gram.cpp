#include "calibrate/gram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "calibrate/gram_kernels.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "runtime/isa.h"
#include "runtime/ops/block_int16.h"

namespace assay {
namespace {

constexpr int64_t kBlocks = kGramChunkSteps / kGramBlockSteps;  // per chunk
constexpr int64_t kBlockTokens = 2 * kGramBlockSteps;
constexpr int64_t kChunkTokens = 2 * kGramChunkSteps;
constexpr int64_t kChunks = 4;  // packed at a time: tiles of sums stay in cache for all of them
constexpr int64_t kMacro = 2;   // panels per side of the square of tiles that one task works on

constexpr uint32_t kLargestBits = std::bit_cast<uint32_t>(32639.0f * 0x1p100f);

int64_t first_tile(int64_t row_panel) { return row_panel * (row_panel + 1) / 2; }

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

void ChannelMaxima::add(const float* x, int64_t n_tokens) {
  const auto n = static_cast<int64_t>(maxima_.size());
  constexpr int64_t kColumns = 128;
  parallel_for(n, kColumns, [&](int64_t begin, int64_t end) {
    // A few rows at a time: their cache lines are read once for all columns of the task.
    constexpr int64_t kRows = 32;
    for (int64_t t = 0; t < n_tokens; t += kRows) {
      gram_kernels().maxima(x + t * n + begin, n, std::min(kRows, n_tokens - t), end - begin,
                            maxima_.data() + begin);
    }
  });
}

int64_t ChannelMaxima::find_fault() const {
  for (size_t c = 0; c < maxima_.size(); ++c) {
    if (maxima_[c] > kLargestBits) return static_cast<int64_t>(c);
  }
  return -1;
}

float ChannelMaxima::maximum(int64_t channel) const {
  return std::bit_cast<float>(maxima_[static_cast<size_t>(channel)]);
}

std::vector<int> ChannelMaxima::exponents() const {
  ASSAY_CHECK(find_fault() < 0);
  std::vector<int> out(maxima_.size());
  for (size_t c = 0; c < out.size(); ++c) {
    out[c] = block_int16_exponent(std::bit_cast<float>(maxima_[c]));
  }
  return out;
}

const GramKernels& gram_kernels() {
  switch (active_isa()) {
    case Isa::kAvx512:
      return gram_kernels_avx512();
    case Isa::kAvx2:
      return gram_kernels_avx2();
    case Isa::kScalar:
      break;
  }
  return gram_kernels_scalar();
}

Gram::Gram(std::span<const int> exponents)
    : n_(static_cast<int64_t>(exponents.size())),
      n_panels_((n_ + kGramPanel - 1) / kGramPanel),
      exponents_(exponents.begin(), exponents.end()) {
  inverse_scales_.reserve(exponents_.size());
  for (const int e : exponents_) inverse_scales_.push_back(std::ldexp(1.0f, -e));
  const auto panels = static_cast<size_t>(n_panels_);
  sums_.resize(static_cast<size_t>(first_tile(n_panels_) * kGramTile));
  pairs_.resize(panels * kChunks * kGramChunkSteps * kGramPanel);
  energies_.resize(panels * kChunks * kBlocks * kGramPanel);
  most_.resize(panels * kChunks * kRanges);
}

uint64_t Gram::peak_bytes(int64_t n) {
  const auto panels = static_cast<uint64_t>((n + kGramPanel - 1) / kGramPanel);
  const uint64_t sums = panels * (panels + 1) / 2 * kGramTile * sizeof(double);
  const uint64_t packed = panels * kChunks * kGramChunkSteps * kGramPanel * sizeof(int32_t);
  return sums + packed + static_cast<uint64_t>(n) * static_cast<uint64_t>(n) * sizeof(double);
}

void Gram::add(const float* x, int64_t n_tokens) {
  if (n_tokens > kMaxGramTokens - n_tokens_) {
    throw UnsupportedError("calibration: found more than " + std::to_string(kMaxGramTokens) +
                           " tokens, up to which sums are exact; use fewer windows");
  }
  n_tokens_ += n_tokens;
  for (int64_t t = 0; t < n_tokens; t += kChunks * kChunkTokens) {
    const int64_t here = std::min(kChunks * kChunkTokens, n_tokens - t);
    pack(x + t * n_, here);
    multiply((here + kChunkTokens - 1) / kChunkTokens);
  }
}

void Gram::pack(const float* x, int64_t n_tokens) {
  const GramKernels& kernels = gram_kernels();
  const int64_t n_blocks = (n_tokens + kChunkTokens - 1) / kChunkTokens * kBlocks;
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
  const int64_t n_packed = n_blocks / kBlocks * n_panels_;
  parallel_for(n_packed, 16, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      find_most(energies_.data() + panel * kBlocks * kGramPanel, most_.data() + panel * kRanges);
    }
  });
}

void Gram::multiply(int64_t n_chunks) {
  const int64_t n_macro = (n_panels_ + kMacro - 1) / kMacro;
  parallel_for(first_tile(n_macro), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t task = first_tile(n_macro) - 1 - i;
      auto row = static_cast<int64_t>((std::sqrt(8.0 * static_cast<double>(task) + 1.0) - 1.0) / 2);
      while (first_tile(row) > task) --row;
      while (first_tile(row + 1) <= task) ++row;
      const int64_t column = task - first_tile(row);
      for (int64_t chunk = 0; chunk < n_chunks; ++chunk) {
        for (int64_t j = column * kMacro; j < std::min(n_panels_, (column + 1) * kMacro); ++j) {
          const int64_t last = std::min(n_panels_, (row + 1) * kMacro);
          for (int64_t r = std::max(row * kMacro, j); r < last; ++r) add_tile(r, j, chunk);
        }
      }
    }
  });
}

void Gram::add_tile(int64_t row_panel, int64_t column_panel, int64_t chunk) {
  const int64_t i = chunk * n_panels_ + row_panel;
  const int64_t j = chunk * n_panels_ + column_panel;
  const int32_t* rows = pairs_.data() + i * kGramChunkSteps * kGramPanel;
  const int32_t* columns = pairs_.data() + j * kGramChunkSteps * kGramPanel;
  double* tile = sums_.data() + (first_tile(row_panel) + column_panel) * kGramTile;
  add_range(rows, columns, most_.data() + i * kRanges, most_.data() + j * kRanges, 0, tile);
}

Hessian Gram::finish() {
  pairs_ = {};
  Hessian out;
  out.n = n_;
  out.n_tokens = n_tokens_;
  out.values.resize(static_cast<size_t>(n_ * n_));
  std::vector<double> scales;
  scales.reserve(exponents_.size());
  for (const int e : exponents_) scales.push_back(std::ldexp(1.0, e));
  parallel_for(n_, 32, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < n_; ++j) {
        const int64_t r = std::max(i, j);
        const int64_t c = std::min(i, j);
        const int64_t tile = first_tile(r / kGramPanel) + c / kGramPanel;
        const double a = sums_[static_cast<size_t>(tile * kGramTile + r % kGramPanel * kGramPanel +
                                                   c % kGramPanel)];
        out.values[static_cast<size_t>(i * n_ + j)] =
            a * scales[static_cast<size_t>(i)] * scales[static_cast<size_t>(j)];
      }
    }
  });
  sums_ = {};
  return out;
}

}  // namespace assay
