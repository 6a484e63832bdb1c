#pragma once

#include <cstdint>

namespace assay {

// What the encoders of IQ1_S and IQ1_M share (ggml-quants.c). A column has a level 0, 1 or 2 and
// its group of eight a shift: the value is scale · (level − 1 ± 1/8).

inline constexpr float kIq1Delta = 0.125f;
/// Values of the levels, shifted up [0] and down [1].
inline constexpr float kIq1Points[2][3] = {{-1.0f + kIq1Delta, kIq1Delta, 1.0f + kIq1Delta},
                                           {-1.0f - kIq1Delta, -kIq1Delta, 1.0f - kIq1Delta}};

/// Columns of a block in ascending order of their values, equal ones by position. n ≤ 32.
void sort_columns(int n, const float* x, uint8_t* order);

/// Levels of the columns in `order`: 0 before `first`, 2 from `second` on, 1 between.
void put_levels(int n, const uint8_t* order, int first, int second, uint8_t* levels);

/// Position in iq1_codebook() of eight levels; levels that are not in the book are moved to the
/// neighbour with the least Σ w·(scale·point − x)², and *moved is set.
int snap_iq1(const float* x, const float* weights, float scale, const float* points,
             uint8_t* levels, bool* moved);

/// Weights of a block: importance·√(sigma2 + x²), or x² without importance (nullptr).
void weigh_iq1(int n, float sigma2, const float* x, const float* importance, float* weights);

/// A sum for a scale: Σ w·q·x and Σ w·q².
struct Iq1Fit {
  float qx = 0.0f;
  float q2 = 0.0f;
  void add(float w, float q, float x) {
    qx += w * q * x;
    q2 += w * q * q;
  }
};

}  // namespace assay
