// Compiled with AVX2; see search_kernels.h. No function here may have a weak symbol.
#include "convert/formats/search_kernels.h"

#if defined(__x86_64__) && defined(__AVX2__)

#include <immintrin.h>

#include "convert/formats/iq4_values.h"

namespace assay {

const SearchKernels* search_kernels_avx2();

namespace {

using Floats = __m256;

Floats set(float value) { return _mm256_set1_ps(value); }
Floats magnitude(Floats x) { return _mm256_andnot_ps(set(-0.0f), x); }
Floats select(Floats mask, Floats yes, Floats no) { return _mm256_blendv_ps(no, yes, mask); }
bool any(Floats mask) { return _mm256_movemask_ps(mask) != 0; }
Floats greater(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }

/// Nearest integer, ties to even, of |x| < 2^22; larger numbers stay large.
Floats nearest(Floats x) {
  const Floats shift = set(12582912.0f);  // 1.5 · 2^23
  return _mm256_sub_ps(_mm256_add_ps(x, shift), shift);
}
/// Nearest integer within 0 … highest; NaN gives 0.
Floats nearest_up_to(Floats x, Floats highest) {
  return _mm256_min_ps(_mm256_max_ps(nearest(x), _mm256_setzero_ps()), highest);
}
/// Nearest integer within lowest … highest; NaN gives 0.
Floats nearest_between(Floats x, Floats lowest, Floats highest) {
  const Floats number = _mm256_and_ps(nearest(x), _mm256_cmp_ps(x, x, _CMP_ORD_Q));
  return _mm256_min_ps(_mm256_max_ps(number, lowest), highest);
}

void put_bytes(Floats integers, uint8_t* out) {
  const __m256i words = _mm256_cvtps_epi32(integers);
  const __m128i shorts =
      _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(shorts, shorts));
}

constexpr int kLanes = 8;
constexpr int kMaxColumns = 32;

// -------------------------------------------------------------------------------------------
// Affine grids: a lane is a group.

/// Columns of 8 groups, column by column.
void transpose(int n, const float* in, Floats* out) {
  alignas(32) float column[kLanes];
  for (int i = 0; i < n; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) column[lane] = in[n * lane + i];
    out[i] = _mm256_load_ps(column);
  }
}

struct Affine {
  int n = 0;
  bool absolute = false;
  Floats levels = {};
  Floats x[kMaxColumns] = {};
  Floats w[kMaxColumns] = {};
  Floats codes[kMaxColumns] = {};
  Floats minimum = {}, maximum = {};
  Floats sum_w = {}, sum_x = {};

  Floats code_of(Floats inverse, int i) const {
    return nearest_up_to(_mm256_mul_ps(inverse, _mm256_sub_ps(x[i], minimum)), levels);
  }
  Floats error_of(Floats scale, Floats offset, const Floats* trial) const {
    Floats error = _mm256_setzero_ps();
    for (int i = 0; i < n; ++i) {
      const Floats difference =
          _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(scale, trial[i]), offset), x[i]);
      const Floats term = absolute ? magnitude(difference) : _mm256_mul_ps(difference, difference);
      error = _mm256_add_ps(error, _mm256_mul_ps(w[i], term));
    }
    return error;
  }
  void look_at_range() {
    minimum = maximum = x[0];
    sum_w = w[0];
    sum_x = _mm256_mul_ps(w[0], x[0]);
    for (int i = 1; i < n; ++i) {
      minimum = _mm256_min_ps(x[i], minimum);
      maximum = _mm256_max_ps(x[i], maximum);
      sum_w = _mm256_add_ps(sum_w, w[i]);
      sum_x = _mm256_add_ps(sum_x, _mm256_mul_ps(w[i], x[i]));
    }
    minimum = select(greater(minimum, _mm256_setzero_ps()), _mm256_setzero_ps(), minimum);
  }
  /// One trial; lanes that become better take it over.
  void step(float offset, Floats& scale, Floats& best_error) {
    const Floats inverse =
        _mm256_div_ps(_mm256_add_ps(set(offset), levels), _mm256_sub_ps(maximum, minimum));
    Floats trial[kMaxColumns];
    Floats sum_l = _mm256_setzero_ps();
    Floats sum_l2 = _mm256_setzero_ps();
    Floats sum_xl = _mm256_setzero_ps();
    for (int i = 0; i < n; ++i) {
      trial[i] = code_of(inverse, i);
      const Floats wl = _mm256_mul_ps(w[i], trial[i]);
      sum_l = _mm256_add_ps(sum_l, wl);
      sum_l2 = _mm256_add_ps(sum_l2, _mm256_mul_ps(wl, trial[i]));
      sum_xl = _mm256_add_ps(sum_xl, _mm256_mul_ps(wl, x[i]));
    }
    const Floats zero = _mm256_setzero_ps();
    const Floats determinant =
        _mm256_sub_ps(_mm256_mul_ps(sum_w, sum_l2), _mm256_mul_ps(sum_l, sum_l));
    const Floats solvable = greater(determinant, zero);
    if (!any(solvable)) return;
    Floats trial_scale = _mm256_div_ps(
        _mm256_sub_ps(_mm256_mul_ps(sum_w, sum_xl), _mm256_mul_ps(sum_x, sum_l)), determinant);
    Floats trial_minimum = _mm256_div_ps(
        _mm256_sub_ps(_mm256_mul_ps(sum_l2, sum_x), _mm256_mul_ps(sum_l, sum_xl)), determinant);
    const Floats above = greater(trial_minimum, zero);
    trial_minimum = select(above, zero, trial_minimum);
    trial_scale = select(above, _mm256_div_ps(sum_xl, sum_l2), trial_scale);
    const Floats error = error_of(trial_scale, trial_minimum, trial);
    const Floats better = _mm256_and_ps(solvable, greater(best_error, error));
    if (!any(better)) return;
    for (int i = 0; i < n; ++i) codes[i] = select(better, trial[i], codes[i]);
    best_error = select(better, error, best_error);
    scale = select(better, trial_scale, scale);
    minimum = select(better, trial_minimum, minimum);
  }
};

