#pragma once

#include <cstdint>

namespace assay {

// Layout of packed tokens. Channels stand in panels of 32, tokens in pairs (steps); each 32-bit
// word holds two int16 values q of one channel: token 2s in the low half, token 2s + 1 in the high.
//   pairs   (panel, step, 32)
// A block is 16 steps (32 tokens), a chunk 128 steps. The instruction at work multiplies two words
// and adds the two products in 32 bits, which wraps; there are two ways to get exact sums from it:
//   narrow  Σ q_i·q_j itself, where Cauchy-Schwarz proves |Σ| < 2^31 from the channels' energies
//   wide    q_j = 256 h_j + l_j with h = (q + 128) >> 8: two sums of at most
//           128 steps · 2 · 32,639 · 128 < 2^31
// Trained activations nearly always take the narrow way, which is twice as fast; where a chunk is
// too long for the proof, its halves, quarters or blocks may do.

inline constexpr int64_t kGramPanel = 32;        // channels
inline constexpr int64_t kGramBlockSteps = 16;   // steps per block
inline constexpr int64_t kGramChunkSteps = 128;  // steps per chunk
inline constexpr int64_t kGramTile = 32 * 32;    // sums of one pair of panels

struct GramKernels {
  /// maxima (n) = the larger of itself and the bits of |x| over rows of n values, `stride` apart.
  void (*maxima)(const float* x, int64_t stride, int64_t n_tokens, int64_t n, uint32_t* maxima);
  /// Packs one block of one panel: n_tokens ≤ 32 rows, `stride` apart, of n_channels ≤ 32; the rest
  /// of the block becomes 0. energies (32): Σ q² over the block, relative error below 1e-5.
  void (*pack)(const float* x, int64_t stride, int64_t n_tokens, int64_t n_channels,
               const float* inverse_scales, int32_t* pairs, float* energies);
  /// tile (32, 32) += Σ over n_steps of q_i·q_j; the caller has proved that it fits an int32.
  void (*tile_narrow)(const int32_t* rows, const int32_t* columns, int64_t n_steps, double* tile);
  /// The same for any values; n_steps ≤ kGramChunkSteps.
  void (*tile_wide)(const int32_t* rows, const int32_t* columns, int64_t n_steps, double* tile);
};

const GramKernels& gram_kernels_scalar();
const GramKernels& gram_kernels_avx2();
const GramKernels& gram_kernels_avx512();
/// Those of active_isa().
const GramKernels& gram_kernels();

}  // namespace assay
