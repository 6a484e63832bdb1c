#include <bit>

#include "calibrate/gram_kernels.h"

namespace assay {
namespace {

// |x·2^(−e)| ≤ 32,639.5 < 2^22, so adding and subtracting 1.5·2^23 rounds to nearest even.
float round_even(float x) { return (x + 12582912.0f) - 12582912.0f; }

int32_t low_half(int32_t word) { return static_cast<int16_t>(word & 0xffff); }
int32_t high_half(int32_t word) { return word >> 16; }

void raise_maxima(const float* x, int64_t stride, int64_t n_tokens, int64_t n, uint32_t* maxima) {
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t c = 0; c < n; ++c) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[t * stride + c]) & 0x7fffffffu;
      maxima[c] = bits > maxima[c] ? bits : maxima[c];
    }
  }
}

void pack(const float* x, int64_t stride, int64_t n_tokens, int64_t n_channels,
          const float* inverse_scales, int32_t* pairs, float* energies) {
  for (int64_t c = 0; c < kGramPanel; ++c) energies[c] = 0.0f;
  const auto value = [&](int64_t token, int64_t c) {
    if (token >= n_tokens || c >= n_channels) return 0.0f;
    return round_even(x[token * stride + c] * inverse_scales[c]);
  };
  for (int64_t step = 0; step < kGramBlockSteps; ++step) {
    for (int64_t c = 0; c < kGramPanel; ++c) {
      const float even = value(2 * step, c);
      const float odd = value(2 * step + 1, c);
      energies[c] += even * even + odd * odd;
      pairs[step * kGramPanel + c] =
          static_cast<int32_t>((static_cast<uint32_t>(static_cast<int32_t>(even)) & 0xffffu) |
                               (static_cast<uint32_t>(static_cast<int32_t>(odd)) << 16));
    }
  }
}

// 64-bit sums need no proof, so both ways are one here.
void tile_any(const int32_t* rows, const int32_t* columns, int64_t n_steps, double* tile) {
  for (int64_t i = 0; i < kGramPanel; ++i) {
    int64_t sums[kGramPanel] = {};
    for (int64_t step = 0; step < n_steps; ++step) {
      const int32_t q = rows[step * kGramPanel + i];
      for (int64_t j = 0; j < kGramPanel; ++j) {
        const int32_t p = columns[step * kGramPanel + j];
        sums[j] += static_cast<int64_t>(low_half(q) * low_half(p)) + high_half(q) * high_half(p);
      }
    }
    for (int64_t j = 0; j < kGramPanel; ++j) {
      tile[i * kGramPanel + j] += static_cast<double>(sums[j]);
    }
  }
}

}  // namespace

const GramKernels& gram_kernels_scalar() {
  static const GramKernels kernels{
      .maxima = raise_maxima, .pack = pack, .tile_narrow = tile_any, .tile_wide = tile_any};
  return kernels;
}

}  // namespace assay