void affine_grids(int n, int n_levels, const float* x, const float* weights,
                  const AffineSearch& search, AffineGrid* grids, uint8_t* codes) {
  Affine a;
  a.n = n;
  a.levels = set(static_cast<float>(n_levels));
  a.absolute = search.absolute;
  transpose(n, x, a.x);
  transpose(n, weights, a.w);
  a.look_at_range();
  // Groups without a range: code 0, scale 0, whatever the other lanes do meanwhile.
  const Floats flat = _mm256_cmp_ps(a.maximum, a.minimum, _CMP_LE_OQ);
  const Floats flat_minimum = a.minimum;

  const Floats first_inverse = _mm256_div_ps(a.levels, _mm256_sub_ps(a.maximum, a.minimum));
  for (int i = 0; i < n; ++i) a.codes[i] = a.code_of(first_inverse, i);
  Floats scale = _mm256_div_ps(set(1.0f), first_inverse);
  Floats best_error = a.error_of(scale, a.minimum, a.codes);
  for (int step = 0; step <= search.n_steps; ++step) {
    const float offset = search.r_min + search.r_delta * static_cast<float>(step);
    a.step(offset, scale, best_error);
  }

  alignas(32) float scales[kLanes];
  alignas(32) float minima[kLanes];
  _mm256_store_ps(scales, select(flat, _mm256_setzero_ps(), scale));
  _mm256_store_ps(minima, _mm256_xor_ps(select(flat, flat_minimum, a.minimum), set(-0.0f)));
  for (int lane = 0; lane < kLanes; ++lane) grids[lane] = {scales[lane], minima[lane]};
  for (int i = 0; i < n; ++i) {
    uint8_t bytes[kLanes];
    put_bytes(select(flat, _mm256_setzero_ps(), a.codes[i]), bytes);
    for (int lane = 0; lane < kLanes; ++lane) codes[n * lane + i] = bytes[lane];
  }
}

// -------------------------------------------------------------------------------------------
// One group, a lane is a trial.

