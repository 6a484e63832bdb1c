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

}  // namespace

void ChannelMaxima::add(const float* x, int64_t n_tokens) {
  const auto n = static_cast<int64_t>(maxima_.size());
  constexpr int64_t kColumns = 256;
  parallel_for(n, kColumns, [&](int64_t begin, int64_t end) {
    uint32_t* maxima = maxima_.data();
    for (int64_t t = 0; t < n_tokens; ++t) {
      const float* row = x + t * n;
      for (int64_t c = begin; c < end; ++c) {
        maxima[c] = std::max(maxima[c], std::bit_cast<uint32_t>(row[c]) & 0x7fffffffu);
      }
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
  most_.resize(panels * kChunks * (kBlocks + 1));
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
  const int64_t n_panels = n_blocks / kBlocks * n_panels_;
  for (int64_t panel = 0; panel < n_panels; ++panel) {
    const float* energies = energies_.data() + panel * kBlocks * kGramPanel;
    double* most = most_.data() + panel * (kBlocks + 1);
    std::fill(most, most + kBlocks + 1, 0.0);
    for (int64_t c = 0; c < kGramPanel; ++c) {
      double sum = 0.0;
      for (int64_t b = 0; b < kBlocks; ++b) {
        const double energy = energies[b * kGramPanel + c];
        most[b] = std::max(most[b], energy);
        sum += energy;
      }
      most[kBlocks] = std::max(most[kBlocks], sum);
    }
  }
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
  // |Σ q_i·q_j| ≤ sqrt(Σ q_i²·Σ q_j²) < 2^31, with a margin for the rounding of the energies.
  constexpr double kLimit = 0x1p62 * 0.999;
  const GramKernels& kernels = gram_kernels();
  const int64_t i = chunk * n_panels_ + row_panel;
  const int64_t j = chunk * n_panels_ + column_panel;
  const int32_t* rows = pairs_.data() + i * kGramChunkSteps * kGramPanel;
  const int32_t* columns = pairs_.data() + j * kGramChunkSteps * kGramPanel;
  const double* row_most = most_.data() + i * (kBlocks + 1);
  const double* column_most = most_.data() + j * (kBlocks + 1);
  double* tile = sums_.data() + (first_tile(row_panel) + column_panel) * kGramTile;
  if (row_most[kBlocks] * column_most[kBlocks] < kLimit) {
    kernels.tile_narrow(rows, columns, kGramChunkSteps, tile);
    return;
  }
  int64_t n_narrow = 0;
  for (int64_t b = 0; b < kBlocks; ++b) n_narrow += row_most[b] * column_most[b] < kLimit ? 1 : 0;
  if (n_narrow == 0) {
    kernels.tile_wide(rows, columns, kGramChunkSteps, tile);
    return;
  }
  for (int64_t b = 0; b < kBlocks; ++b) {
    const int64_t offset = b * kGramBlockSteps * kGramPanel;
    const auto kernel =
        row_most[b] * column_most[b] < kLimit ? kernels.tile_narrow : kernels.tile_wide;
    kernel(rows + offset, columns + offset, kGramBlockSteps, tile);
  }
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
