#include "convert/formats/codebook_search.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "convert/core/error.h"

namespace assay {

uint8_t take_signs(const float* x, float* magnitudes) {
  int signs = 0;
  for (int i = 0; i < 8; ++i) {
    const bool negative = !(x[i] >= 0.0f);
    magnitudes[i] = negative ? -x[i] : x[i];
    signs |= (negative ? 1 : 0) << i;
  }
  return static_cast<uint8_t>(signs);
}

uint8_t take_even_signs(const float* x, const float* weights, float* magnitudes) {
  int signs = take_signs(x, magnitudes);
  if (__builtin_popcount(static_cast<unsigned>(signs)) % 2 == 0) {
    return static_cast<uint8_t>(signs & 127);
  }
  int cheapest = 0;
  float smallest = weights[0] * x[0] * x[0];
  for (int i = 1; i < 8; ++i) {
    const float cost = weights[i] * x[i] * x[i];
    if (cost < smallest) {
      smallest = cost;
      cheapest = i;
    }
  }
  magnitudes[cheapest] = -magnitudes[cheapest];
  return static_cast<uint8_t>((signs ^ (1 << cheapest)) & 127);
}

namespace {

constexpr int kMaxColumns = 32;
constexpr int kMaxGroups = 8;

/// Codes of a block and which of its groups had levels that are in the book.
struct Coded {
  uint8_t levels[kMaxColumns];
  bool in_book[kMaxGroups];
};

uint32_t word_of(const uint8_t* levels, int n, int bits) {
  uint32_t word = 0;
  for (int k = 0; k < n; ++k) word |= static_cast<uint32_t>(levels[k]) << (bits * k);
  return word;
}

template <int kElements, int kBits>
struct Snapper {
  const Codebook& book;
  float top;

  explicit Snapper(const Codebook& codebook)
      : book(codebook), top(static_cast<float>(codebook.n_levels() - 1)) {}

  /// Levels of a group for the inverse scale `inverse`, moved into the book for `scale`. False if
  /// they had to be moved.
  bool code(const float* x, const float* roots, float inverse, float scale, uint8_t* levels) const {
    uint32_t word = 0;
    for (int k = 0; k < kElements; ++k) {
      levels[k] = static_cast<uint8_t>(nearest_level(0.5f * (inverse * x[k] - 1.0f), top));
      word |= static_cast<uint32_t>(levels[k]) << (kBits * k);
    }
    if (book.find(word) >= 0) return true;
    const std::span<const uint16_t> neighbours = book.neighbours(word);
    float best = std::numeric_limits<float>::max();
    int nearest = neighbours[0];
    for (const uint16_t position : neighbours) {
      const uint8_t* candidate = book.levels(position);
      float distance = 0.0f;
      for (int k = 0; k < kElements; ++k) {
        const float difference = scale * static_cast<float>(2 * candidate[k] + 1) - x[k];
        distance += roots[k] * difference * difference;
      }
      if (distance < best) {
        best = distance;
        nearest = position;
      }
    }
    std::memcpy(levels, book.levels(nearest), kElements);
    return false;
  }
};

struct Fit {
  float qx = 0.0f;
  float q2 = 0.0f;
};

Fit fit_of(int n, const float* x, const float* weights, const uint8_t* levels) {
  Fit fit;
  for (int i = 0; i < n; ++i) {
    const auto q = static_cast<float>(2 * levels[i] + 1);
    fit.qx += weights[i] * x[i] * q;
    fit.q2 += weights[i] * q * q;
  }
  return fit;
}

template <int kElements, int kBits>
float search(const CodebookSearch& search, const float* x, const float* weights, const float* roots,
             float largest, float scale, uint8_t* codes) {
  const Snapper<kElements, kBits> snapper(*search.book);
  const int n_groups = search.n_columns / kElements;
  const auto levels = static_cast<float>(2 * search.book->n_levels() - 1);
  Coded kept{};
  std::copy_n(codes, search.n_columns, kept.levels);
  std::fill_n(kept.in_book, kMaxGroups, search.refine == Refine::kMissing);
  float best = 0.0f;
  for (int t = -search.n_steps; t <= search.n_steps; ++t) {
    const float inverse = (levels + static_cast<float>(t) * search.step) / largest;
    const float trial_scale = 1.0f / inverse;
    Coded trial;
    for (int g = 0; g < n_groups; ++g) {
      const int first = kElements * g;
      trial.in_book[g] =
          snapper.code(x + first, roots + first, inverse, trial_scale, trial.levels + first);
    }
    const Fit fit = fit_of(search.n_columns, x, weights, trial.levels);
    if (fit.q2 > 0.0f && fit.qx * fit.qx > best * fit.q2) {
      scale = fit.qx / fit.q2;
      best = scale * fit.qx;
      kept = trial;
    }
  }
  const bool all_in_book =
      std::all_of(kept.in_book, kept.in_book + n_groups, [](bool b) { return b; });
  if (scale > 0.0f && (search.refine == Refine::kAlways || !all_in_book)) {
    const float inverse = 1.0f / scale;
    for (int g = 0; g < n_groups; ++g) {
      if (search.refine == Refine::kMissing && kept.in_book[g]) continue;
      const int first = kElements * g;
      snapper.code(x + first, roots + first, inverse, scale, kept.levels + first);
    }
    const Fit fit = fit_of(search.n_columns, x, weights, kept.levels);
    if (fit.q2 > 0.0f) scale = fit.qx / fit.q2;
  }
  std::copy_n(kept.levels, search.n_columns, codes);
  return scale;
}

}  // namespace

float search_codebook(const CodebookSearch& spec, const float* x, const float* weights,
                      const float* roots, float largest, float scale, uint8_t* codes) {
  ASSAY_CHECK(spec.n_columns <= kMaxColumns);
  return spec.book->n_elements() == 8
             ? search<8, 2>(spec, x, weights, roots, largest, scale, codes)
             : search<4, 3>(spec, x, weights, roots, largest, scale, codes);
}

int codebook_position(const Codebook& book, const uint8_t* codes) {
  const int position = book.find(word_of(codes, book.n_elements(), book.bits()));
  ASSAY_CHECK(position >= 0);
  return position;
}

}  // namespace assay
