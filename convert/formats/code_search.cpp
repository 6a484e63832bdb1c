#include "convert/formats/code_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "convert/formats/iq4_values.h"
#include "convert/formats/search_kernels.h"

namespace assay {

int nearest_code(float value) {
  constexpr float kLimit = 4194303.0f;
  if (!(std::fabs(value) <= kLimit)) return value > 0 ? 4194303 : (value < 0 ? -4194303 : 0);
  const float shifted = value + 12582912.0f;  // 1.5 · 2^23: the integer lies in the low bits
  return static_cast<int>(std::bit_cast<uint32_t>(shifted) & 0x007fffffu) - 0x00400000;
}

namespace {

/// Value with the largest magnitude, the first one of equals.
float first_extreme(int n, const float* x) {
  float extreme = 0.0f;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  return extreme;
}

/// Weighted sums of one choice of codes l: Σ w·x·l and Σ w·l·l.
struct Fit {
  float xl = 0.0f;
  float ll = 0.0f;
  void add(float w, float x, int code) {
    const auto l = static_cast<float>(code);
    xl += w * x * l;
    ll += w * l * l;
  }
};

}  // namespace

namespace {

/// The first fit, and what to try after it.
constexpr int kSignedSteps = 18;

/// Fits of the signed codes for each inverse scale.
void signed_fits(int n, int n_levels, const float* x, const float* weights, const float* inverses,
                 Fit* fits) {
  if (const SearchKernels* kernels = search_kernels()) {
    float xl[kSignedTrials];
    float ll[kSignedTrials];
    kernels->signed_fits(n, n_levels, x, weights, inverses, xl, ll);
    for (int t = 0; t <= kSignedSteps; ++t) fits[t] = {xl[t], ll[t]};
    return;
  }
  for (int t = 0; t <= kSignedSteps; ++t) {
    for (int i = 0; i < n; ++i) {
      fits[t].add(weights[i], x[i],
                  std::clamp(nearest_code(inverses[t] * x[i]), -n_levels, n_levels - 1));
    }
  }
}

}  // namespace

float search_signed_scale(int n, int n_levels, const float* x, const float* weights,
                          uint8_t* codes) {
  const float extreme = first_extreme(n, x);
  if (std::fabs(extreme) < kTinyGroup) {
    std::fill_n(codes, n, uint8_t{0});
    return 0.0f;
  }
  float squares[32];
  if (weights == nullptr) {
    for (int i = 0; i < n; ++i) squares[i] = x[i] * x[i];
    weights = squares;
  }
  const auto levels = static_cast<float>(n_levels);
  float inverses[kSignedTrials] = {-levels / extreme};
  for (int t = 0; t < kSignedSteps; ++t) {
    const int step = t < 9 ? t - 9 : t - 8;  // −9 … 9 without 0
    inverses[t + 1] = -(levels + 0.1f * static_cast<float>(step)) / extreme;
  }
  Fit fits[kSignedSteps + 1];
  signed_fits(n, n_levels, x, weights, inverses, fits);

  int chosen = 0;
  float scale = fits[0].ll != 0.0f ? fits[0].xl / fits[0].ll : 0.0f;
  float best = scale * fits[0].xl;
  for (int t = 1; t <= kSignedSteps; ++t) {
    const Fit& fit = fits[t];
    if (fit.ll > 0.0f && fit.xl * fit.xl > best * fit.ll) {
      chosen = t;
      scale = fit.xl / fit.ll;
      best = scale * fit.xl;
    }
  }
  for (int i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(
        std::clamp(nearest_code(inverses[chosen] * x[i]), -n_levels, n_levels - 1) + n_levels);
  }
  return scale;
}

float search_signed_scale_by_sweeps(int n, int n_levels, const float* x, uint8_t* codes) {
  const float extreme = first_extreme(n, x);
  if (std::fabs(extreme) < kTinyGroup) {
    std::fill_n(codes, n, uint8_t{0});
    return 0.0f;
  }
  const auto clamped = [&](float value) {
    return std::clamp(nearest_code(value), -n_levels, n_levels - 1);
  };
  const float inverse = static_cast<float>(-n_levels) / extreme;
  int levels[32];
  Fit fit;
  for (int i = 0; i < n; ++i) {
    levels[i] = clamped(inverse * x[i]);
    fit.add(x[i] * x[i], x[i], levels[i]);
  }
  for (int sweep = 0; sweep < 5; ++sweep) {
    bool changed = false;
    for (int i = 0; i < n; ++i) {
      const float w = x[i] * x[i];
      const auto old_level = static_cast<float>(levels[i]);
      Fit rest{fit.xl - w * x[i] * old_level, fit.ll - w * old_level * old_level};
      if (!(rest.xl > 0.0f)) continue;
      const int level = clamped(x[i] * rest.ll / rest.xl);
      if (level == levels[i]) continue;
      rest.add(w, x[i], level);
      if (rest.ll > 0.0f && rest.xl * rest.xl * fit.ll > fit.xl * fit.xl * rest.ll) {
        levels[i] = level;
        fit = rest;
        changed = true;
      }
    }
    if (!changed) break;
  }
  for (int i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(levels[i] + n_levels);
  return fit.ll > 0.0f ? fit.xl / fit.ll : 0.0f;
}

AffineGrid search_affine_grid(int n, int n_levels, const float* x, const float* weights,
                              const AffineSearch& search, uint8_t* codes) {
  float minimum = x[0];
  float maximum = x[0];
  float sum_w = weights[0];
  float sum_x = sum_w * x[0];
  for (int i = 1; i < n; ++i) {
    minimum = std::min(minimum, x[i]);
    maximum = std::max(maximum, x[i]);
    sum_w += weights[i];
    sum_x += weights[i] * x[i];
  }
  if (minimum > 0.0f) minimum = 0.0f;
  if (maximum <= minimum) {
    std::fill_n(codes, n, uint8_t{0});
    return {0.0f, -minimum};
  }
  const auto levels = static_cast<float>(n_levels);
  const auto code_of = [&](float inverse, int i) {
    return std::clamp(nearest_code(inverse * (x[i] - minimum)), 0, n_levels);
  };

  const auto error_of = [&](float difference) {
    return search.absolute ? std::fabs(difference) : difference * difference;
  };

  const float first_inverse = levels / (maximum - minimum);
  float scale = 1.0f / first_inverse;
  float best_error = 0.0f;
  for (int i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(code_of(first_inverse, i));
    const float difference = scale * static_cast<float>(codes[i]) + minimum - x[i];
    best_error += weights[i] * error_of(difference);
  }
  for (int step = 0; step <= search.n_steps; ++step) {
    // `minimum` is the one of the best grid so far, not of the data.
    const float inverse =
        (search.r_min + search.r_delta * static_cast<float>(step) + levels) / (maximum - minimum);
    uint8_t trial[32];
    float sum_l = 0.0f;
    float sum_l2 = 0.0f;
    float sum_xl = 0.0f;
    for (int i = 0; i < n; ++i) {
      trial[i] = static_cast<uint8_t>(code_of(inverse, i));
      const auto l = static_cast<float>(trial[i]);
      sum_l += weights[i] * l;
      sum_l2 += weights[i] * l * l;
      sum_xl += weights[i] * l * x[i];
    }
    const float determinant = sum_w * sum_l2 - sum_l * sum_l;
    if (!(determinant > 0.0f)) continue;
    float trial_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    float trial_minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    if (trial_minimum > 0.0f) {
      trial_minimum = 0.0f;
      trial_scale = sum_xl / sum_l2;
    }
    float error = 0.0f;
    for (int i = 0; i < n; ++i) {
      const float difference = trial_scale * static_cast<float>(trial[i]) + trial_minimum - x[i];
      error += weights[i] * error_of(difference);
    }
    if (error < best_error) {
      std::copy_n(trial, n, codes);
      best_error = error;
      scale = trial_scale;
      minimum = trial_minimum;
    }
  }
  return {scale, -minimum};
}

void search_affine_grids(int n_groups, int n, int n_levels, const float* x, const float* weights,
                         const AffineSearch& search, AffineGrid* grids, uint8_t* codes) {
  constexpr int kAtOnce = 8;
  int g = 0;
  if (const SearchKernels* kernels = search_kernels()) {
    for (; g + kAtOnce <= n_groups; g += kAtOnce) {
      kernels->affine_grids(n, n_levels, x + g * n, weights + g * n, search, grids + g,
                            codes + g * n);
    }
  }
  for (; g < n_groups; ++g) {
    grids[g] = search_affine_grid(n, n_levels, x + g * n, weights + g * n, search, codes + g * n);
  }
}

float search_unsigned_scale(int n, int n_levels, const float* x, const float* weights,
                            uint8_t* codes) {
  float maximum = 0.0f;
  for (int i = 0; i < n; ++i) maximum = std::max(maximum, x[i]);
  if (maximum < kTinyGroup) {
    std::fill_n(codes, n, uint8_t{0});
    return 0.0f;
  }
  const auto levels = static_cast<float>(n_levels);
  float inverse = levels / maximum;
  float scale = 1.0f / inverse;
  float best_error = 0.0f;
  for (int i = 0; i < n; ++i) {
    // A negative value wraps here, as in ggml; it only enters this first error.
    const auto code = static_cast<uint8_t>(nearest_code(inverse * x[i]));
    const float difference = x[i] - scale * static_cast<float>(code);
    best_error += weights[i] * difference * difference;
  }
  for (int step = -4; step <= 4; ++step) {
    if (step == 0) continue;
    const float trial_inverse = (0.1f * static_cast<float>(step) + levels) / maximum;
    const float trial_scale = 1.0f / trial_inverse;
    float error = 0.0f;
    for (int i = 0; i < n; ++i) {
      const int code = std::min(n_levels, nearest_code(trial_inverse * x[i]));
      const float difference = x[i] - trial_scale * static_cast<float>(code);
      error += weights[i] * difference * difference;
    }
    if (error < best_error) {
      best_error = error;
      inverse = trial_inverse;
    }
  }

  Fit fit;
  for (int i = 0; i < n; ++i) {
    const int code = std::min(n_levels, nearest_code(inverse * x[i]));
    codes[i] = static_cast<uint8_t>(code);
    fit.add(weights[i], x[i], code);
  }
  for (int sweep = 0; sweep < 5; ++sweep) {
    bool changed = false;
    for (int i = 0; i < n; ++i) {
      const float w = weights[i];
      const auto old_code = static_cast<float>(codes[i]);
      Fit rest{fit.xl - w * x[i] * old_code, fit.ll - w * old_code * old_code};
      if (!(rest.xl > 0.0f && rest.ll > 0.0f)) continue;
      const int code = std::min(n_levels, nearest_code(x[i] * rest.ll / rest.xl));
      if (code == codes[i]) continue;
      rest.add(w, x[i], code);
      if (rest.xl * rest.xl * fit.ll > fit.xl * fit.xl * rest.ll) {
        codes[i] = static_cast<uint8_t>(code);
        fit = rest;
        changed = true;
      }
    }
    if (!changed) break;
  }
  return fit.ll > 0.0f ? fit.xl / fit.ll : 0.0f;
}

float search_iq4_scale(const float* x, const float* weights) {
  constexpr int kColumns = 32;
  constexpr int kTries = 7;
  const float extreme = first_extreme(kColumns, x);
  if (std::fabs(extreme) < kTinyGroup) return 0.0f;
  const auto first_value = static_cast<float>(kIq4Values[0]);
  float inverses[kIq4Trials] = {1.0f / (-extreme / first_value)};
  for (int t = -kTries; t <= kTries; ++t) {
    inverses[t + kTries + 1] = (static_cast<float>(t) + first_value) / extreme;
  }
  Fit fits[kIq4Trials];
  if (const SearchKernels* kernels = search_kernels()) {
    float qx[kIq4Trials];
    float qq[kIq4Trials];
    kernels->iq4_fits(x, weights, inverses, qx, qq);
    for (int t = 0; t < kIq4Trials; ++t) fits[t] = {qx[t], qq[t]};
  } else {
    for (int t = 0; t < kIq4Trials; ++t) {
      for (int i = 0; i < kColumns; ++i) {
        const auto q = static_cast<float>(kIq4Values[nearest_iq4(inverses[t] * x[i])]);
        fits[t].xl += weights[i] * q * x[i];
        fits[t].ll += weights[i] * q * q;
      }
    }
  }
  float scale = fits[0].ll > 0.0f ? fits[0].xl / fits[0].ll : 0.0f;
  float best = scale * fits[0].xl;
  for (const Fit& fit : std::span(fits).subspan(1)) {
    if (fit.ll > 0.0f && fit.xl * fit.xl > best * fit.ll) {
      scale = fit.xl / fit.ll;
      best = scale * fit.xl;
    }
  }
  return scale;
}

void nearest_iq4_codes(int n, const float* x, float inverse, uint8_t* codes) {
  if (const SearchKernels* kernels = search_kernels()) {
    kernels->iq4_codes(n, x, inverse, codes);
    return;
  }
  for (int i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(nearest_iq4(inverse * x[i]));
}

void recompute_codes(int n, const float* x, float scale, float minimum, int n_levels,
                     uint8_t* codes) {
  if (scale == 0.0f) return;
  if (const SearchKernels* kernels = search_kernels()) {
    kernels->round_codes(n, x, minimum, scale, 0, n_levels, codes);
    return;
  }
  for (int i = 0; i < n; ++i) {
    codes[i] =
        static_cast<uint8_t>(std::clamp(nearest_code((x[i] + minimum) / scale), 0, n_levels));
  }
}

void recompute_signed_codes(int n, const float* x, float scale, int n_levels, uint8_t* codes) {
  if (scale == 0.0f) return;
  if (const SearchKernels* kernels = search_kernels()) {
    kernels->round_codes(n, x, 0.0f, scale, -n_levels, n_levels - 1, codes);
    return;
  }
  for (int i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(
        std::clamp(nearest_code(x[i] / scale), -n_levels, n_levels - 1) + n_levels);
  }
}

float sum_of_squares(int n, const float* x) {
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

float weigh_by_importance(int n, float sigma2, const float* x, const float* importance,
                          float* weights) {
  if (const SearchKernels* kernels = search_kernels()) {
    kernels->weigh(n, sigma2, x, importance, weights);
  } else {
    for (int i = 0; i < n; ++i) weights[i] = importance[i] * std::sqrt(sigma2 + x[i] * x[i]);
  }
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += weights[i];
  return sum;
}

}  // namespace assay