void signed_fits(int n, int n_levels, const float* x, const float* weights, const float* inverses,
                 float* xl, float* ll) {
  constexpr int kVectors = kSignedTrials / kLanes;
  const Floats lowest = set(static_cast<float>(-n_levels));
  const Floats highest = set(static_cast<float>(n_levels - 1));
  Floats inverse[kVectors];
  Floats sum_xl[kVectors];
  Floats sum_ll[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    inverse[v] = _mm256_loadu_ps(inverses + kLanes * v);
    sum_xl[v] = sum_ll[v] = _mm256_setzero_ps();
  }
  for (int i = 0; i < n; ++i) {
    const Floats column = set(x[i]);
    const Floats w = set(weights[i]);
    const Floats wx = set(weights[i] * x[i]);
    for (int v = 0; v < kVectors; ++v) {
      const Floats l = nearest_between(_mm256_mul_ps(inverse[v], column), lowest, highest);
      sum_xl[v] = _mm256_add_ps(sum_xl[v], _mm256_mul_ps(wx, l));
      sum_ll[v] = _mm256_add_ps(sum_ll[v], _mm256_mul_ps(_mm256_mul_ps(w, l), l));
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    _mm256_storeu_ps(xl + kLanes * v, sum_xl[v]);
    _mm256_storeu_ps(ll + kLanes * v, sum_ll[v]);
  }
}

/// Index and value of the nearest of kIq4Values by halving: four comparisons with middles.
struct Iq4Lookup {
  Floats quarters[2];  // middles 3 and 11
  Floats eighths;      // 1, 5, 9, 13
  Floats sixteenths;   // 0, 2, … 14
  Floats low, high;    // values 0 … 7 and 8 … 15

  Iq4Lookup() {
    quarters[0] = set(kIq4Middles[3]);
    quarters[1] = set(kIq4Middles[11]);
    alignas(32) float table[8];
    for (int i = 0; i < 8; ++i) table[i] = kIq4Middles[4 * (i % 4) + 1];
    eighths = _mm256_load_ps(table);
    for (int i = 0; i < 8; ++i) table[i] = kIq4Middles[2 * i];
    sixteenths = _mm256_load_ps(table);
    for (int i = 0; i < 8; ++i) table[i] = static_cast<float>(kIq4Values[i]);
    low = _mm256_load_ps(table);
    for (int i = 0; i < 8; ++i) table[i] = static_cast<float>(kIq4Values[8 + i]);
    high = _mm256_load_ps(table);
  }

  /// Fills the mask of codes from 8 on, too.
  __m256i code(Floats x, Floats& upper) const {
    upper = at_least(x, set(kIq4Middles[7]));
    const Floats second = at_least(x, select(upper, quarters[1], quarters[0]));
    __m256i code =
        _mm256_or_si256(_mm256_and_si256(_mm256_castps_si256(upper), _mm256_set1_epi32(2)),
                        _mm256_and_si256(_mm256_castps_si256(second), _mm256_set1_epi32(1)));
    const Floats third = at_least(x, _mm256_permutevar8x32_ps(eighths, code));
    code = _mm256_sub_epi32(_mm256_add_epi32(code, code), _mm256_castps_si256(third));
    const Floats fourth = at_least(x, _mm256_permutevar8x32_ps(sixteenths, code));
    return _mm256_sub_epi32(_mm256_add_epi32(code, code), _mm256_castps_si256(fourth));
  }
  Floats value(Floats x) const {
    Floats upper;
    const __m256i index = code(x, upper);
    return select(upper, _mm256_permutevar8x32_ps(high, index),
                  _mm256_permutevar8x32_ps(low, index));
  }
  static Floats at_least(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
};

void iq4_fits(const float* x, const float* weights, const float* inverses, float* qx, float* qq) {
  const Iq4Lookup lookup;
  for (int v = 0; v < kIq4Trials / kLanes; ++v) {
    const Floats inverse = _mm256_loadu_ps(inverses + kLanes * v);
    Floats sum_qx = _mm256_setzero_ps();
    Floats sum_qq = _mm256_setzero_ps();
    for (int i = 0; i < 32; ++i) {
      const Floats q = lookup.value(_mm256_mul_ps(inverse, set(x[i])));
      const Floats wq = _mm256_mul_ps(set(weights[i]), q);
      sum_qx = _mm256_add_ps(sum_qx, _mm256_mul_ps(wq, set(x[i])));
      sum_qq = _mm256_add_ps(sum_qq, _mm256_mul_ps(wq, q));
    }
    _mm256_storeu_ps(qx + kLanes * v, sum_qx);
    _mm256_storeu_ps(qq + kLanes * v, sum_qq);
  }
}

void iq4_codes(int n, const float* x, float inverse, uint8_t* codes) {
  const Iq4Lookup lookup;
  for (int i = 0; i < n; i += kLanes) {
    Floats upper;
    const __m256i code = lookup.code(_mm256_mul_ps(set(inverse), _mm256_loadu_ps(x + i)), upper);
    put_bytes(_mm256_cvtepi32_ps(code), codes + i);
  }
}

void weigh(int n, float sigma2, const float* x, const float* importance, float* weights) {
  for (int i = 0; i < n; i += kLanes) {
    const Floats column = _mm256_loadu_ps(x + i);
    const Floats root = _mm256_sqrt_ps(_mm256_add_ps(set(sigma2), _mm256_mul_ps(column, column)));
    _mm256_storeu_ps(weights + i, _mm256_mul_ps(_mm256_loadu_ps(importance + i), root));
  }
}

void round_codes(int n, const float* x, float minimum, float scale, int lowest, int highest,
                 uint8_t* codes) {
  const Floats low = set(static_cast<float>(lowest));
  const Floats high = set(static_cast<float>(highest));
  for (int i = 0; i < n; i += kLanes) {
    const Floats shifted = _mm256_add_ps(_mm256_loadu_ps(x + i), set(minimum));
    const Floats code = nearest_between(_mm256_div_ps(shifted, set(scale)), low, high);
    put_bytes(_mm256_sub_ps(code, low), codes + i);
  }
}

}  // namespace

const SearchKernels* search_kernels_avx2() {
  static constexpr SearchKernels kKernels{.affine_grids = affine_grids,
                                          .signed_fits = signed_fits,
                                          .iq4_fits = iq4_fits,
                                          .iq4_codes = iq4_codes,
                                          .weigh = weigh,
                                          .round_codes = round_codes};
  return &kKernels;
}

}  // namespace assay

#endif
