#pragma once

#include <cstdint>

#include "convert/formats/code_search.h"

namespace assay {

/// The inner loops of code_search.h for a wide instruction set. Every lane does the operations of
/// the plain loops in their order, so that results are the same bits: lanes are groups, or trials
/// for one group, never parts of one sum.
struct SearchKernels {
  /// search_affine_grid for 8 groups of n ≤ 32 columns, one after another.
  void (*affine_grids)(int n, int n_levels, const float* x, const float* weights,
                       const AffineSearch& search, AffineGrid* grids, uint8_t* codes);
  /// Σ w·x·l and Σ w·l·l of signed codes l for each of 24 inverse scales.
  void (*signed_fits)(int n, int n_levels, const float* x, const float* weights,
                      const float* inverses, float* xl, float* ll);
  /// Σ w·q·x and Σ w·q·q of IQ4 values q, 32 columns, for each of 16 inverse scales.
  void (*iq4_fits)(const float* x, const float* weights, const float* inverses, float* qx,
                   float* qq);
  /// nearest_iq4(inverse·x) of n columns, a multiple of 8.
  void (*iq4_codes)(int n, const float* x, float inverse, uint8_t* codes);
  /// importance·√(sigma2 + x²) of n columns, a multiple of 8.
  void (*weigh)(int n, float sigma2, const float* x, const float* importance, float* weights);
  /// clamp(round((x + minimum) / scale), lowest, highest) − lowest of n columns, a multiple of 8;
  /// scale is not 0.
  void (*round_codes)(int n, const float* x, float minimum, float scale, int lowest, int highest,
                      uint8_t* codes);
};

inline constexpr int kSignedTrials = 24;
inline constexpr int kIq4Trials = 16;

/// Those for active_isa() (core/isa.h); nullptr: the plain loops.
const SearchKernels* search_kernels();

}  // namespace assay
