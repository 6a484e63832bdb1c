#include "convert/formats/code_search.h"

#include <algorithm>
#include <bit>
#include <cmath>

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

float search_signed_scale(int n, int n_levels, const float* x, const float* weights,
                          uint8_t* codes) {
  const float extreme = first_extreme(n, x);
  if (std::fabs(extreme) < kTinyGroup) {
    std::fill_n(codes, n, uint8_t{0});
    return 0.0f;
  }
  const auto code_of = [&](float inverse, int i) {
    return std::clamp(nearest_code(inverse * x[i]), -n_levels, n_levels - 1);
  };
  const auto fit_of = [&](float inverse) {
    Fit fit;
    for (int i = 0; i < n; ++i) {
      const float w = weights != nullptr ? weights[i] : x[i] * x[i];
      fit.add(w, x[i], code_of(inverse, i));
    }
    return fit;
  };
  const auto keep = [&](float inverse) {
    for (int i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(code_of(inverse, i) + n_levels);
  };

  const auto levels = static_cast<float>(n_levels);
  const float first_inverse = -levels / extreme;
  const Fit first = fit_of(first_inverse);
  keep(first_inverse);
  float scale = first.ll != 0.0f ? first.xl / first.ll : 0.0f;
  float best = scale * first.xl;
  for (int step = -9; step <= 9; ++step) {
    if (step == 0) continue;
    const float inverse = -(levels + 0.1f * static_cast<float>(step)) / extreme;
    const Fit fit = fit_of(inverse);
    if (fit.ll > 0.0f && fit.xl * fit.xl > best * fit.ll) {
      keep(inverse);
      scale = fit.xl / fit.ll;
      best = scale * fit.xl;
    }
  }
  return scale;
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

  const float first_inverse = levels / (maximum - minimum);
  float scale = 1.0f / first_inverse;
  float best_error = 0.0f;
  for (int i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(code_of(first_inverse, i));
    const float difference = scale * static_cast<float>(codes[i]) + minimum - x[i];
    best_error += weights[i] * (difference * difference);
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
      error += weights[i] * (difference * difference);
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

}  // namespace assay
